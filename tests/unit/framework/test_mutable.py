"""The recorder: its patch contains the changes, and they can be undone."""

import copy
from typing import Any

import jsonpatch
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bowline.api.field_error import FieldError
from bowline.api.rule import Rule, Severity
from bowline.framework.interface.mutable import MutableObject, PatchOperation

KEYS = st.sampled_from(["a", "b", "a/b", "~", "~1", "", "metadata"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)
ODD = FieldError(Rule("a/warns", "a test's", Severity.WARNS), "a", 1, "is replaced")
OBJECTS = st.dictionaries(KEYS, VALUES, max_size=4)


@st.composite
def changes(draw: st.DrawFn) -> tuple[dict[str, Any], MutableObject]:
    """Draw an object and the recorder that has changed it in a few valid ways."""
    before = draw(OBJECTS)
    target = MutableObject(copy.deepcopy(before))
    for _ in range(draw(st.integers(0, 5))):
        tokens = draw(st.lists(KEYS | st.integers(0, 2), min_size=1, max_size=3))
        try:
            match draw(st.sampled_from(["set", "append", "remove"])):
                case "set":
                    target.set(copy.deepcopy(draw(VALUES)), *tokens)
                case "append":
                    target.append(copy.deepcopy(draw(VALUES)), *tokens)
                case _:
                    target.remove(*tokens)
        except (TypeError, IndexError, KeyError, AttributeError, ValueError):
            pass  # a path that the object does not have: a plugin's bug, which the chain reverts
    return before, target


@settings(max_examples=40)
@given(changes())
def test_the_patch_gives_the_changed_object_and_can_be_undone(change: tuple[dict[str, Any], MutableObject]) -> None:
    before, target = change
    assert jsonpatch.apply_patch(before, copy.deepcopy(target.operations)) == target.raw
    target.revert((0, 0))
    assert target.raw == before
    assert not target.operations


def test_a_warning_is_undone_with_the_changes_of_its_plugin() -> None:
    target = MutableObject({})
    target.warn(ODD)
    mark = target.checkpoint()
    target.set(1, "a")
    target.warn(ODD)
    target.revert(mark)
    assert (target.raw, target.warnings) == ({}, [ODD])


@pytest.mark.parametrize(
    ("before", "tokens", "operations"),
    [
        pytest.param({}, ("metadata", "annotations", "a/b"), [{"op": "add", "path": "/metadata",
            "value": {"annotations": {"a/b": 1}}}], id="a missing branch is added in one operation"),
        pytest.param({"metadata": {"annotations": None}}, ("metadata", "annotations", "k"), [{"op": "replace",
            "path": "/metadata/annotations", "value": {"k": 1}}], id="a null parent is replaced"),
        pytest.param({"metadata": {"annotations": {"a/b": 0}}}, ("metadata", "annotations", "a/b"), [{"op": "replace",
            "path": "/metadata/annotations/a~1b", "value": 1}], id="a key with a slash is escaped"),
        pytest.param({"list": [{}, {"x": 0}]}, ("list", 1, "x"), [{"op": "replace", "path": "/list/1/x", "value": 1}],
            id="an index leads into an array"),
        pytest.param({"x": 1}, ("x",), [], id="an equal value is not written"),
    ],
)  # fmt: skip
def test_set(before: dict[str, Any], tokens: tuple[str | int, ...], operations: list[PatchOperation]) -> None:
    target = MutableObject(before)
    target.set(1, *tokens)
    assert target.operations == operations


@pytest.mark.parametrize("value", ["text", 1])
def test_a_parent_that_is_no_object_is_a_bug_and_changes_nothing(value: Any) -> None:
    target = MutableObject({"metadata": value})
    with pytest.raises(TypeError, match="/metadata"):
        target.set("x", "metadata", "labels", "k")
    assert target.raw == {"metadata": value}


@pytest.mark.parametrize(
    ("before", "operations"),
    [
        pytest.param({}, [{"op": "add", "path": "/list", "value": [1, {}]}], id="an absent array is added whole"),
        pytest.param({"list": None}, [{"op": "replace", "path": "/list", "value": [1, {}]}],
            id="a null array is replaced"),
        pytest.param({"list": [0]}, [{"op": "add", "path": "/list/-", "value": 1}, {"op": "add", "path": "/list/-",
            "value": {}}], id="entries of the array are not repeated"),
    ],
)  # fmt: skip
def test_extend(before: dict[str, Any], operations: list[PatchOperation]) -> None:
    target = MutableObject(copy.deepcopy(before))
    target.extend([1, {}], "list")
    assert target.operations == operations
    target.revert((0, 0))
    assert target.raw == before


def test_a_recorded_value_does_not_change_with_the_object() -> None:
    target = MutableObject({"list": []})
    target.append({"a": [1]}, "list")
    target.append(2, "list", 0, "a")
    assert [operation["value"] for operation in target.operations] == [{"a": [1]}, 2]


@pytest.mark.parametrize("tokens", [("x",), ("new", "x"), ("list",)])
def test_a_value_that_is_not_json_is_rejected_and_changes_nothing(tokens: tuple[str, ...]) -> None:
    target = MutableObject({"x": 1, "list": [1]})
    change = target.append if tokens == ("list",) else target.set
    with pytest.raises(TypeError):
        change({"when": object()}, *tokens)
    assert target.raw == {"x": 1, "list": [1]}
    assert not target.operations
