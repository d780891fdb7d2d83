"""docs/porting.md: each row of its comparison has a verdict, and a test or a page that shows it; each test exists."""

import ast
import re

from tests.documents import ROOT

PAGE = (ROOT / "docs" / "porting.md").read_text(encoding="utf-8")
SHOWN_BY = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
VERDICTS = ("equal", "stronger", "absent")


def rows() -> list[list[str]]:
    """Return the cells of each row below the last heading."""
    lines = [line for line in PAGE.rpartition("\n## ")[2].splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[1:]]


def test_each_row_has_a_verdict_and_what_shows_it() -> None:
    assert len(rows()) > 20
    for concept, verdict, shown_by in rows():
        assert verdict.startswith(VERDICTS), concept
        assert SHOWN_BY.search(shown_by) or "](" in shown_by, concept


def test_what_is_absent_has_a_reason() -> None:
    assert [concept for concept, verdict, _ in rows() if re.search(r"[Aa]bsent(?![^:]*: )", verdict)] == []


def test_every_named_test_exists() -> None:
    named = SHOWN_BY.findall(PAGE)
    assert named
    missing = [f"{path}::{name}" for path, name in named if name not in functions(path)]
    assert missing == []


def functions(path: str) -> set[str]:
    """Return the names of the functions of a module, also of its classes."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
