"""The page of binders' conformance lists the cases that the command runs."""

import re
from pathlib import Path

from bowline.conformance.cases import CASES

PAGE = Path(__file__).parents[2] / "docs" / "binder-conformance.md"


def test_the_page_lists_every_case_with_its_promise() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| ([^|]+) \|$", PAGE.read_text(), re.MULTILINE)
    assert rows == [(case.name, case.promise) for case in CASES]


def test_the_page_states_the_result_of_kais_binder_for_every_case() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| (passed|failed|not run) \| (.*)\|$", PAGE.read_text(), re.MULTILINE)
    assert [name for name, _, _ in rows] == [case.name for case in CASES]
    assert all(bool(observation.strip()) == (result != "passed") for _, result, observation in rows)
