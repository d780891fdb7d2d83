"""Every claim of docs/security.md names tests that exist, or states why none can.

A claim is a row of a table or an item of a list. A test is written ``path::function`` or ``path::function[case]``.
The path is below ``tests/`` or, for a plugin's own tests, below the repository. ``::function`` repeats the last.
"""

import ast
import functools
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "security.md"
CITED = re.compile(r"`([\w./]*)::(\w+)(?:\[([^\]]+)\])?`")
UNTESTED = re.compile(r"\bnot tested: \w")


def claims(text: str) -> Iterator[str]:
    """Yield each row of a table, without its head, and each item of a list, with the lines that continue it."""
    item, was_row = "", False
    for line in [*text.splitlines(), ""]:
        if line.startswith("  ") and item:
            item += line
            continue
        if item:
            yield item
        item = line if line.startswith("- ") else ""
        is_row = line.startswith("|")
        if is_row and was_row and not line.startswith("|---"):
            yield line
        was_row = is_row


def citations(text: str) -> list[tuple[str, str, str]]:
    """Return path, function and case of every test that the text names."""
    names: list[tuple[str, str, str]] = []
    for path, function, case in CITED.findall(text):
        names.append((path or (names[-1][0] if names else ""), function, case))
    return names


def is_test(path: str, function: str, case: str) -> bool:
    """Return whether a file of tests has such a function and, if one is named, a case with this id."""
    files = [file for file in (ROOT / "tests" / path, ROOT / path) if file.is_file()]
    if not files or not function.startswith("test_"):
        return False
    if case:
        return case in case_ids(files[0], function)
    return function in functions_of(files[0])


@functools.cache  # the page names most files several times
def functions_of(file: Path) -> frozenset[str]:
    """Return the names of a file's functions."""
    nodes = ast.walk(ast.parse(file.read_text()))
    return frozenset(node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@functools.cache
def case_ids(file: Path, function: str) -> frozenset[str]:
    """Return the ids of the cases of a test, as pytest forms them, also those that are composed."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    module = importlib.import_module(".".join(parts[1:] if parts[0] == "shared" else parts))
    marks = [
        mark for mark in getattr(getattr(module, function, None), "pytestmark", ()) if mark.name == "parametrize"
    ]
    cases = [case for mark in marks for case in mark.args[1]]
    return frozenset(str(case.id) for case in cases if getattr(case, "id", None))


def test_every_claim_names_a_test_or_states_why_there_is_none() -> None:
    text = PAGE.read_text()
    bare = [claim for claim in claims(text) if not citations(claim) and not UNTESTED.search(claim)]
    assert len(list(claims(text))) > 40
    assert bare == []


def test_every_test_that_the_page_names_exists() -> None:
    names = [name for line in [*claims(PAGE.read_text()), PAGE.read_text()] for name in citations(line)]
    assert len(set(names)) > 40
    assert "test_" not in CITED.sub("", PAGE.read_text()), "a name that is not written as above"
    assert sorted({name for name in names if not is_test(*name)}) == []


@pytest.mark.parametrize(
    ("text", "expectation"),
    [
        pytest.param("| a | b |\n|---|---|\n| x | `t.py::test_x` |\n| y | z |\n", [True, False], id="rows"),
        pytest.param("- x\n  (`t.py::test_x`)\n- y\n\ntext\n", [True, False], id="items"),
        pytest.param("- x (not tested: it is advice)\n- not tested\n", [True, False], id="reasons"),
    ],
)
def test_a_claim_without_a_test_is_recognized(text: str, expectation: list[bool]) -> None:
    assert [bool(citations(claim) or UNTESTED.search(claim)) for claim in claims(text)] == expectation


@pytest.mark.parametrize(
    ("citation", "expectation"),
    [
        pytest.param("`unit/test_house.py::test_paths_in_backticks_exist`", True, id="a function"),
        pytest.param(
            "`tests/unit/test_security_page.py::test_a_stale_name_is_recognized[a function]`", True, id="a case"
        ),
        pytest.param(
            "`unit/test_security_page.py::test_a_stale_name_is_recognized[no case]`", False, id="another case"
        ),
        pytest.param("`unit/test_house.py::test_of_yesterday`", False, id="another function"),
        pytest.param("`unit/test_of_yesterday.py::test_x`", False, id="another file"),
        pytest.param("`unit/test_house.py::documents`", False, id="no test"),
    ],
)
def test_a_stale_name_is_recognized(citation: str, expectation: bool) -> None:
    (name,) = citations(citation)
    assert is_test(*name) is expectation
