"""The house rules that no linter holds: sizes of modules and functions, docstrings, words that must not appear."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("webhook", "reconciler", "shared", "cli", "localcluster")
MAX_MODULE = 500  # review a module at 300 lines
MAX_FUNCTION = 60


def modules() -> Iterator[Path]:
    for package in PACKAGES:
        yield from (p for p in sorted((ROOT / package).rglob("*.py")) if "tests" not in p.relative_to(ROOT).parts)


@pytest.mark.parametrize("path", list(modules()), ids=lambda p: str(p.relative_to(ROOT)))
def test_module_is_a_room_of_its_own(path: Path) -> None:
    text = path.read_text()
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "a module says at its top what it models"
    assert len(text.splitlines()) <= MAX_MODULE
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= MAX_FUNCTION, f"{node.name} has {length} lines"
