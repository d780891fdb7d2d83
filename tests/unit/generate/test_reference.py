"""docs/reference.md has every event, condition, reason and suggestion that the code reports."""

import ast
from collections.abc import Iterator
from pathlib import Path

from bowline.api import names
from bowline.api.bindrequest import BOUND, PREPARED, ROLLED_BACK
from bowline.framework.reason import Reason, Suggestion
from tools.generate.crd import UNREPORTED
from tools.generate.reference import CONDITIONS, EVENTS, PROGRESS, as_markdown

ROOT = Path(__file__).resolve().parents[3]
STATUSES = ("True", "False", "Unknown")
A_FAILURE = "a reason of a failure"


def product_calls() -> Iterator[tuple[str, ast.expr]]:
    """Each event name, first word of a reason, and reason of a condition in the product's code, by kind."""
    for package in ("reconciler", "shared"):
        for path in sorted((ROOT / package).rglob("*.py")):
            if "tests" in path.relative_to(ROOT).parts:
                continue
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.Tuple | ast.Call):
                    yield from reports(node)


def reports(node: ast.Tuple | ast.Call) -> Iterator[tuple[str, ast.expr]]:
    values = node.elts if isinstance(node, ast.Tuple) else node.args
    name = called(node.func) if isinstance(node, ast.Call) else ""
    if name == "Event" or name.endswith("client.report"):
        yield "event", values[1]
    elif name == "EventNote" and ast.unparse(values[1]).startswith("names.EVENT_"):
        yield "event", values[1]  # without an attempt; the other notes pass on an Event
    elif name in ("reason_text", "Unfinished") and ast.unparse(values[0]) != "cause.word":
        yield "progress", values[0]  # the word of a cause is that of an Unfinished
    elif (name == "PodBound" or (name == "" and len(values) == 3)) and getattr(values[0], "value", None) in STATUSES:
        yield "condition", values[1]


def called(function: ast.expr) -> str:
    """The name of a function, or of a method and what it is called on."""
    if isinstance(function, ast.Attribute):
        on = function.value
        return f"{getattr(on, 'attr', getattr(on, 'id', ''))}.{function.attr}"
    return function.id if isinstance(function, ast.Name) else ""


def word(value: ast.expr) -> str:
    """The name that an expression stands for; a failure's own reason is not spelt out."""
    if isinstance(value, ast.Constant):
        return str(value.value)
    if isinstance(value, ast.Attribute) and value.attr.startswith("EVENT_"):
        return str(getattr(names, value.attr))
    assert ast.unparse(value) in ("fail.name", "condition_reason(fail)"), f"{ast.unparse(value)}: not derived here"
    return A_FAILURE


DOCUMENTED = {
    "event": set(EVENTS),
    "progress": {*PROGRESS, A_FAILURE},
    "condition": {reason for rows in CONDITIONS.values() for _, reason, _ in rows},
}


def test_the_page_has_exactly_what_the_code_reports() -> None:
    reports = {(kind, word(value)) for kind, value in product_calls()}
    page = as_markdown()
    assert [name for _, name in sorted(reports) if name not in page] == []
    progress_step = UNREPORTED.partition(":")[0]
    documented = {(kind, name) for kind, names_of_kind in DOCUMENTED.items() for name in names_of_kind}
    assert {*reports, ("progress", progress_step)} == documented


def test_the_page_has_each_member_of_the_enums_and_each_type_of_condition() -> None:
    rows = {row.split("`")[1] for row in as_markdown().splitlines() if row.startswith("| `")}
    assert {member.value for member in (*Reason, *Suggestion)} <= rows
    assert {PREPARED, BOUND, ROLLED_BACK, names.CONDITION_POD_BOUND} <= rows
