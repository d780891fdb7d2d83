"""Which explanation follows from which objects. The causes on a real cluster: tests/pair/test_explain_live.py."""

import json
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection
from types import SimpleNamespace
from typing import Any

import pytest

from bowline.api import names
from bowline.api.failed_decision import Decision, FailedDecision
from bowline.api.meta import ObjectKey, ObjectRef, format_micro_time, format_time
from bowline.api.request_facts import FailureFact, WaitFact
from bowline_cli.cluster import Api, ApiAnswer
from bowline_cli.diagnosis import explain
from bowline_cli.explain import ExplainedObject, as_json, as_table, as_text, for_reader
from bowline_cli.facts import Explanation, Facts, GangFacts, ReleaseInfo, named_objects
from bowline_cli.kubeconfig import ClusterError, ServerAccess
from bowline_cli.reader import Unread, acquired_at
from bowline_cli.reading import Reading, info_of
from bowline_cli.rights import Rights, rights_of
from bowline_cli.undecided import explain_uncreated

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
KEY = ObjectKey("team", "train")


def pod(**changes: Any) -> dict[str, Any]:
    spec = {"schedulerName": "example-scheduler", **changes.pop("spec", {})}
    metadata = {"name": "train", "namespace": "team", "creationTimestamp": ago(60), **changes.pop("metadata", {})}
    return {"metadata": metadata, "spec": spec, "status": changes}


def request(reason: str = "", phase: str = "Pending", **changes: Any) -> dict[str, Any]:
    metadata = {"name": "train", "namespace": "team", "creationTimestamp": ago(50), **changes.pop("metadata", {})}
    status = {"reason": reason, "phase": phase, **changes}
    return {"metadata": metadata, "spec": {"selectedNode": "gpu-1"}, "status": status}


def lease(holder: str = "a", age_s: float = 1) -> dict[str, Any]:
    return {
        "metadata": {"name": "bowline-reconciler", "namespace": "bowline-system"},
        "spec": {
            "holderIdentity": holder,
            "leaseDurationSeconds": 15,
            "renewTime": format_micro_time(NOW - timedelta(seconds=age_s)),
        },
    }


def ago(seconds: float) -> str:
    return format_time(NOW - timedelta(seconds=seconds))


CLAIM = ObjectRef("v1", "PersistentVolumeClaim", ObjectKey("team", "data"))
HOSTILE = ObjectRef("scheduling.k8s.io/v1beta1", "PodGroup", ObjectKey("team", "--server=x; sh #"))
NAMESPACE = ObjectRef("v1", "Namespace", ObjectKey("", "reservations"))
NODE = ObjectRef("v1", "Node", ObjectKey("", "gpu-1"))
RESERVATION = ObjectRef("v1", "Pod", ObjectKey("reserved", "gpu-1"))
WAIT = WaitFact("plugin volume_binding", (CLAIM,), NOW + timedelta(minutes=10))


def waiting(wait: WaitFact = WAIT, message: str = "claim data is not bound", **changes: Any) -> dict[str, Any]:
    conditions = condition("Prepared", "False", message, reason="Waiting")
    return request("Waiting: words", **{"wait": wait.as_field(), "conditions": conditions, **changes})


def failed_before(
    last_s: float = 20, failures: int = 3, reason: str = "NodeGone", node: str = "gpu-1", **changes: Any
) -> dict[str, Any]:
    """A pod between two decisions."""
    first, last = NOW - timedelta(seconds=300), NOW - timedelta(seconds=last_s)
    failure = FailedDecision(Decision(node, "d"), reason, first, last, failures=failures)
    sentence = condition(names.CONDITION_POD_BOUND, "False", "claim data does not exist", 300)
    return pod(conditions=[*sentence, failure.as_condition(), *changes.pop("conditions", ())])


def explained(**facts: Any) -> Explanation:
    explanation = explain(Facts(KEY, NOW, **{"leases": [lease()], "pod": pod(), **facts}))
    assert explanation is not None
    return explanation


def condition(kind: str, status: str, message: str = "", since: float = 40, reason: str = "") -> list[dict[str, Any]]:
    times = {"lastTransitionTime": ago(since)}
    return [{"type": kind, "status": status, "message": message, "reason": reason, **times}]


GANG = ObjectRef("scheduling.run.ai/v2alpha2", "PodGroup", ObjectKey("team", "pg"))
# Of its pods one has failed, and leaves its place.
SHORT_GANG = GangFacts(GANG, {"spec": {"minMember": 3}}, [pod(), pod(), pod(phase="Failed")], [])

NO_SECRET = {"type": "Warning", "reason": "FailedMount", "message": "secret x not found",
    "source": {"component": "kubelet"}}  # fmt: skip
NO_NODE = {"type": "Warning", "reason": "FailedScheduling", "message": "0/3 nodes fit",
    "reportingComponent": "example-scheduler"}  # fmt: skip
VOLUMES = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
WITH_CLAIM = pod(spec={"nodeName": "gpu-1", "volumes": VOLUMES}, phase="Pending")

DOWN = {
    "metadata": {"name": "gpu-1"},
    "status": {"conditions": condition("Ready", "Unknown", "Kubelet stopped posting node status.", 33)},
}

