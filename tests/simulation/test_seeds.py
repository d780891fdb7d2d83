"""Random runs of the reconciler: the same seeds every time; ``make simulate`` runs new ones."""

import pytest

from tests.simulation.command import simulate
from tests.simulation.plans import FOCUSES

# Of each focus; with the rest of the folder at most a minute of CPU.
SEEDS = 2


# Seeds that once failed, with what they found.
FOUND = (
    ("late", 1, "a bound pod is labelled for another request, because its watch still shows it as unbound"),
    ("late", 16, "a device that a rival's request only lists is kept, and nothing checks it when that request ends"),
    ("releases", 49, "the end of a device's last user is checked while a claim keeps the device, and not again"),
    ("lag", 5104, "what is remembered of requests that no watch has shown is never dropped"),
    ("releases", 5207, "a reservation pod without users stays until the resync"),
    ("rivals", 90161, "a Binding without a reply is repeated after its request is known as withdrawn"),
    (
        "restores",
        1795684120,
        "a watch goes on at a version that a restored etcd has not reached again",
    ),
    ("restores", 1795683174, "a cached request is bound whose version a restored etcd has assigned to the next one"),
    ("releases", 96290, "none: a check took the Binding of the next pod of the name for that of a withdrawn request"),
)


@pytest.mark.parametrize(("focus", "seed"), [finding[:2] for finding in FOUND], ids=str)
def test_a_seed_that_once_failed_violates_nothing(focus: str, seed: int) -> None:
    assert simulate("seeds", "--focus", focus, "--first", str(seed), "--count", "1").violations == {}


@pytest.mark.parametrize("focus", FOCUSES)
def test_nothing_is_violated_in_random_runs(focus: str) -> None:
    outcome = simulate("seeds", "--focus", focus, "--first", "0", "--count", str(SEEDS))
    assert outcome.violations == {}
    assert outcome.totals["runs"] == SEEDS
    assert outcome.counts["bound"] > 0


def test_equal_seeds_give_equal_runs() -> None:
    arguments = ("seeds", "--focus", "general,late,kill", "--first", "7", "--count", "3")
    assert simulate(*arguments) == simulate(*arguments)
