"""The page of figures: it is what its stored results are."""

import re

from tests.benchmarks.__main__ import SCENARIOS
from tests.benchmarks.figures_page import PAGE, stored_results, with_results
from tests.documents import ROOT

# A measured rate, time or memory; settings and limits are in seconds and MiB.
MEASURED = re.compile(
    r"[0-9][0-9.,]*\s?(?:binds/s|(?:binds|reviews) (?:a|per) second|MB\b|[µm]s per \w+|times faster)"
)


def test_the_page_has_the_stored_results_of_existing_commands() -> None:
    results = stored_results()
    assert {command.split()[0] for command in results} <= set(SCENARIOS)
    page = PAGE.read_text(encoding="utf-8")
    assert with_results(page, results) == page, "run a command by `python -m tests.benchmarks COMMAND --record`"


def test_no_other_page_has_a_measured_number() -> None:
    pages = {*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "charts").rglob("*.md")} - {PAGE}
    assert len(pages) > 10
    assert {page.name: MEASURED.findall(page.read_text(encoding="utf-8")) for page in pages} == {
        page.name: [] for page in pages
    }
    assert MEASURED.search(PAGE.read_text(encoding="utf-8").replace(" | ", " "))
