"""Random runs of the reconciler: the same seeds every time; ``make simulate`` runs new ones."""

import pytest

from tests.simulation.command import simulate
from tests.simulation.plans import FOCUSES

# Of each focus; together about half a minute of CPU.
SEEDS = 4


# Violations that are known and not corrected yet: the focus stays in the tests, so that a correction shows.
OPEN = {
    "late": "seed 1: a late label gives a running pod a group of another request, and its device is not reserved",
    "releases": "seed 0: a reservation pod without users stays until the resync",
}


@pytest.mark.parametrize(
    "focus",
    [
        pytest.param(focus, marks=[pytest.mark.xfail(reason=OPEN[focus], strict=False)] if focus in OPEN else [])
        for focus in FOCUSES
        if focus not in ("lag", "overlap")
    ],
)
def test_nothing_is_violated_in_random_runs(focus: str) -> None:
    outcome = simulate("seeds", "--focus", focus, "--first", "0", "--count", str(SEEDS))
    assert outcome.violations == {}
    assert outcome.totals["runs"] == SEEDS
    assert outcome.counts["bound"] > 0


def test_equal_seeds_give_equal_runs() -> None:
    arguments = ("seeds", "--focus", "general,late,kill", "--first", "7", "--count", "3")
    assert simulate(*arguments) == simulate(*arguments)
