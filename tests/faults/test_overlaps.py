"""Two overlapping leaders: a late write of the former one arrives when the new one has finished, and changes nothing.

In case of a rollback the write arrives while the new leader still waits for such writes. Here that wait is long
enough for a slow machine; on a real cluster it is the API server's own limit on requests.
"""

from collections.abc import Iterator

import pytest

from tests.faults.endstate import leftovers
from tests.faults.lab import PLUGINS_CONFIG, Lab, open_lab
from tests.faults.matrix import Matrix
from tests.faults.plugin_scenarios import PLUGIN_SCENARIOS
from tests.faults.points import Mode
from tests.faults.scenarios import SCENARIOS, Scenario
from tests.faults.truth import TruthObserver

IN_FLIGHT = "4s"


@pytest.fixture(scope="module")
def patient_lab() -> Iterator[Lab]:
    """A cluster where a new leader waits so long before a rollback that its predecessor's writes have arrived."""
    with open_lab({**PLUGINS_CONFIG, "config.binding.inFlightTimeout": IN_FLIGHT}) as lab:
        yield lab


@pytest.mark.faults
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("scenario", [*SCENARIOS, *PLUGIN_SCENARIOS], ids=lambda s: s.name)
def test_two_leaders_that_overlap(patient_lab: Lab, scenario: Scenario) -> None:
    lab = patient_lab
    with (
        TruthObserver(lab.cluster, leftovers) as truth,
        lab.reconciler("one") as first,
        lab.reconciler("other") as second,
    ):
        second.kill()
        first.restart()
        matrix = Matrix(lab, truth, first, second)
        matrix.sweep(scenario, [Mode.OVERLAP])
        matrix.conclude()
