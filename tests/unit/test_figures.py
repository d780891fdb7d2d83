"""The page of figures: it is what its stored results are."""

import re
from dataclasses import replace

from tests.benchmarks.__main__ import SCENARIOS
from tests.benchmarks.figures_page import PAGE, result_of, stored_results, with_results
from tests.benchmarks.report import Figure, Report
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


def test_a_result_has_date_commit_machine_and_a_row_for_each_figure() -> None:
    report = Report("Drains")
    report.add(Figure("bare", "binds/s", (10.0, 12.0)))
    report.add(Figure("ours", "binds/s", (5.5,), "bare", ">= 0.5"))
    result = result_of(report, "With a note.")
    assert result.date
    assert result.commit
    assert result.machine.endswith("GiB")
    page = with_results(PAGE.read_text(encoding="utf-8"), {"costs": replace(result, commit="abc", date="2026-01-02")})
    assert (
        f"## Drains\n\n`python -m tests.benchmarks costs`, 2026-01-02, commit abc, {result.machine}. With a note."
        in page
    )
    assert "| bare | 11.0 | binds/s | 18% |  |  |\n| ours | 5.50 | binds/s | 1 run | 0.50 | >= 0.5 |\n" in page


def test_a_ratio_of_figures_that_took_turns_has_the_noise_of_the_turns_ratios() -> None:
    report = Report("Turns")
    report.add(Figure("before", "us", (100.0, 200.0, 400.0)))
    after, single = Figure("after", "us", (55.0, 100.0, 200.0), "before"), Figure("single", "us", (50.0,), "before")
    assert [report.ratio_text(figure) for figure in (after, single)] == ["0.50 (10%)", "0.25"]
    assert report.ratio_text(report.figure("before")) == ""


def test_no_other_page_has_a_measured_number() -> None:
    pages = {*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "charts").rglob("*.md")} - {PAGE}
    assert len(pages) > 10
    assert {page.name: MEASURED.findall(page.read_text(encoding="utf-8")) for page in pages} == {
        page.name: [] for page in pages
    }
    assert MEASURED.search(PAGE.read_text(encoding="utf-8").replace(" | ", " "))
