"""The measured tables of docs/figures.md, which are written from the results in docs/figures.json.

A result is that of one command, with date, commit and machine; running the command again with ``--record`` replaces
it. Nothing else of the page is written here.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from tests.benchmarks.report import Report, short
from tests.documents import ROOT, present_commit, with_part

PAGE = ROOT / "docs" / "figures.md"
RESULTS = ROOT / "docs" / "figures.json"
BEGIN, END = (
    "<!-- figures: `python -m tests.benchmarks COMMAND --record` writes this -->\n",
    "<!-- end of figures -->\n",
)


@dataclass(frozen=True, slots=True)
class Result:
    """What one command has printed: a row has name, median, unit, noise, ratio and what is wanted, all as text.

    ``notes``: what a reader of the rows must know of this run.
    """

    title: str
    date: str
    commit: str
    machine: str
    rows: tuple[tuple[str, ...], ...]
    notes: str = ""


def result_of(report: Report, notes: str) -> Result:
    """Return the result of a command that has ended just now."""
    rows = []
    for figure in report.figures:
        texts = (short(figure.median), figure.unit, figure.noise_text, report.ratio_text(figure))
        rows.append((figure.name, *texts, figure.wanted))
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    machine = f"{os.cpu_count()} cores, {gib:.0f} GiB"
    return Result(report.title, f"{datetime.now(UTC):%Y-%m-%d}", present_commit(), machine, tuple(rows), notes)


def stored_results() -> dict[str, Result]:
    """Return the last result of each command that was recorded, by its arguments."""
    results: dict[str, Result] = {}
    for command, fields in json.loads(RESULTS.read_text(encoding="utf-8")).items():
        results[command] = Result(**fields | {"rows": tuple(map(tuple, fields["rows"]))})
    return results


def record(command: str, result: Result) -> None:
    """Store the result of a command, and write the page."""
    results = stored_results() | {command: result}
    document = {name: asdict(stored) for name, stored in sorted(results.items())}
    RESULTS.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(with_results(PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")


def with_results(page: str, results: Mapping[str, Result]) -> str:
    """Return the page with a table for each command. Raises ValueError for a page without the two comments."""
    sections = "\n".join(_section(command, results[command]) for command in sorted(results))
    return with_part(page, BEGIN, END, sections)


def _section(command: str, result: Result) -> str:
    source = f"`python -m tests.benchmarks {command}`, {result.date}, commit {result.commit}, {result.machine}."
    header: Sequence[Sequence[str]] = (("figure", "median", "unit", "noise", "ratio", "wanted"), ("---",) * 6)
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in (*header, *result.rows))
    return f"## {result.title}\n\n{' '.join(filter(None, (source, result.notes)))}\n\n{table}\n"
