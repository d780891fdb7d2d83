"""The protocol's page lists the cases of schedulers with their rules; the command accepts what belongs together."""

import ast
import inspect
import re
from pathlib import Path

import pytest

from bowline.conformance import scheduler_cases
from bowline.conformance.__main__ import main
from bowline.conformance.scheduler_cases import SCHEDULER_CASES

PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"
WAITS = {"decided", "runs", "require"}


def rules_of(function: str) -> set[str]:
    """Return the rules that a function of the cases names, and those of the functions that it calls."""
    tree = ast.parse(inspect.getsource(getattr(scheduler_cases, function)))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    rules = {
        call.args[0].value
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr in WAITS and isinstance(call.args[0], ast.Constant)
    }
    rules |= {
        keyword.value.value
        for call in calls
        for keyword in call.keywords
        if keyword.arg == "rule" and isinstance(keyword.value, ast.Constant)
    }
    called = {call.func.id for call in calls if isinstance(call.func, ast.Name)}
    helpers = [name for name in called if name.startswith("_")]
    return {str(rule) for rule in rules}.union(*map(rules_of, helpers))


def test_the_page_lists_every_case_with_its_promise_and_rules() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| ([^|`]+) \| ([^|]+) \|$", PAGE.read_text(), re.MULTILINE)
    table = [(name, promise, set(re.findall(r"`([a-z-]+)`", rules))) for name, promise, rules in rows]
    assert table == [(case.name, case.promise, rules_of(case.run.__name__)) for case in SCHEDULER_CASES]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        pytest.param([], "the following arguments are required: --scheduler", id="no command"),
        pytest.param(["--scheduler=x", "--case=binds"], "no case binds (choose from first-decision,", id="no case"),
    ],
)
def test_invalid_usage_starts_no_cluster(
    arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    assert error in capsys.readouterr().err
