"""Wherever a reconciler is killed: the same final state, and nothing left over.

The simulation kills and disturbs at every request of its stories. Here it is a real process, the chart's rights and
policies, and the API server, with the plugin that writes most: all tests include every third write of a share, others
each day; the marker ``faults`` has all writes, and those of a share that is given up.
"""

from datetime import UTC, datetime

import pytest

from tests.faults.lab import Lab
from tests.faults.matrix import Matrix
from tests.faults.scenarios import FRACTION, FRACTION_BACK, Scenario

PARTS = 3


def crash(lab: Lab, scenario: Scenario, part: slice) -> None:
    """Kill a reconciler before the reply to the writes of this part."""
    with lab.reconciler("crashing") as reconciler:
        matrix = Matrix(lab, reconciler)
        matrix.sweep(scenario, part)
        matrix.conclude()


def test_a_crash_before_the_reply_to_a_write_of_a_share_changes_nothing(lab: Lab) -> None:
    crash(lab, FRACTION, slice(datetime.now(UTC).toordinal() % PARTS, None, PARTS))


@pytest.mark.faults
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("scenario", [FRACTION, FRACTION_BACK], ids=lambda scenario: scenario.name)
def test_a_crash_before_the_reply_to_any_write_changes_nothing(lab: Lab, scenario: Scenario) -> None:
    crash(lab, scenario, slice(None))
