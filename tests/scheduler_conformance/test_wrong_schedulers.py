"""Schedulers with one mistake each: the case in which it matters fails with the rule's name."""

import os

import pytest

from bowline.conformance.scheduler import BrokenRuleError, SchedulerCluster, SchedulerStage
from bowline.conformance.scheduler_cases import SCHEDULER_CASES
from tests.pairs import own_namespace
from tests.plugins.leftovers import clean_up
from tests.scheduler_conformance.programs import SETTING, wrong_program
from tests.waiting import LIMIT_S

pytestmark = [pytest.mark.schedulers, pytest.mark.skipif(SETTING in os.environ, reason="another scheduler is tested")]

# Cases and rules that end by waiting for what the wrong scheduler never does, and how long: several passes.
IDLE = {
    *("two-schedulers", "unfinished-requests", "repeated-failure", "removed-cause", "too-large", "stale-node"),
    *("successor", "failed-node", "delete-pod", "counts-a-reservation-once", "frees-what-has-ended"),
}
IDLE_LIMIT_S = 30.0


@pytest.mark.parametrize(
    ("program", "name", "rule"),
    [
        pytest.param("sets_no_owner", "first-decision", "owner", id="no owner"),
        pytest.param("takes_foreign_pods", "first-decision", "own-pods-only", id="pods of another scheduler"),
        pytest.param("counts_own_pods_only", "two-schedulers", "counts-what-is-used", id="own pods only"),
        pytest.param("ignores_failures", "repeated-failure", "replaces-failed-requests", id="failures are ignored"),
        pytest.param("leaves_failures", "removed-cause", "decides-again-when-the-cause-has-gone",
            id="a failure without a suggestion is final"),
        pytest.param("reports_nothing", "too-large", "reports-why", id="no event"),
        pytest.param("ignores_nodes", "stale-node", "leaves-unsuitable-nodes", id="the first node, whatever happens"),
        pytest.param("ignores_unfinished_requests", "unfinished-requests", "counts-unfinished-requests",
            id="bound pods only"),
        pytest.param("counts_ended_pods", "ending-pods", "frees-what-has-ended", id="ended pods for ever"),
        pytest.param("forgets_terminating_pods", "ending-pods", "counts-what-is-used", id="terminating pods"),
        pytest.param("ignores_init_containers", "other-needs", "counts-init-containers", id="no init containers"),
        pytest.param("allocates_nothing", "other-needs", "allocates-claims", id="no allocation of a claim"),
        pytest.param("counts_no_pods", "other-needs", "counts-every-resource", id="the number of pods"),
        pytest.param("ignores_cordons", "unsuitable-node", "leaves-unsuitable-nodes", id="a cordoned node"),
        pytest.param("takes_sidecars_as_init", "other-needs", "counts-sidecars", id="the largest container only"),
        pytest.param("remembers_names", "successor", "decides-for-a-successor", id="each name once"),
        pytest.param("knows_bare_names", "two-schedulers", "decides", id="names of all namespaces"),
        pytest.param("ignores_gates", "gates", "waits-for-gates", id="gates"),
        pytest.param("repeats_at_once", "denied-request", "pauses-after-a-denial", id="no pause after a denial"),
        pytest.param("returns_to_the_node", "failed-node", "reschedules-elsewhere", id="the same node again"),
        pytest.param("deletes_failed_pods", "repeated-failure", "deletes-no-pods", id="the pod of a failed request"),
        pytest.param("ignores_failures", "delete-pod", "deletes-a-controllers-pod", id="keeps a controller's pod"),
        pytest.param("deletes_failures_at_once", "removed-cause", "pauses-after-a-failure",
            id="no pause after a failure"),
        pytest.param("deletes_each_failure", "others-requests", "own-pods-only", id="each failed request"),
        pytest.param("deletes_successes_by_name", "first-decision", "deletes-by-uid", id="a delete by name"),
        pytest.param("bans_nodes", "failed-node", "frees-the-node", id="a node is left by all pods"),
        pytest.param("decides_twice", "unfinished-requests", "waits-for-the-result", id="decides once more"),
        pytest.param("decides_bound_pods", "first-decision", "unbound-pods-only", id="a pod that is bound"),
        pytest.param("decides_deleted_pods", "gates", "decides-no-deleted-pods", id="a pod that is deleted"),
        pytest.param("sets_no_condition", "too-large", "reports-why", id="no condition"),
        pytest.param("counts_no_shares", "shares", "joins-a-group", id="shares count nothing"),
        pytest.param("joins_any_group", "shares", "group-of-one-node", id="a group of another node"),
        pytest.param("overfills_a_group", "shares", "counts-shares", id="one group for all shares"),
        pytest.param("takes_mebibytes_as_gibibytes", "shares", "states-the-share", id="another unit of memory"),
        pytest.param("takes_one_device", "shares", "names-groups", id="one device of two"),
        pytest.param("counts_reservations", "shares", "counts-a-reservation-once", id="a reservation and its group"),
        pytest.param("moves_decisions", "first-decision", "changes-no-request", id="patches the spec"),
        pytest.param("binds", "first-decision", "binds-no-pods", id="binds itself"),
        pytest.param("polls", "denied-request", "pauses-between-passes", id="no pause"),
        pytest.param("repeats_events", "too-large", "repeats-no-event", id="an event in each pass"),
        pytest.param("exits_at_a_denial", "denied-request", "survives-a-denial", id="a denial is fatal"),
    ],
)  # fmt: skip
def test_a_wrong_scheduler_fails_by_name(binder: SchedulerCluster, program: str, name: str, rule: str) -> None:
    wrong, limit_s = wrong_program(program), IDLE_LIMIT_S if {name, rule} & IDLE else LIMIT_S
    (case,) = (case for case in SCHEDULER_CASES if case.name == name)
    with own_namespace(binder.cluster, binder.pair) as live:
        with wrong.running(binder.cluster) as scheduler, pytest.raises(BrokenRuleError) as broken:
            SchedulerStage(binder.cluster, binder.pair, scheduler, limit_s, live.namespace).run(case)
        clean_up(live)
    assert broken.value.rule == rule, str(broken.value)
