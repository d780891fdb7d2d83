"""YAML as Kubernetes parses it."""

from typing import Any

import pytest
import yaml

from bowline.framework.strict_yaml import StrictLoader


def load(text: str) -> Any:
    return yaml.load(text, StrictLoader)  # noqa: S506 - it is a SafeLoader


@pytest.mark.parametrize(
    ("text", "value"),
    [
        pytest.param("2026-01-01", "2026-01-01", id="a date is a string"),
        pytest.param("22:22", "22:22", id="also in the form of a time"),
        pytest.param("1e3", 1000.0, id="an exponent makes a number"),
        pytest.param(".5", 0.5, id="a leading point"),
        pytest.param("0755", 493, id="a leading zero is octal"),
        pytest.param("0x1f", 31, id="hexadecimal"),
        pytest.param("yes", True, id="yes is true"),
        pytest.param("y", True, id="y is true"),
        pytest.param("N", False, id="N is false"),
        pytest.param("~", None, id="a tilde is null"),
        pytest.param("''", "", id="an empty string is one"),
        pytest.param("=", "=", id="an equals sign is a string"),
    ],
)
def test_scalars(text: str, value: Any) -> None:
    loaded_value = load(f"key: {text}")["key"]
    assert loaded_value == value
    assert type(loaded_value) is type(value)


@pytest.mark.parametrize("text", ["a: 1\na: 2", "x: {a: 1, b: 2, a: 3}", "1: a\n'1': b"])
def test_a_key_given_twice_is_rejected_with_its_line(text: str) -> None:
    with pytest.raises(yaml.MarkedYAMLError, match="given twice") as caught:
        load(text)
    assert caught.value.problem_mark is not None


@pytest.mark.parametrize("text", ["!!python/object:os.system {}", "!custom x"])
def test_tags_are_rejected(text: str) -> None:
    with pytest.raises(yaml.YAMLError):
        load(text)


@pytest.mark.parametrize(
    "text",
    [
        *("!!bool maybe", '!!int ""', "!!int x", "!!float +", "!!timestamp 2020", "!!timestamp 2020-99-01", "0x_"),
        *("9" * 5000, "!!map x", "!!set a", "!!set [a]", "? !!bool x\n  : y"),
    ],
)
def test_a_value_that_its_tag_does_not_allow_is_rejected_with_its_line(text: str) -> None:
    with pytest.raises(yaml.constructor.ConstructorError) as caught:
        load(f"key:\n  {text}")
    assert caught.value.problem_mark is not None
    assert caught.value.problem_mark.line == 1


def bomb(levels: int, level: str) -> str:
    """A few lines whose aliases expand to 9 ** levels values."""
    lines = ["a0: &a0 {x: 1, y: 2}"]
    lines += [f"a{n}: &a{n} {level.format(', '.join([f'*a{n - 1}'] * 9))}" for n in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        pytest.param(bomb(9, "[{}]"), "aliases and merges add too much to the documents", id="lists of lists"),
        pytest.param(bomb(9, "{{<<: [{}]}}"), "aliases and merges add too much to the documents",
            id="merges of merges"),
        pytest.param("a: &a [*a]", "an alias refers to a part that contains it", id="a list that contains itself"),
    ],
)  # fmt: skip
def test_aliases_that_expand_to_too_many_values_are_rejected(text: str, error: str) -> None:
    with pytest.raises(yaml.YAMLError, match=error):
        load(text)
