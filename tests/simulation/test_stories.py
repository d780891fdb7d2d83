"""Short stories with one fault at one of their calls: a part of them, another one every day.

``make simulate-stories`` runs all.
"""

from datetime import UTC, datetime

import pytest

from tests.simulation.command import simulate
from tests.simulation.stories import BIND, CALLS, KINDS

# Of so many parts one is played, each story undisturbed as well; CI plays a twentieth every night.
PARTS = 500
# No story has so many scenes: only the undisturbed one is played.
NONE = "1/1000000"

# The calls of two binds that nothing disturbs, until two minutes after each, without Leases, events and watches. A
# request that is woken by a write of its own reconciler makes more. Provisioning waits twice, each time with a live
# read of the request, has a finalizer (it is withdrawn if no provisioner answers), and its node is read twice.
CALLS_OF_TWO_BINDS = {"plain": 10, "provision": 34}


@pytest.mark.parametrize(("kind", "limit"), CALLS_OF_TWO_BINDS.items())
def test_an_undisturbed_bind_makes_few_calls(kind: str, limit: int) -> None:
    outcome = simulate("stories", "--kinds", kind, "--stories", BIND, "--part", NONE)
    assert outcome.violations == {}
    assert outcome.counts[CALLS] <= limit


def test_one_fault_at_one_call_violates_nothing() -> None:
    """In one process: the start of one takes as long as some of the stories."""
    outcome = simulate("stories", "--part", f"{datetime.now(UTC).toordinal() % PARTS}/{PARTS}")
    assert outcome.violations == {}
    assert outcome.counts["bound"] > len(KINDS)
