"""The scheduler under test in every case: the example scheduler, or the one that `BOWLINE_SCHEDULER` names."""

import os
from collections.abc import Iterator

import pytest

from bowline.conformance.case import Case
from bowline.conformance.scheduler import Scheduler, SchedulerCluster, SchedulerStage
from bowline.conformance.scheduler_cases import SCHEDULER_CASES
from tests.kai.team import missing_part
from tests.pairs import own_namespace
from tests.plugins.leftovers import clean_up
from tests.scheduler_conformance.programs import Program, chosen_program
from tests.waiting import LIMIT_S

PROGRAM = chosen_program(os.environ)
_MISSING = None if PROGRAM.argv else missing_part()
pytestmark = pytest.mark.skipif(_MISSING is not None, reason=str(_MISSING))


@pytest.fixture(scope="module")
def running(binder: SchedulerCluster) -> Iterator[Scheduler]:
    """The scheduler, running."""
    with PROGRAM.running(binder.cluster) as scheduler:
        yield scheduler


@pytest.fixture
def stage(binder: SchedulerCluster, running: Scheduler) -> Iterator[SchedulerStage]:
    """A namespace for one case; nothing is left behind."""
    with own_namespace(binder.cluster, binder.pair) as live:
        yield SchedulerStage(binder.cluster, binder.pair, running, LIMIT_S, live.namespace)
        clean_up(live)


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in SCHEDULER_CASES])
def test_the_scheduler_passes(stage: SchedulerStage, case: Case[SchedulerStage]) -> None:
    stage.run(case)


def test_the_command_of_any_scheduler_can_be_named() -> None:
    mine = chosen_program({"BOWLINE_SCHEDULER": "python 'my scheduler.py' --fast", "BOWLINE_SCHEDULER_NAME": "mine"})
    assert mine == Program(["python", "my scheduler.py", "--fast"], "mine")
    assert chosen_program({}) == Program()
