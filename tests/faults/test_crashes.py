"""Wherever a reconciler is killed: the same final state, each effect once, nothing left over.

The simulation kills and disturbs at every request of its stories. Here it is a real process, the chart's rights and
policies, and the API server: all tests include each write of a share; the marker ``faults`` has the other scenarios.
"""

import pytest

from tests.faults.lab import Lab
from tests.faults.matrix import Matrix
from tests.faults.plugin_scenarios import FRACTION, PLUGIN_SCENARIOS
from tests.faults.scenarios import SCENARIOS, Scenario

OTHERS = [
    pytest.param(scenario, marks=pytest.mark.faults)
    for scenario in (*SCENARIOS, *PLUGIN_SCENARIOS)
    if scenario is not FRACTION
]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("scenario", [FRACTION, *OTHERS], ids=lambda scenario: scenario.name)
def test_a_crash_before_the_reply_to_any_write_changes_nothing(lab: Lab, scenario: Scenario) -> None:
    with lab.reconciler("crashing") as reconciler:
        matrix = Matrix(lab, reconciler)
        matrix.sweep(scenario)
        matrix.conclude()
