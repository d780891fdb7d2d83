"""Every claim of docs/security.md has tests that exist, or a reason why none can: `security_claims.toml` here.

A claim is a row of a table or an item of a list. A test is written ``path::function`` or ``path::function[case]``.
"""

import importlib
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()
TESTS: dict[str, str | list[str]] = tomllib.loads(Path(__file__).with_name("security_claims.toml").read_text())
CITED = re.compile(r"([\w./]+)::(\w+)(?:\[(.+)\])?")


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


def test_every_claim_has_its_tests_or_a_reason_why_there_are_none() -> None:
    texts = [re.sub(r"\s+", " ", claim.replace("**", "").lstrip("|- ")) for claim in claims(PAGE)]
    assert [text for text in texts if sum(text.startswith(key) for key in TESTS) != 1] == []
    assert [key for key in TESTS if sum(text.startswith(key) for text in texts) != 1] == []
    assert list(claims("| a |\n|---|\n| x |\n- y\n  z\n\ntext\n- w\n")) == ["| x |", "- y  z", "- w"]


def test_every_test_of_a_claim_exists() -> None:
    cited = {test for tests in TESTS.values() if isinstance(tests, list) for test in tests}
    assert len(cited) > 40
    parts = {test: CITED.fullmatch(test) for test in cited}
    assert [test for test, part in parts.items() if not part or not is_test(part[1], part[2], part[3] or "")] == []


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
