"""The parts of `make test-all` and the table of their results in docs/testing.md."""

import re

import pytest

from tests.all import NOT_RUN, PAGE, PARTS, Outcome, result_of, stored_outcomes, with_outcomes
from tests.documents import ROOT


@pytest.mark.parametrize(
    ("code", "output", "expected"),
    [
        pytest.param(0, "....\n== 12 passed, 3 skipped in 4.20s ==\n", "passed: 12 passed, 3 skipped", id="passed"),
        pytest.param(2, "x\n= 1 failed, 2 passed in 9.00s (0:00:09) =\nmake: *** Error 1\n",
                     "FAILED (2): 1 failed, 2 passed", id="failed"),
        pytest.param(0, "= 4 skipped in 0.10s =\n", "nothing ran: 4 skipped", id="all-skipped"),
        pytest.param(0, "round 1\n0 kinds of violation\n", "passed: 0 kinds of violation", id="no-pytest"),
    ],
)  # fmt: skip
def test_the_result_of_a_part(code: int, output: str, expected: str) -> None:
    assert result_of(code, output) == expected


def test_a_part_that_never_ran_says_so() -> None:
    result = Outcome("passed: a | b", "3 min", "2026-11-28", "abc")
    page = with_outcomes(PAGE.read_text(encoding="utf-8"), {PARTS[0].name: result})
    rows = [line for line in page.splitlines() if line.startswith("| `make ")]
    assert rows[0].endswith(r"| passed: a \| b | 3 min | 2026-11-28 | abc |")
    assert rows[1].endswith(f"| {NOT_RUN} |  |  |  |")


def test_every_part_is_a_target_and_the_page_has_its_row() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert {part.command.split()[1] for part in PARTS} <= targets
    page = PAGE.read_text(encoding="utf-8")
    assert with_outcomes(page, stored_outcomes()) == page, "run a part by `python -m tests.all`"
