"""A figure that was measured once has no noise: tables say "1 run" instead."""

import pytest

from tests.benchmarks.report import Figure, Report, as_text


@pytest.mark.parametrize(
    ("values", "expectation"),
    [
        pytest.param((2.0,), "1 run", id="once"),
        pytest.param((1.0, 2.0, 3.0), "100%", id="three-times"),
    ],
)
def test_the_noise_of_a_figure(values: tuple[float, ...], expectation: str) -> None:
    figure = Figure("drain", "binds/s", values)
    assert figure.noise_text == expectation
    assert expectation in as_text(Report("title", [figure]))
