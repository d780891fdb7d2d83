"""Short stories with one fault at one of their requests: a part of them; ``make simulate-stories`` runs all."""

import pytest

from tests.simulation.command import simulate
from tests.simulation.stories import KINDS

# Of all scenes one of so many is played, each story undisturbed as well: half a minute of CPU.
PART = 80


@pytest.mark.parametrize("kind", KINDS)
def test_one_fault_at_one_request_violates_nothing(kind: str) -> None:
    outcome = simulate("stories", "--kinds", kind, "--part", str(PART))
    assert outcome.violations == {}
    assert outcome.counts["bound"] > 0
