"""A figure that was measured once has no noise: tables say "1 run" instead."""

import pytest

from tests.benchmarks.peers import FIGURES, PICTURE, drawn, figures_of
from tests.benchmarks.report import Figure, Report, as_text
from tests.documents import ROOT


@pytest.mark.parametrize(
    ("values", "expectation"),
    [
        pytest.param((2.0,), "1 run", id="once"),
        pytest.param((2.0, 2.0), "0%", id="twice-the-same"),
        pytest.param((1.0, 2.0, 3.0), "100%", id="three-times"),
    ],
)
def test_the_noise_of_a_figure(values: tuple[float, ...], expectation: str) -> None:
    figure = Figure("drain", "binds/s", values)
    assert figure.noise_text == expectation
    assert expectation in as_text(Report("title", [figure]))


def test_no_figure_of_the_document_has_a_noise_of_zero() -> None:
    """Only what was zero in every repetition has none."""
    rows = [line.split("|") for line in (ROOT / "docs" / "figures.md").read_text().splitlines() if "| 0% |" in line]
    assert {row[2].strip() for row in rows} <= {"0.00"}


def test_the_picture_of_peers_is_drawn_from_the_present_tables() -> None:
    """After a change of docs/figures.md: ``python -m tests.benchmarks.peers``."""
    page = FIGURES.read_text(encoding="utf-8")
    assert PICTURE.read_text(encoding="utf-8") == drawn(figures_of(page))
    with pytest.raises(KeyError, match="KAI-Scheduler"):
        drawn(figures_of(page.partition("## KAI-Scheduler")[0]))


def test_a_figure_has_the_date_of_its_section() -> None:
    row = "| ours: drain | 2.00 | binds/s | 1 run |  |  |"
    page = f"## A\n\n{row}\n## B\n\nrun (2026-11-23, alone):\n\n{row.replace('ours', 'dated')}\n"
    (name, figure), *rest = figures_of(page).items()
    assert (name, figure.date, figure.text, rest) == ("dated: drain", "2026-11-23", "2.0 binds/s  (1 run)", [])
