"""Short stories with one fault at one of their requests: a part of them; ``make simulate-stories`` runs all."""

import pytest

from tests.simulation.command import simulate
from tests.simulation.stories import BIND, CALLS, KINDS

# Of all scenes one of so many is played, each story undisturbed as well: half a minute of CPU.
PART = 80
# No scene has this number: only the undisturbed story is played.
NONE = 1_000_000

# The calls of a bind that nothing disturbs, until two minutes after it, without Leases, events and watches. A request
# that is woken by a write of its own reconciler makes more. Provisioning waits twice, each time with a live read of
# the request, and has a finalizer: it is withdrawn if no provisioner answers.
CALLS_OF_A_BIND = {"plain": 14, "provision": 24}


@pytest.mark.parametrize(("kind", "limit"), CALLS_OF_A_BIND.items())
def test_an_undisturbed_bind_makes_few_calls(kind: str, limit: int) -> None:
    outcome = simulate("stories", "--kinds", kind, "--stories", BIND, "--part", str(NONE))
    assert outcome.violations == {}
    assert outcome.counts[CALLS] <= limit


@pytest.mark.parametrize("kind", KINDS)
def test_one_fault_at_one_request_violates_nothing(kind: str) -> None:
    outcome = simulate("stories", "--kinds", kind, "--part", str(PART))
    assert outcome.violations == {}
    assert outcome.counts["bound"] > 0
