"""Messages of log lines are constants: values are fields, so that lines can be counted and searched."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("webhook", "reconciler", "shared")
LEVELS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
CALL = re.compile(rf"\.\s*(?:{'|'.join(LEVELS)})\s*\(")
# Placeholders for a value.
PLACEHOLDERS = ("%", "{", "}")


def calls(path: Path) -> Iterator[ast.Call]:
    """Calls on a logger, by its names in this code: ``log``, ``logger``, ``c.log``."""
    text = path.read_text()
    # A syntax tree of each module costs a second.
    tree = ast.parse(text if CALL.search(text) else "")
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LEVELS:
            on = node.func.value
            name = on.id if isinstance(on, ast.Name) else on.attr if isinstance(on, ast.Attribute) else ""
            if name in {"log", "logger"}:
                yield node


def modules() -> Iterator[Path]:
    for package in PACKAGES:
        yield from sorted((ROOT / package).rglob("*.py"))


def fault(call: ast.Call) -> str | None:
    """What is wrong with a call; None if its message is a constant without places for values."""
    message = call.args[1 if isinstance(call.func, ast.Attribute) and call.func.attr == "log" else 0 :]
    if len(message) != 1 or not isinstance(message[0], ast.Constant) or not isinstance(message[0].value, str):
        return "the message must be one constant text; give values as extra={...}"
    if any(mark in message[0].value for mark in PLACEHOLDERS):
        return f"{message[0].value!r} has a place for a value; give it as extra={{...}}"
    return None


def test_messages_are_constants() -> None:
    errors = [
        f"{path.relative_to(ROOT)}:{call.lineno}: {why}"
        for path in modules()
        for call in calls(path)
        if (why := fault(call)) is not None
    ]
    assert errors == []


@pytest.mark.parametrize(
    ("line", "is_right"),
    [
        ('log.info("pod bound", extra={"pod": key})', True),
        ('log.log(level, "pod bound")', True),
        ('log.info(f"pod {key} bound")', False),
        ('log.info("pod %s bound", key)', False),
        ('c.log.info("pod " + key)', False),
        ("log.log(level, message)", False),
    ],
)
def test_the_rule_sees_values_in_messages(line: str, is_right: bool) -> None:
    call = ast.parse(line).body[0]
    assert isinstance(call, ast.Expr)
    assert isinstance(call.value, ast.Call)
    assert (fault(call.value) is None) is is_right
