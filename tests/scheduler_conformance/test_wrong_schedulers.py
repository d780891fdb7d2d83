"""Schedulers with one mistake each: the situation in which it matters fails with the rule's name."""

import os

import pytest

from bowline.localcluster.cluster import Cluster
from bowline.localcluster.pair import Pair
from tests.pairs import own_namespace
from tests.plugins.leftovers import clean_up
from tests.scheduler_conformance.programs import SETTING, wrong_program
from tests.scheduler_conformance.situations import SITUATIONS, ConformanceError, Stage

pytestmark = pytest.mark.skipif(SETTING in os.environ, reason="another scheduler is tested")

# Longer than two passes of the example scheduler, and its pause of a node, on a busy machine.
SOON_S = 30.0


@pytest.mark.parametrize(
    ("program", "situation", "rule"),
    [
        pytest.param("renames_requests", "first decision", "named-after-the-pod", id="a new name for each request"),
        pytest.param("ignores_failures", "repeated failure", "replaces-failed-requests", id="failures are ignored"),
        pytest.param("ignores_nodes", "stale node", "leaves-unsuitable-nodes", id="the first node, whatever happens"),
    ],
)
def test_a_wrong_scheduler_fails_by_name(
    binder: tuple[Cluster, Pair], program: str, situation: str, rule: str
) -> None:
    wrong = wrong_program(program)
    with own_namespace(*binder) as live:
        with wrong.running(binder[0]) as processes, pytest.raises(ConformanceError) as broken:
            SITUATIONS[situation](Stage(live, wrong, processes, SOON_S))
        clean_up(live)
    assert broken.value.rule == rule
