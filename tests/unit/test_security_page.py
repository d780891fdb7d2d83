"""Every claim of docs/security.md names tests that exist, or states why none can.

A claim is a row of a table or an item of a list. A test is written ``path::function`` or ``path::function[case]``.
The path is below ``tests/`` or, for a plugin's own tests, below the repository. ``::function`` repeats the last.
"""

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()
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


def is_test(path: str, function: str, case: str) -> bool:
    """Return whether a file of tests has such a function and, if one is named, a case with this id."""
    file = next((file for file in (ROOT / "tests" / path, ROOT / path) if file.is_file()), None)
    if file is None or not re.search(rf"^ *(?:async )?def {function}\(", file.read_text(), re.MULTILINE):
        return False
    if not case:
        return function.startswith("test_")
    parts = file.relative_to(ROOT).with_suffix("").parts
    module = importlib.import_module(".".join(parts[1:] if parts[0] == "shared" else parts))
    marks = getattr(getattr(module, function, None), "pytestmark", ())
    tables = [mark for mark in marks if mark.name == "parametrize"]
    ids = {str(row.id) for table in tables for row in table.args[1] if getattr(row, "id", None)}
    return case in ids.union(*(table.kwargs.get("ids", ()) for table in tables))


def test_every_claim_names_a_test_or_states_why_there_is_none() -> None:
    assert [claim for claim in claims(PAGE) if not CITED.search(claim) and not UNTESTED.search(claim)] == []
    assert list(claims("| a |\n|---|\n| x |\n- y\n  z\n\ntext\n- w\n")) == ["| x |", "- y  z", "- w"]


def test_every_test_that_the_page_names_exists() -> None:
    assert "test_" not in CITED.sub("", PAGE), "a name that is not written as above"
    path, names = "", set()
    for cited_path, function, case in CITED.findall(PAGE):
        path = cited_path or path
        names.add((path, function, case))
    assert len(names) > 40
    assert sorted(name for name in names if not is_test(*name)) == []


@pytest.mark.parametrize(
    ("path", "function", "case", "expectation"),
    [
        ("unit/test_house.py", "test_modules_and_functions_have_bounded_sizes", "", True),
        ("unit/test_house.py", "test_of_yesterday", "", False),
        ("unit/test_of_yesterday.py", "test_x", "", False),
        ("unit/framework/test_gates.py", "test_the_flag", "two", True),
        ("unit/framework/test_gates.py", "test_the_flag", "none such", False),
    ],
)
def test_a_stale_name_is_recognized(path: str, function: str, case: str, expectation: bool) -> None:
    assert is_test(path, function, case) is expectation
