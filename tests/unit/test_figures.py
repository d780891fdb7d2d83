"""A figure that was measured once has no noise: tables say "1 run" instead."""

import pytest

from tests.benchmarks.report import Figure, Report, as_text
from tests.documents import ROOT


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param((2.0,), "1 run", id="once"),
        pytest.param((2.0, 2.0), "0%", id="twice-the-same"),
        pytest.param((1.0, 2.0, 3.0), "100%", id="three-times"),
    ],
)
def test_the_noise_of_a_figure(values: tuple[float, ...], expected: str) -> None:
    figure = Figure("drain", "binds/s", values)
    assert figure.noise_text == expected
    assert expected in as_text(Report("title", [figure]))


def test_no_figure_of_the_document_has_a_noise_of_zero() -> None:
    """Only what was zero in every repetition has none."""
    rows = [line.split("|") for line in (ROOT / "docs" / "figures.md").read_text().splitlines() if "| 0% |" in line]
    assert {row[2].strip() for row in rows} <= {"0.00"}