TABLE = [
    pytest.param({"unreadable": ("bindrequests",)}, "whether a BindRequest names it is not known", "decides", 60,
        id="without the right on requests"),
    pytest.param({"pod": pod(conditions=condition("PodScheduled", "False", "0/3 nodes fit"))},
        "scheduler example-scheduler has found no node: 0/3 nodes fit", "scheduler example-scheduler decides again",
        40, id="the scheduler finds no node"),
    pytest.param({"request": waiting(WaitFact("plugin example"), "data is absent")}, "data is absent",
        "one of the objects changes; there is no deadline", 40, id="a wait without a deadline"),
    pytest.param({"request": waiting()}, "claim data is not bound", "fails with WaitTimeout at 2026-01-01T12:10:00Z",
        40, id="a wait with a deadline"),
    pytest.param({"request": waiting(WaitFact("x", (), NOW - timedelta(seconds=1)))}, "claim data is not bound",
        "it fails with WaitTimeout: its deadline was 2026-01-01T11:59:59Z", 40,
        id="a wait whose deadline has passed"),
    pytest.param({"request": waiting(), "pod": failed_before(reason="WaitTimeout")}, "claim data is not bound",
        "fails with WaitTimeout at", 300, id="a wait of a decision that has failed before"),
    pytest.param({"pod": failed_before(last_s=20)},
        "claim data does not exist", "scheduler example-scheduler decides again", 300, id="between two decisions"),
    pytest.param({"pod": failed_before(last_s=90)}, "claim data does not exist",
        "scheduler example-scheduler decides again; it has not for 1m30s: is it running?", 300,
        id="a failure after which no scheduler decides"),
    pytest.param({"pod": failed_before(last_s=20), "request": request("Created: nothing is reported yet", phase="")},
        "claim data does not exist", "the new decision, for node gpu-1, is reported on", 300,
        id="a new decision after a failure"),
    pytest.param({"request": request("Retrying: busy", nextAttemptTime=ago(-5), startTime=ago(45))}, "busy",
        "the next attempt, at 2026-01-01T12:00:05Z", 45, id="a pause between attempts"),
    pytest.param({"request": request("Retrying: busy", nextAttemptTime=ago(5))}, "busy",
        "the next attempt, which is due", 50, id="an attempt that is due"),
    pytest.param({"request": request("NodeGone: x", "Failed", completionTime=ago(10),
        suggestion="RescheduleElsewhere")}, "x", "scheduler example-scheduler decides for another node", 10,
        id="a failure"),
    pytest.param({"request": request("NodeGone: x", "Failed", completionTime=ago(1440),
        suggestion="RescheduleElsewhere")}, "x",
        "scheduler example-scheduler decides for another node; it has not for 24m0s: is it running?", 1440,
        id="a failure to which no scheduler reacts"),
    pytest.param({"request": request("", "Failed", completionTime=ago(10))},
        "the bind has failed without a reason", "the request is deleted", 10, id="a failure without a reason"),
    pytest.param({"request": request("RollbackFailed: busy", conditions=condition("RolledBack", "False", "busy"))},
        "what was prepared cannot be undone: busy", "the rollback is complete", 40, id="an incomplete rollback"),
    pytest.param({"request": request("Invalid: x", "Failed", completionTime=ago(1440), suggestion="DeletePod")},
        "x", "the pod is deleted", 1440, id="a pod without a controller that no node can bind"),
    pytest.param({"pod": pod(metadata={"ownerReferences": [{"controller": True}]}),
        "request": request("Invalid: x", "Failed", completionTime=ago(1440), suggestion="DeletePod")},
        "x", "the pod is deleted; its controller creates another one", 1440, id="a pod that no node can bind"),
    pytest.param({"request": request("RolledBack: uninstalled", conditions=condition("Prepared", "False",
        "uninstalled", reason="RolledBack"))}, "uninstalled", "a reconciler that is not being uninstalled leads", 40,
        id="a request of an uninstalled release"),
    pytest.param({"request": request("Created: nothing is reported yet", phase="", metadata={"uid": "present"}),
        "events": [{"reason": "BindingRetry", "message": f"not complete yet: {uid}",
        "related": {"uid": uid}} for uid in ("present", "former")]}, "not complete yet: present", "the next attempt",
        50, id="a request whose status cannot be written"),
    pytest.param({"request": request("Created: nothing is reported yet", phase="")},
        "the reconciler has not reported on the BindRequest yet", "the reconciler reports", 50,
        id="a request that was created now"),
    pytest.param({"request": request("", "Succeeded")},
        "no decision is possible while BindRequest team/train exists, which is of an earlier pod", "", 60,
        id="the request of an earlier pod"),
    pytest.param({"pod": pod(metadata={"uid": "u2"}), "leases": [lease(holder="")],
        "request": request(metadata={"deletionTimestamp": ago(30), "finalizers": [names.FINALIZER]})
        | {"spec": {"selectedNode": "gpu-1", "podUID": "u1"}}},
        "no decision is possible: of an earlier pod, its BindRequest is being deleted; finalizer",
        "a reconciler leads", 30, id="the request of an earlier pod that no reconciler rolls back"),
    pytest.param({"pod": pod(metadata={"uid": "u1"}), "request": {**request("", "Succeeded", completionTime=ago(1)),
        "spec": {"selectedNode": "gpu-1", "podUID": "u1"}}}, "the pod is bound to node gpu-1 since a moment ago", "",
        None, id="a pod that was bound between two reads"),
    pytest.param({"pod": pod(metadata={"uid": "u1"}), "request": {**request("", "Succeeded", completionTime=ago(90)),
        "spec": {"selectedNode": "gpu-1", "podUID": "u1"}}},
        "BindRequest team/train is Succeeded, and the pod is on no node: another program has written that", "", 90,
        id="a success that another program has written"),
    pytest.param({"request": waiting(), "leases": [lease(holder="")]},
        "no reconciler leads: no Lease of a reconciler is held (bowline-system/bowline-reconciler, last renewed ",
        "a reconciler leads", 1, id="a wait that no reconciler continues"),
    pytest.param({"request": request("", ""), "leases": []},
        "no reconciler leads: no Lease of a reconciler is held (none exists)", "a reconciler leads", 50,
        id="no Lease"),
    pytest.param({"pod": None, "request": request("Waiting: x")},
        "the pod does not exist; its BindRequest team/train remains", "", 50, id="a request without its pod"),
    pytest.param({"request": request(metadata={"deletionTimestamp": ago(30), "finalizers": [names.FINALIZER]},
        conditions=condition("RolledBack", "False", "busy"))},
        f"its BindRequest is being deleted; finalizer {names.FINALIZER} keeps it", "the rollback is complete", 30,
        id="a deleted request"),
    pytest.param({"request": request(metadata={"deletionTimestamp": ago(30), "finalizers": ["other/x"]})},
        "its BindRequest is being deleted; finalizers of others: other/x", "their owners remove them", 30,
        id="a deleted request with another finalizer"),
    pytest.param({"pod": pod(spec={"nodeName": "gpu-1"}, phase="Pending", initContainerStatuses=[{"name": "main",
        "state": {"waiting": {"reason": "ImagePullBackOff"}}}])},
        "its kubelet has not started it yet: Pending, container main ImagePullBackOff", "the kubelet starts it", 60,
        id="a bound pod that does not start"),
    pytest.param({"pod": WITH_CLAIM, "objects": {CLAIM: None}, "info": ReleaseInfo(binds_volumes=False)},
        "the pod is bound to node gpu-1 and cannot start: PersistentVolumeClaim team/data does not exist; plugin "
        "volume_binding is off, so no volumes are bound; the chart's value config.plugins.volume_binding.enabled: "
        "true switches it on", "its volumes are bound", 60, id="a bound pod while volume_binding is off"),
    pytest.param({"pod": WITH_CLAIM, "objects": {CLAIM: {"status": {"phase": "Lost"}}}},
        "cannot start: PersistentVolumeClaim team/data is not bound", "its volumes are bound", 60,
        id="a bound pod whose claim is not"),
    pytest.param({"pod": WITH_CLAIM, "objects": {CLAIM: {"status": {"phase": "Bound"}}}},
        "its kubelet has not started it yet: Pending", "the kubelet starts it", 60, id="a bound pod with its claim"),
    pytest.param({"pod": WITH_CLAIM, "objects": {CLAIM: Unread("403")}},
        "its kubelet has not started it yet: Pending", "the kubelet starts it", 60, id="a claim that is not read"),
    pytest.param({"pod": pod(spec={"nodeName": "gpu-1"}, phase="Pending", containerStatuses=[
        {"name": reason, "state": {"waiting": {"reason": reason}}} for reason in ("ContainerCreating",
        "PodInitializing")]), "events": [NO_SECRET]},
        "its kubelet has not started it yet: Pending, FailedMount from kubelet: secret x not found",
        "the kubelet starts it", 60, id="a bound pod whose secret is missing"),
    pytest.param({"events": [{**NO_SECRET, "reason": "FailedResourceClaimCreation",
        "message": "template t: not found", "source": {"component": "resource_claim"}}]},
        "no scheduler has decided; FailedResourceClaimCreation from resource_claim: template t: not found",
        "is it installed and running?", 60, id="a claim that is not created"),
    pytest.param({"events": [NO_NODE]},
        "no scheduler has decided; FailedScheduling from example-scheduler: 0/3 nodes fit",
        "is it installed and running?", 60, id="a scheduler that warns in an event only"),
    pytest.param({"pod": pod(spec={"nodeName": "gpu-1"}, phase="Pending"), "events": [NO_NODE]},
        "its kubelet has not started it yet: Pending", "the kubelet starts it", 60,
        id="what a scheduler has warned about before it decided"),
    pytest.param({"events": [{**NO_SECRET, "source": {"component": names.EVENT_SOURCE}}]},
        "example-scheduler has reported nothing about it", "decides", 60, id="a warning of Bowline's own"),
    pytest.param({"events": [NO_SECRET, {**NO_SECRET, "type": "Normal"}]},
        "example-scheduler has reported nothing about it", "decides", 60, id="a warning that is over"),
    pytest.param({"pod": pod(metadata={"deletionTimestamp": ago(20)}, conditions=condition("DisruptionTarget",
        "True", "deleting due to NoExecute taint", reason="DeletionByTaintManager"))},
        "the pod is being deleted (DeletionByTaintManager: deleting due to NoExecute taint); finalizers: none", "",
        20, id="a pod that a taint evicts"),
    pytest.param({"pod": pod(spec={"nodeName": "gpu-1"}, phase="Failed", reason="UnexpectedAdmissionError",
        message="Allocate failed")},
        "the pod has failed on node gpu-1: Failed, UnexpectedAdmissionError: Allocate failed",
        "", None, id="a pod that the kubelet refuses"),
    pytest.param({"pod": pod(spec={"nodeName": "gpu-1"}, phase="Failed", reason="Evicted",
        conditions=[*condition("PodScheduled", "True", since=50), *condition("DisruptionTarget", "True", since=20)])},
        "the pod has failed on node gpu-1: Failed, Evicted", "", 20, id="a pod that was evicted"),
    pytest.param({"pod": pod(spec={"nodeName": "gpu-1"}, phase="Failed",
        conditions=condition("Ready", "False", since=12),
        containerStatuses=[{"name": "main", "state": {"terminated": {"exitCode": 1, "finishedAt": ago(11)}}}])},
        "container main ended: Error, exit code 1", "", 11, id="a pod whose container has ended"),
    pytest.param({"pod": pod(spec={"nodeName": "gpu-1"}, phase="Running",
        containerStatuses=[{"name": "main", "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}],
        conditions=[*condition("PodScheduled", "True", since=50), *condition("Ready", "False", since=15)])},
        "container main CrashLoopBackOff, container main ended: OOMKilled, exit code 137",
        "the container starts", 15, id="a container that ends again and again"),
    pytest.param({"pod": pod(spec={"nodeName": "gpu-1"}, phase="Running",
        conditions=condition("Ready", "False", since=15))},
        "the pod is bound to node gpu-1: Running, not ready", "", 15, id="a running pod that is not ready"),
    pytest.param({"pod": pod(spec={"nodeName": "gpu-1"}, phase="Unknown"), "objects": {NODE: DOWN}},
        "the node of the pod is not ready: gpu-1: Unknown; Kubelet stopped posting node status.",
        "the node is ready again", 33, id="a pod whose node does not answer any more"),
    pytest.param({"pod": pod(spec={"nodeName": "gpu-1"}, phase="Unknown")},
        "the pod is bound to node gpu-1: Unknown", "", None, id="a pod of which nothing is known"),
    pytest.param({"pod": pod(spec={"nodeName": "gpu-1"}, phase="Pending"), "objects": {NODE: DOWN}},
        "the node of the pod is not ready: gpu-1: Pending; Kubelet stopped posting node status.",
        "the node is ready again", 33, id="a node that does not answer"),
    pytest.param({"pod": pod(spec={"nodeName": "gpu-1"}, phase="Pending"), "objects": {NODE: None}},
        "the node of the pod does not exist any more: gpu-1", "the pod is deleted", None, id="a deleted node"),
    pytest.param({"pod": pod(metadata={"deletionTimestamp": ago(20), "finalizers": ["x/y"]})},
        "the pod is being deleted; finalizers: x/y", "their owners remove the finalizers", 20,
        id="a pod that is being deleted"),
    pytest.param({"pod": pod(spec={"nodeName": "gpu-1"}, metadata={"deletionTimestamp": ago(20),
        "deletionGracePeriodSeconds": 30, "finalizers": ["x/y"]})},
        "its grace period on node gpu-1 ended at 2026-01-01T11:59:40Z; finalizers: x/y",
        "its kubelet ends it, and their owners remove the finalizers", 50, id="a bound pod that is being deleted"),
    pytest.param({"pod": pod(spec={"nodeName": "gpu-1"}, metadata={"deletionTimestamp": ago(20),
        "deletionGracePeriodSeconds": 0, "finalizers": ["x/y"]})}, "the pod is being deleted; finalizers: x/y",
        "their owners remove the finalizers", 20, id="a deleted pod that its kubelet has ended"),
    pytest.param({"gang": SHORT_GANG}, "PodGroup team/pg requires 3 pods, and 2 exist: create the others",
        "the other pods are created, or the PodGroup requires fewer", 60, id="a gang without all of its pods"),
    pytest.param({"gang": SHORT_GANG, "request": waiting(WaitFact("x", (GANG,)), "fewer than 3 pods")},
        "PodGroup team/pg requires 3 pods, and 2 exist: create the others", "there is no deadline", 40,
        id="a decision that waits for the missing pods of a gang"),
    pytest.param({"gang": SHORT_GANG, "request": waiting()}, "claim data is not bound", "fails with WaitTimeout", 40,
        id="another wait of a pod of such a gang"),
    pytest.param({"gang": SHORT_GANG, "request": request("WaitTimeout: fewer", "Failed", completionTime=ago(10),
        failure=FailureFact("WaitTimeout", objects=(GANG,)).as_field())},
        "PodGroup team/pg requires 3 pods, and 2 exist: create the others", "the cause is corrected", 10,
        id="a decision that has failed for the missing pods of a gang"),
]  # fmt: skip


OWNED = {"ownerReferences": [{"controller": True}]}


@pytest.mark.parametrize(
    ("explained_pod", "until", "is_stuck"),
    [
        pytest.param(pod(phase="Failed", metadata=OWNED), "its controller creates another one", False, id="no node"),
        pytest.param(pod(phase="Failed"), "", False, id="no controller"),
        pytest.param(pod(phase="Succeeded", metadata=OWNED), "", False, id="a success"),
        pytest.param(pod(phase="Failed", metadata=OWNED, spec={"nodeName": "gpu-1"}),
            "its controller creates another one", False, id="bound"),
        pytest.param(pod(phase="Failed", spec={"nodeName": "gpu-1"}), "", False, id="bound without a controller"),
        pytest.param(pod(spec={"nodeName": "gpu-1"}, metadata={"deletionTimestamp": ago(-10),
            "deletionGracePeriodSeconds": 30}), "its kubelet ends it", False, id="within its grace period"),
        pytest.param(pod(spec={"nodeName": "gpu-1"}, metadata={"deletionTimestamp": ago(0)}),
            "its kubelet ends it", True, id="after its grace period"),
    ],
)  # fmt: skip
def test_an_ended_pod_does_not_wait_and_a_deleted_one_only_after_its_grace_period(
    explained_pod: dict[str, Any], until: str, is_stuck: bool
) -> None:
    explanation = explained(pod=explained_pod)
    assert (explanation.until, explanation.is_stuck) == (until, is_stuck)


@pytest.mark.parametrize(("facts", "what", "until", "since_s"), TABLE)
def test_what_is_explained(facts: dict[str, Any], what: str, until: str, since_s: float | None) -> None:
    explanation = explained(**facts)
    assert what in explanation.cause
    assert until in explanation.until
    assert explanation.since == (None if since_s is None else NOW - timedelta(seconds=since_s))


@pytest.mark.parametrize(
    ("changes", "is_held"), [({}, True), ({"holder": ""}, False), ({"age_s": 14}, True), ({"age_s": 16}, False)]
)
def test_a_lease_is_held_for_its_duration(changes: dict[str, Any], is_held: bool) -> None:
    assert (acquired_at(lease(**changes), NOW) is not None) is is_held


NOT_SERVED = ReleaseInfo(("kai-scheduler", "example-scheduler"))


@pytest.mark.parametrize(
    ("scheduler", "is_hinted"), [("kai-schedular", True), ("default-scheduler", False), ("volcano", False)]
)
def test_only_a_misspelt_scheduler_has_a_hint(scheduler: str, is_hinted: bool) -> None:
    explanation = explained(pod=pod(spec={"schedulerName": scheduler}), info=NOT_SERVED)
    assert explanation.cause.startswith(f"schedulerName {scheduler} is not one that Bowline serves (kai-scheduler, ")
    assert ("did you mean kai-scheduler?" in explanation.cause) is is_hinted


MEMBERS = [pod(metadata={"name": name}, spec={"nodeName": "n"} if name == "a" else {}) for name in "abcd"]
DECISIONS = [
    {"metadata": {}, "spec": {"podName": "b"}, "status": {}},
    {"metadata": {}, "spec": {"podName": "c"}, "status": {"phase": "Failed"}},
]
KAI = pod(spec={"schedulerName": "kai-scheduler"})


@pytest.mark.parametrize(
    ("facts", "detail"),
    [
        pytest.param({"pod": KAI, "gang": GangFacts(GANG,
            {"status": {"schedulingConditions": [{"message": "over quota"}]}})}, "PodGroup team/pg: over quota",
            id="what KAI-Scheduler says of the group"),
        pytest.param({"gang": GangFacts(GANG, {"spec": {"minMember": 4}}, MEMBERS, DECISIONS)},
            "PodGroup team/pg requires 4 pods: 2 of its 4 pods have a decision; without one: c (failed), d",
            id="pods of a gang without a decision"),
        pytest.param({"gang": GangFacts(GANG, {"spec": {"minMember": 4}}, MEMBERS, DECISIONS), "request": waiting()},
            "PodGroup team/pg requires 4 pods: 2 of its 4 pods have a decision; without one: c (failed), d",
            id="a gang whose pod waits"),
        pytest.param({"gang": GangFacts(GANG, Unread("403"), [pod(metadata={"name": f"m{i}"}) for i in range(9)])},
            "without one: m0, m1, m2, m3, m4, m5, m6, m7 and 1 more", id="a large gang whose group may not be read"),
        pytest.param({"gang": GangFacts(GANG, None)}, "PodGroup team/pg does not exist", id="no group"),
        pytest.param({"pod": pod(spec={"resourceClaims": [{}]}), "slices": 0},
            "the cluster has no ResourceSlice: no DRA driver offers devices", id="no driver"),
        pytest.param({"schedulers": [lease(age_s=300)]}, "example-scheduler is not running: Lease ",
            id="a scheduler that has ended"),
        pytest.param({"schedulers": [lease()]}, "example-scheduler is running: Lease ", id="a scheduler that runs"),
        pytest.param({"request": waiting(), "objects": {CLAIM: None}},
            "PersistentVolumeClaim team/data does not exist", id="an awaited object that does not exist"),
        pytest.param({"request": waiting(message=f"{CLAIM} does not exist: create it"),
            "objects": {CLAIM: {"metadata": {}}}}, f"{CLAIM} exists now", id="a cause that holds no more"),
        pytest.param({"request": waiting(message=f"StorageClass x of {CLAIM} does not exist"),
            "objects": {CLAIM: None}}, f"{CLAIM} does not exist", id="the absence of another object"),
        pytest.param({"request": waiting(), "objects": {CLAIM: {"metadata": {"deletionTimestamp": ago(9),
            "finalizers": ["kubernetes.io/pvc-protection"]}}}},
            f"{CLAIM} is being deleted since {ago(9)}; finalizers: kubernetes.io/pvc-protection",
            id="an awaited object that is being deleted"),
        pytest.param({"request": waiting(), "objects": {CLAIM: {"metadata": {}}},
            "object_events": {CLAIM: {"reason": "ProvisioningFailed", "message": "no driver"}}},
            f"last event of {CLAIM}: ProvisioningFailed: no driver", id="what a provisioner says"),
        pytest.param({"request": waiting(), "events": [NO_SECRET, {"source": {"component": names.EVENT_SOURCE}}]},
            "FailedMount from kubelet: secret x not found", id="what another component warns about"),
        pytest.param({"request": waiting(), "events": [NO_SECRET, NO_NODE]},
            "FailedMount from kubelet: secret x not found", id="though the scheduler warned after it"),
        pytest.param({"request": waiting(WaitFact("plugin a", (RESERVATION,))),
            "objects": {RESERVATION: pod(spec={"nodeName": "n"})}}, f"{RESERVATION}: Pending, on node n",
            id="an awaited pod"),
        pytest.param({"request": request("x", "Failed",
            failure=FailureFact("NodeUnschedulable", objects=(NODE,)).as_field()),
            "objects": {NODE: {"metadata": {}, "spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}}}},
            "Node gpu-1 has now a:NoExecute", id="whether a taint is still there"),
        pytest.param({"request": request("x", "Failed",
            failure=FailureFact("RBACMissing", objects=(NAMESPACE,)).as_field()), "objects": {NAMESPACE: None}},
            "Namespace reservations does not exist", id="a namespace that was deleted"),
        pytest.param({"request": request("x", "Failed",
            failure=FailureFact("NodeUnschedulable", objects=(NODE,)).as_field()),
            "objects": {NODE: {"metadata": {}, "spec": {"unschedulable": True}}}},
            "Node gpu-1 has now no taints and is cordoned", id="a cordoned node"),
        pytest.param({"request": waiting(), "pod": failed_before()},
            f"the decision for node gpu-1 has failed with NodeGone at {ago(20)}, 3 times", id="earlier failures"),
        pytest.param({"pod": failed_before(last_s=20)}, "the same decision is denied until 2026-01-01T12:00:40Z",
            id="the denial of a repetition"),
        pytest.param({"request": request("NodeGone: x; waited", "Failed", completionTime=ago(10),
            failure=FailureFact("NodeGone").as_field(), conditions=condition("Bound", "False", "x"))},
            f"the bind has failed with NodeGone at {ago(10)}, on node gpu-1; waited", id="a failure"),
        pytest.param({"pod": failed_before(conditions=condition("PodScheduled", "False", "none of 4 nodes fits"))},
            "scheduler example-scheduler reports: none of 4 nodes fits", id="what it says after a failure"),
    ],
)  # fmt: skip
def test_details(facts: dict[str, Any], detail: str) -> None:
    assert any(detail in each for each in explained(**facts).details)


@pytest.mark.parametrize(
    ("facts", "command"),
    [
        pytest.param({"request": waiting(), "objects": {CLAIM: {"metadata": {}}}},
            "kubectl -n team describe persistentvolumeclaims data", id="an object that exists"),
        pytest.param({"request": waiting(), "objects": {CLAIM: None}}, "kubectl -n team get persistentvolumeclaims",
            id="an object that does not"),
        pytest.param({"request": waiting(), "objects": {CLAIM: Unread("403")}},
            "kubectl -n team describe persistentvolumeclaims data", id="an object that may not be read"),
        pytest.param({"request": waiting(WaitFact("x"))}, "kubectl -n team describe pod train", id="no object"),
        pytest.param({"pod": failed_before()}, "kubectl get nodes", id="the node of a failure"),
        pytest.param({"request": request("x", "Failed", failure=FailureFact("NodeGone").as_field(), suggestion="y")},
            "kubectl get nodes", id="the remedy of the reason"),
        pytest.param({"request": waiting(WaitFact("x", (HOSTILE,)))},
            "kubectl -n team describe podgroups.scheduling.k8s.io -- '--server=x; sh #'", id="a hostile name"),
        pytest.param({"pod": failed_before(reason="NodeUnschedulable", node="x'; sh #")},
            """kubectl get node 'x'"'"'; sh #' -o jsonpath='{.spec}'""", id="a hostile node"),
    ],
)  # fmt: skip
def test_the_first_command(facts: dict[str, Any], command: str) -> None:
    assert explained(**facts).commands[0] == command


class Answers:
    """An API server's answers to questions about rights."""

    def __init__(self, *allowed: str) -> None:
        self.allowed = allowed

    def allow(self, command: str) -> bool:
        return any(word in command for word in self.allowed)


DELETE_REQUEST = "kubectl -n team delete bindrequest train"


@pytest.mark.parametrize(
    ("allowed", "commands", "afterwards"),
    [
        (("nodes", "delete"), ["kubectl get nodes"], f"once the cause is corrected: {DELETE_REQUEST}"),
        (("delete pod",), [], "once the cause is corrected: kubectl -n team delete pod train"),
        ((), [], f"ask an administrator to run, once the cause is corrected: {DELETE_REQUEST}"),
    ],
)
def test_only_commands_that_the_reader_may_run_are_the_next_ones(
    allowed: tuple[str, ...], commands: list[str], afterwards: str
) -> None:
    failed_request = request("x", "Failed", failure=FailureFact("NodeGone").as_field())
    facts = Facts(KEY, NOW, pod(), failed_request, leases=[lease()])
    explanation = explain(facts)
    assert explanation is not None
    answer = for_reader(Answers(*allowed), ExplainedObject("Pod", facts, explanation)).explanation  # type: ignore[arg-type]
    assert list(answer.commands) == commands
    assert answer.details[-1] == afterwards
    assert ("ask an administrator to run: kubectl get nodes" in answer.details) is (not commands)


@pytest.mark.parametrize(
    ("command", "rights"),
    [
        ("kubectl get nodes", ["list  nodes "]),
        ("kubectl get node n -o jsonpath='{.spec}'", ["get  nodes "]),
        ("kubectl -n a describe resourcequota", ["list  resourcequotas a"]),
        ("kubectl describe storageclass x", ["get storage.k8s.io storageclasses "]),
        ("kubectl -n a delete bindrequest x", ["delete scheduling.run.ai bindrequests a"]),
        ("kubectl -n a get leases,pods", ["list coordination.k8s.io leases a", "list  pods a"]),
        ("kubectl -n a get podgroup.x.y", ["list x.y podgroups a"]),
        ("kubectl -n a logs --tail 20", ["get  pods/log a", "list  pods a"]),
    ],
)
def test_the_rights_that_a_command_needs(command: str, rights: list[str]) -> None:
    asked = [right.as_attributes() for right in rights_of(command)]
    assert [
        f"{each['verb']} {each['group']} {each['resource']}"
        f"{'/' if 'subresource' in each else ''}{each.get('subresource', '')} {each.get('namespace', '')}"
        for each in asked
    ] == rights


class Unanswered(Api):
    """An API server that answers nothing."""

    def __init__(self) -> None:
        super().__init__(ServerAccess("http://server", "team", HTTPConnection("server")))

    def send(self, method: str, path: str, body: bytes | None, accept: str = "") -> ApiAnswer:
        raise ClusterError(path)


@pytest.mark.parametrize("command", ["kubectl get nodes", "kubectl get node it's"])
def test_a_right_that_is_not_answered_hides_no_command(command: str) -> None:
    assert Rights(Unanswered()).allow(command)


def test_the_objects_that_a_status_names() -> None:
    failure = FailureFact("VolumeConflict", objects=(CLAIM,)).as_field()
    assert named_objects(waiting()) == (CLAIM,)
    assert named_objects(request("x", "Failed", failure=failure)) == (CLAIM,)
    assert named_objects(None) == ()


@pytest.mark.parametrize(
    ("owner", "failure", "cause", "is_stuck"),
    [
        pytest.param({"spec": {"suspend": True}}, None, "is suspended", True, id="suspended"),
        pytest.param({"spec": {"replicas": 0}}, None, "has replicas 0", False, id="no replicas"),
        pytest.param({"spec": {"parallelism": 0}}, None, "has parallelism 0", False, id="no parallelism"),
        pytest.param({"status": {"desiredNumberScheduled": 0, "observedGeneration": 1}}, None, "fit no node", False,
            id="no node"),
        pytest.param({"status": {"desiredNumberScheduled": 0}}, None, "no creation has failed", True, id="new"),
        pytest.param({"spec": {"managedBy": "kueue.x-k8s.io/multikueue"}}, None,
            "has no pods yet; kueue.x-k8s.io/multikueue manages it", True, id="managed elsewhere"),
        pytest.param({"status": {"conditions": condition("Complete", "True")}}, None, "has ended", False,
            id="a Job that ended"),
        pytest.param({}, None, "no creation has failed", True, id="no failure"),
        pytest.param({}, ("exceeded quota: gpus", NOW), "are not created: exceeded quota: gpus", True, id="a quota"),
    ],
)  # fmt: skip
def test_a_workload_without_pods(
    owner: dict[str, Any], failure: tuple[str, datetime] | None, cause: str, is_stuck: bool
) -> None:
    workload = {"metadata": {"name": "train", "creationTimestamp": ago(60)}, **owner}
    explanation = explain_uncreated(workload, "Job", Facts(KEY, NOW), failure)
    assert cause in explanation.cause
    assert explanation.is_stuck is is_stuck
    if failure is not None:
        assert (explanation.since, explanation.commands) == (NOW, ("kubectl -n team describe resourcequota",))


def subject(**changes: Any) -> ExplainedObject:
    info = ReleaseInfo(docs="https://docs.example")
    facts = Facts(KEY, NOW, pod(), waiting(), leases=[lease()], info=info, **changes)
    explanation = explain(facts)
    assert explanation is not None
    return ExplainedObject("Pod", facts, explanation)


def test_the_text_names_time_commands_and_what_was_not_read() -> None:
    text = as_text(subject(objects={CLAIM: {"metadata": {}}}, unreadable=("leases in \x1b[2J", "events")))
    assert text.splitlines() == [
        "Pod team/train: claim data is not bound",
        "  since  2026-01-01T11:59:20Z (40s)",
        "  until  one of the objects changes; at the latest it fails with WaitTimeout at 2026-01-01T12:10:00Z",
        "  next   kubectl -n team describe persistentvolumeclaims data",
        "  not read (rights): leases in \\x1b[2J, events",
        "  more   https://docs.example/stuck-pods.html#waits",
    ]


def test_the_table_and_the_json_have_every_subject() -> None:
    table = as_table([subject(), subject()], NOW).splitlines()
    assert [line.split() for line in table[:2]] == [
        ["NAMESPACE", "NAME", "AGE", "CAUSE"],
        ["team", "train", "40s", "claim", "data", "is", "not", "bound"],
    ]
    assert as_table([], NOW) == "no pod waits"
    assert as_table([], NOW, ["events"]) == "no pod waits\nnot read (rights): events"
    assert as_table([subject()], NOW, ["events"]).splitlines()[2] == "not read (rights): events"
    (item,) = json.loads(as_json([subject()], is_list=True))["items"]
    assert item == json.loads(as_json([subject()], is_list=False))
    assert (item["kind"], item["namespace"], item["name"], item["since"]) == (
        "Pod",
        "team",
        "train",
        "2026-01-01T11:59:20Z",
    )


@pytest.mark.parametrize(
    ("configuration", "info"),
    [
        (None, None),
        (Unread("403"), None),
        ({"data": {}}, None),
        ({"data": {"release.json": "{}"}}, None),
        ({"data": {"release.json": "["}}, None),
        ({"data": {"release.json": '{"schedulerNames": ["a"], "repeatBackoff": "2m", "docsURL": "d/"}'}},
            ReleaseInfo(("a",), timedelta(minutes=2), "d")),
        ({"data": {"release.json": '{"schedulerNames": [], "repeatBackoff": "1m", "volumeBinding": false}'}},
            ReleaseInfo(binds_volumes=False)),
    ],
)  # fmt: skip
def test_what_a_release_publishes(configuration: Any, info: ReleaseInfo | None) -> None:
    assert info_of(configuration) == info


@pytest.mark.parametrize(
    ("leases", "info"),
    [
        pytest.param(["one", "former"], ReleaseInfo(("a",)), id="the release whose reconciler leads"),
        pytest.param(["one", "other"], None, id="two releases: nothing says which one a pod is of"),
        pytest.param([], ReleaseInfo(("c",)), id="no reconciler has led: the usual name"),
    ],
)
def test_what_the_releases_of_a_namespace_publish(leases: list[str], info: ReleaseInfo | None) -> None:
    published = {
        f"/api/v1/namespaces/system/configmaps/{release}-info": {
            "data": {"release.json": json.dumps({"schedulerNames": [scheduler], "repeatBackoff": "60s"})}
        }
        for release, scheduler in (("one", "a"), ("other", "b"), ("bowline", "c"))
    }
    stored = [{"metadata": {"name": f"{release}-reconciler"}} for release in leases]
    reader: Any = SimpleNamespace(api=SimpleNamespace(now=NOW), list=lambda *_, **__: stored, get=published.get)
    assert Reading.begin(reader, "system").info == info


@pytest.mark.parametrize(
    ("reasons", "is_told"),
    [
        pytest.param(["SharedGPUUnreserved"], True, id="its device is not reserved"),
        pytest.param(["SharedGPUUnreserved", "SharedGPUReserved", "Pulled"], False, id="it is reserved again"),
        pytest.param(["SharedGPUReserved", "SharedGPUUnreserved", "Pulled"], True, id="and lost again"),
    ],
)
def test_a_running_share_without_its_device_is_told(reasons: list[str], is_told: bool) -> None:
    events = [{"reason": reason, "message": f"{reason}: restart this pod"} for reason in reasons]
    running = pod(spec={"nodeName": "gpu-1"}, phase="Running")
    details = ("SharedGPUUnreserved: restart this pod",) if is_told else ()
    assert explained(pod=running, events=events).details == details
