"""Schedulers with one mistake each: the case in which it matters fails with the rule's name."""

import os

import pytest

from bowline.conformance.scheduler import BrokenRuleError, SchedulerCluster, SchedulerStage
from bowline.conformance.scheduler_cases import SCHEDULER_CASES
from tests.pairs import own_namespace
from tests.plugins.leftovers import clean_up
from tests.scheduler_conformance.programs import SETTING, wrong_program

pytestmark = pytest.mark.skipif(SETTING in os.environ, reason="another scheduler is tested")

# Longer than two passes of the example scheduler, and its pause of a node, on a busy machine.
SOON_S = 30.0


@pytest.mark.parametrize(
    ("program", "name", "rule"),
    [
        pytest.param("renames_requests", "first-decision", "named-after-the-pod", id="a new name for each request"),
        pytest.param("ignores_failures", "repeated-failure", "replaces-failed-requests", id="failures are ignored"),
        pytest.param("ignores_nodes", "stale-node", "leaves-unsuitable-nodes", id="the first node, whatever happens"),
    ],
)
def test_a_wrong_scheduler_fails_by_name(binder: SchedulerCluster, program: str, name: str, rule: str) -> None:
    wrong = wrong_program(program)
    (case,) = (case for case in SCHEDULER_CASES if case.name == name)
    with own_namespace(binder.cluster, binder.pair) as live:
        with wrong.running(binder.cluster) as scheduler, pytest.raises(BrokenRuleError) as broken:
            case.run(SchedulerStage(binder.cluster, binder.pair, scheduler, SOON_S, live.namespace))
        clean_up(live)
    assert broken.value.rule == rule
