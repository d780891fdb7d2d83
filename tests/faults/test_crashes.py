"""Wherever a reconciler is killed, whatever reply is lost: the same end, each effect once, nothing left over.

The short form runs with all tests; the marker ``faults`` has the whole matrix.
"""

import sys

import pytest

from tests.faults.lab import Lab
from tests.faults.matrix import Matrix, Mode
from tests.faults.scenarios import PLAIN, REFUSED, SCENARIOS, Scenario
from tests.faults.truth import TruthObserver

KILLS = (Mode.BEFORE_REPLY, Mode.READ, Mode.AFTER_REPLY, Mode.LOST_REPLY)


@pytest.mark.parametrize("scenario", [PLAIN, REFUSED], ids=lambda s: s.name)
def test_a_crash_before_any_reply_changes_nothing(lab: Lab, truth: TruthObserver, scenario: Scenario) -> None:
    with lab.reconciler("crashing") as reconciler:
        matrix = Matrix(lab, truth, reconciler)
        matrix.sweep(scenario, [Mode.BEFORE_REPLY])
        matrix.verify()
    assert_complete(matrix)


@pytest.mark.faults
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)
def test_every_point_of_the_crash_matrix(lab: Lab, truth: TruthObserver, scenario: Scenario) -> None:
    with lab.reconciler("crashing") as reconciler:
        matrix = Matrix(lab, truth, reconciler)
        matrix.sweep(scenario, KILLS)
        matrix.verify()
    assert_complete(matrix)


@pytest.mark.faults
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("scenario", [PLAIN, REFUSED], ids=lambda s: s.name)
def test_two_leaders_that_overlap(lab: Lab, truth: TruthObserver, scenario: Scenario) -> None:
    with lab.reconciler("one") as one, lab.reconciler("other") as other:
        other.kill()
        one.restart()
        matrix = Matrix(lab, truth, one, other)
        matrix.sweep(scenario, [Mode.OVERLAP])
        matrix.verify()
    assert_complete(matrix)


def assert_complete(matrix: Matrix) -> None:
    """Every write was met: a matrix that no longer disturbs anything must not pass.

    How often somebody who waits looks again depends on time, so that the last of its reads may not come.
    """
    sys.stdout.write("\n".join(["", *matrix.report(), ""]))
    missed = [
        str(run) for run in matrix.runs if run.point and run.point.mode is not Mode.READ and not run.struck.is_set()
    ]
    assert not missed
    assert any(run.point is not None for run in matrix.runs)
