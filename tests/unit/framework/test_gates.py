"""Feature gates: defaults, rejected values, and the flag."""

import pytest

from bowline.framework.gates import Gate, Stage, parse_gates_flag, resolve_gates

KNOWN = (
    Gate("Alpha", Stage.ALPHA, default=False, description=""),
    Gate("Beta", Stage.BETA, default=True, description=""),
    Gate("Done", Stage.GA, default=True, description=""),
)


def test_alpha_and_beta_are_switched_both_ways() -> None:
    gates, errors = resolve_gates({"Alpha": True, "Beta": False}, KNOWN)
    assert not errors
    assert (gates["Alpha"], gates["Beta"]) == (True, False)


def test_every_error_is_listed_with_its_path() -> None:
    _, errors = resolve_gates({"Nope": True, "Done": False, "Other": False, "Alpha": True}, KNOWN)
    assert [fault.path for fault in errors] == ["featureGates.Nope", "featureGates.Done", "featureGates.Other"]
    assert "known: Alpha, Beta, Done" in errors[0].message


@pytest.mark.parametrize(
    ("text", "expectation"),
    [
        pytest.param("", {}, id="nothing"),
        pytest.param("A=true,B=false", {"A": True, "B": False}, id="two"),
        pytest.param("A=true,", {"A": True}, id="a trailing comma"),
        pytest.param("A=true,A=false", {"A": False}, id="the last one counts"),
    ],
)
def test_the_flag(text: str, expectation: dict[str, bool]) -> None:
    assert parse_gates_flag(text) == expectation


@pytest.mark.parametrize("text", ["A", "A=", "A=yes", "=true", "A=True"])
def test_the_flag_names_the_entry_that_it_cannot_read(text: str) -> None:
    with pytest.raises(ValueError, match="must be NAME=true or NAME=false"):
        parse_gates_flag(text)
