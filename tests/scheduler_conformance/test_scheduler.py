"""The scheduler under test in every situation: the example scheduler, or the one that `BOWLINE_SCHEDULER` names."""

import os
from collections.abc import Iterator

import pytest

from bowline.localcluster.cluster import Cluster
from bowline.localcluster.pair import Pair
from tests.kai.team import missing_part
from tests.pairs import own_namespace
from tests.plugins.leftovers import clean_up
from tests.scheduler_conformance.programs import Processes, Program, chosen_program
from tests.scheduler_conformance.situations import SITUATIONS, Stage
from tests.waiting import LIMIT_S

PROGRAM = chosen_program(os.environ)
_MISSING = None if PROGRAM.argv else missing_part(os.environ)
pytestmark = pytest.mark.skipif(_MISSING is not None, reason=str(_MISSING))


@pytest.fixture(scope="module")
def running(binder: tuple[Cluster, Pair]) -> Iterator[Processes]:
    """The scheduler, running."""
    with PROGRAM.running(binder[0]) as processes:
        yield processes


@pytest.fixture
def stage(binder: tuple[Cluster, Pair], running: Processes) -> Iterator[Stage]:
    """A namespace for one situation; nothing is left behind."""
    with own_namespace(*binder) as live:
        yield Stage(live, PROGRAM, running, LIMIT_S)
        clean_up(live)


@pytest.mark.parametrize("situation", SITUATIONS)
def test_situation(stage: Stage, situation: str) -> None:
    SITUATIONS[situation](stage)


def test_the_command_of_any_scheduler_can_be_named() -> None:
    mine = chosen_program({"BOWLINE_SCHEDULER": "python 'my scheduler.py' --fast", "BOWLINE_SCHEDULER_NAME": "mine"})
    assert mine == Program(["python", "my scheduler.py", "--fast"], "mine")
    assert chosen_program({}) == Program()
