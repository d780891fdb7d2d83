"""Random runs of the reconciler: other seeds every day; ``make simulate`` runs new ones at any time."""

from datetime import UTC, datetime

from tests.simulation.command import simulate

# As many seeds as that permits; CI runs an hour of them every night.
SECONDS = 10


def test_nothing_is_violated_in_random_runs() -> None:
    first = 1000 * datetime.now(UTC).toordinal()
    outcome = simulate("seeds", "--first", str(first), "--seconds", str(SECONDS))
    assert outcome.violations == {}
    assert outcome.totals["runs"] > 0


def test_equal_seeds_give_equal_runs() -> None:
    arguments = ("seeds", "--focus", "general,outages", "--first", "7", "--count", "1")
    assert simulate(*arguments) == simulate(*arguments)
