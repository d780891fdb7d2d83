"""Every claim of docs/security.md has tests that exist, or a reason why none can: `security_claims.toml` here.

A claim is a row of a table or an item of a list. A test is written ``function`` or ``function[case]``.
"""

import importlib
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()
TESTS: dict[str, str | list[str]] = tomllib.loads(Path(__file__).with_name("security_claims.toml").read_text())
FOLDERS = ("tests", "shared/bowline/plugins")
CITED = re.compile(r"(test_\w+)(?:\[(.+)\])?")


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


@cache
def files_of_tests() -> Mapping[str, list[Path]]:
    """Return the files that have a test of each name."""
    files = defaultdict(list)
    for path in (path for folder in FOLDERS for path in (ROOT / folder).rglob("test_*.py")):
        for name in re.findall(r"^ *(?:async )?def (test_\w+)\(", path.read_text(), re.MULTILINE):
            files[name].append(path)
    return files


def is_test(cited: str) -> bool:
    """Return whether there is such a test and, if a case is named, whether it has a case with this id."""
    parts = CITED.fullmatch(cited)
    if parts is None:
        return False
    files = files_of_tests().get(parts[1], [])
    return any(parts[2] is None or parts[2] in cases_of(path, parts[1]) for path in files)


def cases_of(path: Path, function: str) -> set[str]:
    """Return the ids of the cases of a test."""
    words = path.relative_to(ROOT).with_suffix("").parts
    module = importlib.import_module(".".join(words[1:] if words[0] == "shared" else words))
    marks = getattr(getattr(module, function, None), "pytestmark", ())
    tables = [mark for mark in marks if mark.name == "parametrize"]
    ids = {str(row.id) for table in tables for row in table.args[1] if getattr(row, "id", None)}
    return ids.union(*(table.kwargs.get("ids", ()) for table in tables))


def test_every_claim_has_its_tests_or_a_reason_why_there_are_none() -> None:
    texts = [re.sub(r"\s+", " ", claim.replace("**", "").lstrip("|- ")) for claim in claims(PAGE)]
    assert [text for text in texts if sum(text.startswith(key) for key in TESTS) != 1] == []
    assert [key for key in TESTS if sum(text.startswith(key) for text in texts) != 1] == []
    assert list(claims("| a |\n|---|\n| x |\n- y\n  z\n\ntext\n- w\n")) == ["| x |", "- y  z", "- w"]


def test_every_test_of_a_claim_exists() -> None:
    cited = {test for tests in TESTS.values() if isinstance(tests, list) for test in tests}
    assert len(cited) > 40
    assert [test for test in cited if not is_test(test)] == []
