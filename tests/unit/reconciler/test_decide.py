"""The decision table, row by row."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bowline.api import names
from bowline.api.bindrequest import AllocationKind, BindRequest
from bowline.api.meta import ObjectKey, ObjectUID, ResourceVersion
from bowline.api.node_view import NodeView
from bowline.api.taints import CORDONED
from bowline.framework.config import Binding, GpuSharingSettings, Settings
from bowline.framework.interface.status import UNLIMITED, Answers, Status
from bowline.framework.reason import Reason, Suggestion
from bowline_reconciler.decide.actions import (
    Action,
    Attempt,
    Complete,
    DropFinalizer,
    Fail,
    Forget,
    RequeueAfter,
    Rollback,
    SetOwner,
    Wait,
)
from bowline_reconciler.decide.decide import ReadLive, decide
from bowline_reconciler.decide.snapshot import FRESH_CONTACT, Absent, PodView, Snapshot, Target, Times, is_withdrawn
from tests.builders import request

CREATED = datetime(2026, 1, 1, tzinfo=UTC)
SETTINGS = Settings(scheduler_names=("ours",), binding=Binding(wait_timeout=timedelta(seconds=600)))
POD = PodView(
    ObjectUID("pod-uid"), ResourceVersion("7"), "", deleting=False, has_ended=False, gates=(), scheduler="ours"
)
NODE = NodeView(deleting=False)
TAINTED = NodeView(deleting=False, taints=({"key": "gpu", "value": "broken", "effect": "NoSchedule"},))
SERVED = Answers(frozenset({AllocationKind.REGULAR}))
HELD = replace(SERVED, holders=("a",))


LIVE = frozenset(Target)


def seen(req: BindRequest | None = None, **change: Any) -> Snapshot:
    """What is observed when everything has just been read live."""
    current_request = req if req is not None else request()
    whole = Snapshot(current_request, POD, NODE, live=LIVE, answers=SERVED)
    return replace(whole, **change)


def withdrawn(why: str) -> Rollback:
    return Rollback(Status.fatal(why, Reason.SUPERSEDED))


def fails(reason: Reason, decision: Action | ReadLive) -> bool:
    return isinstance(decision, Fail) and decision.status.reason is reason


OURS: dict[str, Any] = {"finalizers": [names.FINALIZER]}
DELETING: dict[str, Any] = {"deletionTimestamp": "2026-01-01T00:00:30Z"}
ON_NODE = replace(POD, node="node-0")
# Bound by this request before a client changed its node.
BOUND_BEFORE = replace(POD, node="node-9", prepared_for="request-uid")


@pytest.mark.parametrize(
    ("observation", "expectation"),
    [
        pytest.param(seen(request(**OURS, **DELETING)), withdrawn("the request was deleted"),
            id="deleting with our finalizer is rolled back"),
        pytest.param(seen(request(**OURS, **DELETING), pod=ON_NODE), DropFinalizer(),
            id="deleting with our finalizer, pod on our node: no rollback"),
        pytest.param(seen(request(**OURS, **DELETING), pod=replace(ON_NODE, uid=ObjectUID("other"))),
            withdrawn("the request was deleted"), id="a namesake on our node does not stop the rollback"),
        pytest.param(seen(request(**DELETING)), Forget(), id="deleting without our finalizer is forgotten"),
        pytest.param(seen(request({"phase": "Failed"}, **OURS)), Rollback(Status.fatal("the request has failed")),
            id="failed with our finalizer continues its rollback"),
        pytest.param(seen(request(**OURS), uninstalling=True),
            withdrawn("Bowline is being uninstalled, so it does not bind the pod"),
            id="uninstalling: a request in progress is rolled back"),
        pytest.param(seen(request(**OURS), uninstalling=True, pod=ON_NODE), Complete(),
            id="uninstalling: a bound one completes"),
        pytest.param(seen(uninstalling=True), Forget(), id="uninstalling: nothing is attempted"),
        pytest.param(seen(request({"phase": "Failed"})), Forget(), id="fault 5: failed is never retried"),
        pytest.param(seen(request({"phase": "Succeeded"})), Forget(), id="succeeded is done"),
        pytest.param(seen(request({"phase": "Succeeded"}, **OURS)), DropFinalizer(),
            id="succeeded drops our finalizer"),
        pytest.param(seen(request({"phase": "Succeeded"}, **OURS), answers=HELD), Forget(),
            id="held: succeeded keeps our finalizer until its pod has ended"),
        pytest.param(seen(request(**OURS, **DELETING), pod=ON_NODE, answers=HELD), Complete(),
            id="held: deleting, pod on our node: completes"),
        pytest.param(seen(request(**OURS, **DELETING), answers=HELD), withdrawn("the request was deleted"),
            id="held: a pod that is not bound is rolled back"),
        pytest.param(seen(request(uid="")), SetOwner(POD.uid), id="without a UID the present pod becomes the owner"),
        pytest.param(seen(request(uid=""), pod=replace(POD, created=CREATED + timedelta(seconds=10))),
            SetOwner(POD.uid), id="without a UID: a pod created shortly after its request"),
        pytest.param(seen(pod=Absent.NOT_IN_CACHE), ReadLive(Target.POD), id="a pod not in the cache is read live"),
        pytest.param(seen(request(uid=""), pod=Absent.NOT_IN_CACHE), ReadLive(Target.POD),
            id="without a UID: a pod not in the cache is read live"),
        pytest.param(seen(pod=ON_NODE), Complete(), id="pod on the selected node is success"),
        pytest.param(seen(request(**OURS, generation=2), pod=BOUND_BEFORE), Complete(),
            id="bound, then the decision was changed: success"),
        pytest.param(seen(request(**OURS, **DELETING, generation=2), pod=BOUND_BEFORE), DropFinalizer(),
            id="bound, then the decision was changed and the request deleted: no rollback"),
        pytest.param(seen(node=Absent.NOT_IN_CACHE), ReadLive(Target.NODE),
            id="a node not in the cache is read live"),
        pytest.param(seen(times=Times(retry_in=timedelta(seconds=5))), RequeueAfter(timedelta(seconds=5)),
            id="a backoff has not ended"),
        pytest.param(seen(), Attempt(), id="otherwise attempt"),
        pytest.param(seen(live=frozenset()), Attempt(), id="a first attempt follows the request's event"),
        pytest.param(seen(answers=replace(SERVED, effects=frozenset({"a"}))), Attempt(frozenset({"a"})),
            id="with side effects, behind the finalizer"),
    ],
)  # fmt: skip
def test_decision(observation: Snapshot, expectation: Action | ReadLive) -> None:
    assert decide(observation, SETTINGS) == expectation


@pytest.mark.parametrize(
    ("sharing", "value"),
    [(False, "config.gpuSharing.enabled: true"), (True, "config.plugins.gpu_sharing.enabled: true")],
)
def test_a_share_while_sharing_is_off_names_the_value_that_switches_it_on(sharing: bool, value: str) -> None:
    settings = SETTINGS.model_copy(update={"gpu_sharing": GpuSharingSettings(enabled=sharing)})
    action = decide(seen(request(receivedResourceType="Fraction")), settings)
    assert isinstance(action, Fail)
    assert action.status.reasons[0] == f"GPU sharing is off; the chart's value {value} switches it on"


@pytest.mark.parametrize(
    ("observation", "reason"),
    [
        pytest.param(seen(request(podName="")), Reason.INVALID, id="no pod name"),
        pytest.param(seen(request(podName="other")), Reason.INVALID, id="another name than its pod"),
        pytest.param(seen(pod=Absent.NOT_FOUND), Reason.POD_GONE, id="pod deleted"),
        pytest.param(seen(pod=Absent.UNREADABLE), Reason.INVALID, id="a pod that is not decoded"),
        pytest.param(seen(pod=replace(POD, tolerations=({"operator": "Exists"},) * 513)), Reason.INVALID,
            id="many tolerations"),
        pytest.param(seen(pod=replace(POD, uid=ObjectUID("next"))), Reason.POD_GONE, id="same-named successor"),
        pytest.param(seen(request(uid=""), pod=replace(POD, created=CREATED + timedelta(seconds=11))),
            Reason.POD_GONE, id="without a UID: a pod created long after the request"),
        pytest.param(seen(pod=replace(POD, node="node-9")), Reason.BOUND_ELSEWHERE, id="bound elsewhere"),
        pytest.param(seen(pod=replace(POD, deleting=True)), Reason.POD_GONE, id="unbound pod deleting"),
        pytest.param(seen(pod=replace(POD, has_ended=True)), Reason.POD_GONE, id="unbound pod ended"),
        pytest.param(seen(request(receivedResourceType="Odd")), Reason.INVALID, id="a foreign CRD let a bad spec in"),
        pytest.param(seen(request(receivedResourceType="Fraction")), Reason.NO_PLUGIN,
            id="a fraction without a plugin"),
        pytest.param(seen(request(resourceClaimAllocations=[{"name": "c", "allocation": {}}])), Reason.NO_PLUGIN,
            id="claims without a plugin"),
        pytest.param(seen(pod=replace(POD, scheduler="default-scheduler")), Reason.NOT_OURS, id="not ours"),
        pytest.param(seen(replace(request(), key=ObjectKey("kube-system", "pod"))), Reason.NOT_OURS,
            id="a namespace of the cluster's own"),
        pytest.param(seen(node=Absent.NOT_FOUND), Reason.NODE_GONE, id="node deleted"),
        pytest.param(seen(node=NodeView(deleting=True)), Reason.NODE_GONE, id="node deleting"),
        pytest.param(seen(node=TAINTED), Reason.NODE_UNSCHEDULABLE, id="a taint that is not tolerated"),
        pytest.param(seen(node=TAINTED, times=Times(retry_in=timedelta(seconds=5))), Reason.NODE_UNSCHEDULABLE,
            id="a taint during a backoff"),
    ],
)  # fmt: skip
def test_terminal_failures(observation: Snapshot, reason: Reason) -> None:
    assert fails(reason, decide(observation, SETTINGS))


def test_a_request_without_pod_gets_the_grace_of_apply_order() -> None:
    lonely = seen(request(uid=""), pod=Absent.NOT_FOUND)
    early = replace(lonely, times=Times(age=timedelta(seconds=9)))
    assert decide(early, SETTINGS) == RequeueAfter(timedelta(seconds=1))
    assert fails(Reason.POD_GONE, decide(replace(lonely, times=Times(age=timedelta(seconds=10))), SETTINGS))


@pytest.mark.parametrize(
    ("misnamed", "expectation"),
    [
        pytest.param(request(podName="other", **DELETING), Forget(), id="deleting"),
        pytest.param(
            request(podName="other", **OURS, **DELETING), DropFinalizer(), id="deleting, with the finalizer"
        ),
        pytest.param(request({"phase": "Failed"}, podName="other", **OURS), DropFinalizer(), id="failed by another"),
    ],
)
def test_of_a_request_with_another_name_than_its_pod_nothing_is_rolled_back(
    misnamed: BindRequest, expectation: Action
) -> None:
    assert decide(seen(misnamed, pod=POD), SETTINGS) == expectation


def is_gated(wait_time: timedelta) -> Snapshot:
    times = Times(timedelta(days=9), wait_time, FRESH_CONTACT)
    return seen(pod=replace(POD, gates=("example.com/quota",)), times=times)


def test_a_gated_pod_is_awaited_until_the_wait_timeout() -> None:
    decision = decide(is_gated(timedelta()), SETTINGS)
    assert isinstance(decision, Wait)
    assert decision.left == timedelta(seconds=600), "the age of the request does not count"
    end = decide(is_gated(timedelta(seconds=600)), SETTINGS)
    assert isinstance(end, Fail)
    assert (end.status.reason, end.status.suggestion) == (Reason.WAIT_TIMEOUT, Suggestion.RETRY_SAME_NODE)


UNRELEASED: dict[str, Any] = {
    "phase": "Pending",
    "suggestion": "RescheduleElsewhere",
    "failure": {"reason": "DeviceConflict"},
    "conditions": [{"type": "Bound", "status": "False", "reason": "DeviceConflict", "message": "taken"},
        {"type": "RolledBack", "status": "False", "reason": "RollbackFailed", "message": "stuck"}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("observation", "expectation"),
    [
        pytest.param(seen(request(UNRELEASED, **OURS)), Fail(Status.fatal("taken", Reason.DEVICE_CONFLICT,
            Suggestion.RESCHEDULE_ELSEWHERE)), id="the announced failure, not another attempt"),
        pytest.param(seen(request(UNRELEASED)), Fail(Status.fatal("taken", Reason.DEVICE_CONFLICT,
            Suggestion.RESCHEDULE_ELSEWHERE)), id="also without the finalizer"),
        pytest.param(seen(request(UNRELEASED, **OURS), pod=ON_NODE), Complete(), id="unless the pod is bound"),
    ],
)  # fmt: skip
def test_a_rollback_that_is_not_complete_is_continued(observation: Snapshot, expectation: Action | ReadLive) -> None:
    assert decide(observation, SETTINGS) == expectation


ENDING = Fail(Status.fatal("taken", Reason.DEVICE_CONFLICT))


@pytest.mark.parametrize(
    ("observation", "target"),
    [
        pytest.param(seen(request({"failedAttempts": 1})), Target.REQUEST, id="a retry"),
        pytest.param(seen(was_delayed=True), Target.REQUEST, id="an attempt that something has delayed"),
        pytest.param(seen(request(uid="")), Target.POD, id="an owner"),
        pytest.param(seen(request(**OURS, **DELETING)), Target.POD, id="a rollback"),
        pytest.param(seen(request(**OURS), ending=ENDING), Target.POD, id="a failure with side effects"),
        pytest.param(seen(request(UNRELEASED)), Target.POD, id="a failure whose rollback has begun"),
        pytest.param(seen(pod=Absent.NOT_FOUND), Target.POD, id="no pod"),
        pytest.param(seen(pod=replace(POD, node="node-9")), Target.POD, id="a pod on another node"),
        pytest.param(is_gated(timedelta(seconds=600)), Target.POD, id="a gate for too long"),
        pytest.param(seen(node=NodeView(deleting=True)), Target.NODE, id="no node"),
        pytest.param(seen(node=TAINTED), Target.NODE, id="a taint"),
    ],
)
def test_what_is_read_live_before_it_counts(observation: Snapshot, target: Target) -> None:
    decision = decide(observation, SETTINGS)
    assert not isinstance(decision, ReadLive)
    assert decide(replace(observation, live=LIVE - {target}), SETTINGS) == ReadLive(target)
    assert decide(replace(observation, live=frozenset({target})), SETTINGS) == decision


def test_the_reason_of_a_failure_reaches_its_rollback() -> None:
    fact = {"reason": "DeviceConflict", "plugin": "gpu_sharing"}
    failure = request({**UNRELEASED, "phase": "Failed", "failure": fact}, **OURS)
    why = Status.fatal("taken", Reason.DEVICE_CONFLICT, Suggestion.RESCHEDULE_ELSEWHERE)
    assert decide(seen(failure), SETTINGS) == Rollback(why.from_plugin("gpu_sharing"))


def test_a_taint_is_named_and_a_toleration_ends_its_effect() -> None:
    decision = decide(seen(node=TAINTED), SETTINGS)
    assert isinstance(decision, Fail)
    why = "node node-0 had the taint gpu=broken:NoSchedule, which pod default/pod does not tolerate"
    assert (decision.status.reasons[0], decision.status.suggestion) == (why, Suggestion.RESCHEDULE_ELSEWHERE)
    tolerant_pod = replace(POD, tolerations=({"key": "gpu", "operator": "Exists"},))
    assert decide(seen(node=TAINTED, pod=tolerant_pod), SETTINGS) == Attempt()


@pytest.mark.parametrize(
    ("current", "pod", "expectation"),
    [
        pytest.param(request(), POD, False, id="unchanged"),
        pytest.param(Absent.NOT_IN_CACHE, Absent.NOT_IN_CACHE, False, id="absence from stores proves nothing"),
        pytest.param(Absent.NOT_FOUND, POD, True, id="request deleted"),
        pytest.param(request(**DELETING), POD, True, id="request deleting"),
        pytest.param(replace(request(), uid=ObjectUID("again")), POD, True, id="request remade"),
        pytest.param(request(node="node-9"), POD, True, id="another decision, which another project's CRD permits"),
        pytest.param(request(), replace(POD, deleting=True), True, id="pod deleting"),
        pytest.param(request(), replace(POD, uid=ObjectUID("next")), True, id="pod remade"),
        pytest.param(request({"phase": "Failed"}), POD, True, id="another process reports Failed"),
        pytest.param(request({"phase": "Pending"}), POD, False, id="a Pending request continues"),
    ],
)
def test_is_withdrawn(current: BindRequest | Absent, pod: PodView | Absent, expectation: bool) -> None:
    assert is_withdrawn(request(), current, pod) is expectation


def test_an_attempt_is_cancelled_when_its_node_is_deleted() -> None:
    assert is_withdrawn(request(), request(), POD, node_is_lost=True)


NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
GRACE = SETTINGS.binding.node_health_grace


@pytest.mark.parametrize(
    ("taints", "ill_for", "expectation"),
    [
        pytest.param((NOT_READY,), timedelta(), Wait, id="a blip"),
        pytest.param((NOT_READY,), GRACE - timedelta(seconds=1), Wait, id="not for long enough"),
        pytest.param((NOT_READY,), GRACE, Fail, id="lasting"),
        pytest.param(({**NOT_READY, "key": "node.kubernetes.io/unreachable"},), timedelta(), Wait, id="unreachable"),
        pytest.param((NOT_READY, CORDONED), timedelta(), Fail, id="cordoned as well"),
        pytest.param(({**NOT_READY, "key": "example.com/broken"},), timedelta(), Fail, id="another taint"),
    ],
)
def test_the_health_of_a_node_ends_a_request_only_when_it_lasts(
    taints: tuple[dict[str, str], ...], ill_for: timedelta, expectation: type
) -> None:
    observation = replace(seen(node=NodeView(deleting=False, taints=taints)), node_ill_for=ill_for)
    decision = decide(observation, SETTINGS)
    assert isinstance(decision, expectation)
    if isinstance(decision, Wait):
        assert (decision.left, decision.poll) == (UNLIMITED, GRACE - ill_for)
        assert not decision.limits, "it neither ends nor extends another wait"
    else:
        assert fails(Reason.NODE_UNSCHEDULABLE, decision)
    tolerant = replace(POD, tolerations=({"operator": "Exists"},))
    assert decide(replace(observation, pod=tolerant), SETTINGS) == Attempt()
