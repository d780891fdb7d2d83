"""While nothing in the cluster changes, cause, since and remedy of a stuck pod do not: three minutes of decisions.

The states are those that the reconciler writes; the scheduler deletes a Failed request and decides again.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bowline.api.bindrequest import decode_bind_request
from bowline.api.meta import ObjectKey, ObjectRef, format_micro_time, format_time
from bowline.framework.config import Binding
from bowline.framework.interface.status import Status
from bowline.framework.reason import Reason, Suggestion
from bowline.testing.builders import bind_request, pod, stored
from bowline_cli.diagnosis import explain
from bowline_cli.facts import Explanation, Facts
from bowline_reconciler.decide.actions import Fail, Outcome, PodBound, RetryAt, Wait
from bowline_reconciler.decide.outcome import classify_outcome
from bowline_reconciler.decide.report import Unfinished, failure_report, unfinished_status, waiting_status
from bowline_reconciler.decide.snapshot import Times, stored_wait
from bowline_reconciler.drive.pod_conditions import stored_conditions

START, LENGTH = datetime(2026, 1, 1, tzinfo=UTC), timedelta(minutes=3)
SECOND = timedelta(seconds=1)
LIMITS = Binding(wait_timeout=timedelta(minutes=10))
CLAIM = ObjectRef("v1", "PersistentVolumeClaim", ObjectKey("default", "dataset"))


class Cluster:
    """A pod with one cause: ``decide`` writes the states of one decision, and advances the time."""

    def __init__(self, status: Status) -> None:
        self.status, self.now = status.from_plugin("example"), START
        self.pod = {**stored(pod()), "status": {"phase": "Pending"}}
        self.request: dict[str, Any] | None = None

    def explanation(self) -> Explanation:
        spec = {"holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": format_micro_time(self.now)}
        lease = {"metadata": {"name": "lease", "namespace": "bowline-system"}, "spec": spec}
        key = ObjectKey("default", "pod")
        explanation = explain(Facts(key, self.now, self.pod, self.request, leases=[lease], objects={CLAIM: None}))
        assert explanation is not None
        return explanation

    def decide(self, node: str) -> Iterator[Explanation]:
        self.request = stored(bind_request("pod", node))
        self.request["metadata"]["creationTimestamp"] = format_time(self.now)
        self.request["status"] = {"reason": "Created: nothing is reported yet"}
        began = self.now
        yield self.explanation()
        while True:
            times = Times(wait_time=self.now - began)
            outcome = Outcome(self.status, self.now)
            request = decode_bind_request(self.request)
            action = classify_outcome(request, outcome, LIMITS, 0.5, times, self.now)
            if isinstance(action, Wait):
                self.now += 5 * SECOND
                self.request["status"] = waiting_status(request, action, began, self.now)
            elif isinstance(action, RetryAt):
                self.request["status"] = action.report.status
                self.report(action.report.condition)
                self.now += action.pause
            else:
                assert isinstance(action, Fail)
                report = failure_report(request, action, True, self.pod, self.now)
                self.request["status"] = report.status
                yield self.explanation()
                self.now += SECOND
                self.report(report.condition)
                yield self.explanation()
                self.request = None
                yield self.explanation()
                self.now += 4 * SECOND
                return
            yield self.explanation()

    def report(self, condition: PodBound | None) -> None:
        assert condition is not None
        entries = stored_conditions(self.pod, condition, self.now)
        others = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "none fits"}]
        self.pod = {**self.pod, "status": {"phase": "Pending", "conditions": [*others, *entries]}}


SAME_NODE = Status.fatal("no seat", "NoSeat", Suggestion.RETRY_SAME_NODE)


@pytest.mark.parametrize(
    "status",
    [
        pytest.param(Status.wait("claim dataset does not exist", CLAIM, timeout=30 * SECOND), id="a wait"),
        pytest.param(Status.wait("the agent is silent", CLAIM, timeout=30 * SECOND), id="a wait without a name"),
        pytest.param(Status.retry("exceeded quota: none"), id="retries"),
        pytest.param(Status.fatal("no volume of class none is free", Reason.VOLUME_CONFLICT,
            Suggestion.RESCHEDULE_ELSEWHERE), id="a failure on every node"),
        pytest.param(SAME_NODE, id="a plugin's own reason"),
    ],
)  # fmt: skip
def test_nothing_changes_while_nothing_in_the_cluster_does(status: Status) -> None:
    cluster, explanations, decisions = Cluster(status), list[Explanation](), 0
    while cluster.now < START + LENGTH:
        explanations += cluster.decide(f"node-{decisions % 2}")
        decisions += 1
    assert decisions > 1
    first = explanations[1]
    for explanation in explanations[1:]:
        assert (explanation.cause, explanation.since, explanation.commands) == (
            first.cause,
            first.since,
            first.commands,
        )
        assert explanation.is_stuck
        assert "another node" not in explanation.until or status != SAME_NODE
    assert first.cause.endswith("[example]")
    assert first.since is not None
    assert first.since <= START + 5 * SECOND


def test_calls_that_fail_while_a_wait_is_counted_are_the_cause_and_the_wait_goes_on() -> None:
    cluster = Cluster(Status.wait("claim dataset does not exist", CLAIM, timeout=30 * SECOND))
    decision = cluster.decide("node-0")
    next(decision), next(decision)
    assert cluster.request is not None
    waiting = decode_bind_request(cluster.request)
    cluster.request["status"] = unfinished_status(waiting, Unfinished("Retrying", "503", until=START), cluster.now)
    unfinished = decode_bind_request(cluster.request)
    assert (cluster.explanation().cause, cluster.explanation().since) == ("503", START)
    assert stored_wait(unfinished, cluster.now, is_limited=False) == 5 * SECOND
