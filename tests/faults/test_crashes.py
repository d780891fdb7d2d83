"""Wherever a reconciler is killed, whatever reply is lost: the same final state, each effect once, nothing left over.

The short form runs with all tests: of each scenario, one request of each kind, the last one, before its reply. The
marker ``faults`` has the complete matrix.
"""

import pytest

from tests.faults.lab import Lab
from tests.faults.matrix import Matrix
from tests.faults.plugin_scenarios import DEVICE_BACK, PLUGIN_SCENARIOS
from tests.faults.points import Mode
from tests.faults.scenarios import GANG, PLAIN, REFUSED, SCENARIOS, Scenario
from tests.faults.truth import TruthObserver

KILLS = (Mode.BEFORE_REPLY, Mode.READ, Mode.AFTER_REPLY, Mode.LOST_REPLY)


@pytest.mark.parametrize("scenario", [PLAIN, REFUSED, DEVICE_BACK, GANG], ids=lambda s: s.name)
def test_a_crash_before_a_reply_changes_nothing(lab: Lab, truth: TruthObserver, scenario: Scenario) -> None:
    with lab.reconciler("crashing") as reconciler:
        matrix = Matrix(lab, truth, reconciler)
        matrix.sweep(scenario, [Mode.BEFORE_REPLY], one_of_each=True)
        matrix.conclude()


@pytest.mark.faults
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("scenario", [*SCENARIOS, *PLUGIN_SCENARIOS], ids=lambda s: s.name)
def test_every_point_of_the_crash_matrix(lab: Lab, truth: TruthObserver, scenario: Scenario) -> None:
    with lab.reconciler("crashing") as reconciler:
        matrix = Matrix(lab, truth, reconciler)
        matrix.sweep(scenario, KILLS)
        matrix.conclude()
