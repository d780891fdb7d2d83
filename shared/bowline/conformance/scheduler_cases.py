"""The cases of a scheduler's conformance: what docs/write-a-scheduler.md requires of a scheduler in each situation.

A case raises BrokenRuleError with the name of the rule that the program has broken.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from datetime import datetime, timedelta
from functools import partial
from http import HTTPStatus
from typing import Any, Final

from bowline.api import names
from bowline.api.taints import MAX_TOLERATIONS
from bowline.conformance.case import NODE, OTHER_NODE, Case
from bowline.conformance.scheduler import OTHER, SchedulerStage
from bowline.testing.builders import bind_request

# Annotations as any tenant can store them while admission is off, warns or leaves out a namespace.
HOSTILE: Final = (
    {names.GPU_FRACTION: "50%"},
    {names.GPU_FRACTION: "nan"},
    {names.GPU_FRACTION: "-1"},
    {names.GPU_MEMORY: "8Gi"},
    {names.GPU_FRACTION: "0.5", names.GPU_FRACTION_NUM_DEVICES: "9" * 5000},
    {names.GPU_FRACTION: "0.5", names.GPU_FRACTION_NUM_DEVICES: "-1"},
    {"scheduler.example.com/avoid": "[" * 100_000},
    {"scheduler.example.com/avoid": "null"},
)


# How long a scheduler is observed whose request is denied, and how often it may repeat it.
OBSERVED_S: Final = 5.0
DENIALS_PER_S: Final = 5
# Its calls of the API while nothing changes, and its events about one pod.
CALLS_PER_S: Final = 20
EVENTS_PER_S: Final = 2
# How long a failed request without a suggestion stays at least: a minute is usual.
SHORTEST_PAUSE: Final = timedelta(seconds=3)
# How long a request may be unfinished while a reconciler restarts.
PATIENCE_S: Final = 10.0

_KEPT: Final = '{"metadata":{"finalizers":["example.com/kept"]}}'


def _first_decision(stage: SchedulerStage) -> None:
    stage.submit("foreign", 1, scheduler=OTHER)
    uids = {name: stage.submit(name, gpus) for name, gpus in (("cpu", 0), ("one", 1), ("two", 2))}
    for name, uid in uids.items():
        stage.runs("decides", name)
        requests, created = stage.requests(name), stage.creations()[name, HTTPStatus.CREATED]
        is_single = len(requests) == 1 and created <= 1
        stage.require("one-request-per-pod", is_single, f"{created} requests for pod {name}")
        owners = [owner.get("uid") for owner in requests[0]["metadata"].get("ownerReferences") or ()]
        stage.require("owner", owners == [uid], f"the owner of the request for {name} is not its pod")
    stage.require("own-pods-only", not stage.requests("foreign"), f"a pod of {OTHER} got a request")


def _repeated_failure(stage: SchedulerStage) -> None:
    with stage.failing_binds("doomed"):
        stage.submit("doomed", 8, OTHER_NODE)
        stage.decided("decides", "doomed")
        stage.submit("neighbour", 8, OTHER_NODE)
        stage.runs("frees-the-node", "neighbour")
        stage.delete_pods("neighbour")
    # A changed pod may be decided again at once.
    stage.kubectl("annotate", "pod", "doomed", "example.com/cause=fixed")
    stage.runs("replaces-failed-requests", "doomed")


def _stale_node(stage: SchedulerStage) -> None:
    _leaves_a_node(stage, "leaves-unsuitable-nodes", stage.cordoned)


def _failed_node(stage: SchedulerStage) -> None:
    _leaves_a_node(
        stage, "reschedules-elsewhere", partial(stage.failing_binds, "moved", "the node is not for this pod")
    )


def _leaves_a_node(stage: SchedulerStage, rule: str, obstacle: Callable[[str], AbstractContextManager[None]]) -> None:
    """The pod is bound to another node, when an obstacle appears at the first one after the decision."""
    with ExitStack() as ending:
        with stage.stopped_reconciler():
            stage.submit("moved", 1)
            first_node = stage.decided("decides", "moved")["spec"]["selectedNode"]
            ending.enter_context(obstacle(first_node))
        is_left = stage.runs(rule, "moved") != first_node
        stage.require(rule, is_left, f"the pod is bound to {first_node}, which is not for it any more")


def _restart(stage: SchedulerStage) -> None:
    pods = [f"pod-{number}" for number in range(5)]
    for name in pods:
        stage.submit(name, 2, OTHER_NODE)
    stage.until("decides", "a request for one of five pods", lambda: any(map(stage.requests, pods)))
    stage.scheduler.kill()
    stage.scheduler.start()

    def bound_pods() -> list[str]:
        return [name for name in pods if stage.pod(name)["spec"].get("nodeName")]

    stage.until("continues-after-a-restart", "four of five pods are bound", lambda: len(bound_pods()) >= 4)
    _pass_ends(stage, "fifth", stage.runs)
    decided = [name for name in pods if stage.requests(name)]
    why = f"{len(decided)} of five pods with 2 GPUs each are decided for the 8 GPUs of {OTHER_NODE}"
    stage.require("counts-what-is-used", len(decided) == 4, why)
    _each_created_once(stage, decided)


def _two_schedulers(stage: SchedulerStage) -> None:
    uid = stage.submit("theirs", 6, OTHER_NODE, scheduler=OTHER)
    gpus = {"count": 6, "portion": "1.00"}
    stage.create_request(bind_request("theirs", OTHER_NODE, stage.namespace, uid, receivedGPU=gpus))
    stage.wait("the pod of the other scheduler is bound", lambda: stage.pod("theirs")["spec"].get("nodeName"))
    stage.submit("waiting", 1, NODE, scheduler=OTHER)
    stage.submit("fits", 2, OTHER_NODE)
    stage.runs("decides", "fits")
    _does_not_fit(stage, "too-large", 1, rule="counts-what-is-used")
    stage.require("own-pods-only", not stage.requests("waiting"), f"a pod of {OTHER} got a request")
    is_kept = len(stage.requests("theirs")) == 1
    stage.require("own-pods-only", is_kept, f"the request of a pod of {OTHER} was deleted")


def _hostile_pod(stage: SchedulerStage) -> None:
    with stage.unreviewed_pods(HOSTILE):
        for name in ("first", "second"):
            stage.submit(name, 1)
            stage.runs("survives", name)


def _unfinished_requests(stage: SchedulerStage) -> None:
    with stage.stopped_reconciler():
        theirs = stage.submit("theirs", 1, NODE, scheduler=OTHER)
        stage.create_request(bind_request("theirs", NODE, stage.namespace, theirs))
        stage.submit("first", 5, OTHER_NODE)
        request = stage.decided("decides", "first")
        # For as long as a reconciler may be absent; a new process knows the decision from the API only.
        stage.scheduler.kill()
        stage.scheduler.start()
        stage.observe(PATIENCE_S)
        stage.submit("second", 5, OTHER_NODE)
        _pass_ends(stage, "second", stage.decided)
        uids = [item["metadata"]["uid"] for item in stage.requests("first")]
        why = "the request was withdrawn while its phase was not final"
        stage.require("waits-for-the-result", uids == [request["metadata"]["uid"]], why)
        stage.require("own-pods-only", bool(stage.requests("theirs")), f"a request of {OTHER} was withdrawn")
        why = f"5 of the 8 GPUs of {OTHER_NODE} are decided, and a pod with 5 got a request for it"
        stage.require("counts-unfinished-requests", not stage.requests("second"), why)


def _ending_pods(stage: SchedulerStage) -> None:
    stage.submit("terminating", 8, OTHER_NODE)
    stage.runs("decides", "terminating")
    stage.kubectl("patch", "pod", "terminating", "--type=merge", f"--patch={_KEPT}")
    try:
        stage.delete_pods("terminating", grace_period_s=30)
        _does_not_fit(stage, "next", 8, rule="counts-what-is-used")
    finally:
        stage.kubectl("patch", "pod", "terminating", "--type=merge", '--patch={"metadata":{"finalizers":null}}')
    stage.runs("frees-what-has-ended", "next")
    end = '--patch={"status":{"phase":"Succeeded"}}'
    stage.kubectl("patch", "pod", "next", "--subresource=status", "--type=merge", end)
    stage.submit("last", 8, OTHER_NODE)
    stage.runs("frees-what-has-ended", "last")


def _other_needs(stage: SchedulerStage) -> None:
    init = {"name": "init", "image": "registry.example/app:1"}
    init_gpus = {**init, "resources": {"limits": {names.RESOURCE_GPU: "8"}}}
    stage.submit("small", 1, OTHER_NODE)
    stage.runs("decides", "small")
    _does_not_fit(stage, "init", 0, rule="counts-init-containers", initContainers=[init_gpus])
    sidecar = {
        **init,
        "name": "sidecar",
        "restartPolicy": "Always",
        "resources": {"limits": {names.RESOURCE_GPU: "4"}},
    }
    _does_not_fit(stage, "sidecar", 4, rule="counts-sidecars", initContainers=[sidecar])
    cpu = {**init, "name": "main", "resources": {"requests": {"cpu": "100k"}}}
    _does_not_fit(stage, "cpu", 0, rule="counts-every-resource", containers=[cpu])


def _unsuitable_node(stage: SchedulerStage) -> None:
    stage.cluster.kubectl("taint", "node", OTHER_NODE, "example.com/maintenance=:NoSchedule")
    try:
        _does_not_fit(stage, "tainted", 1, rule="leaves-unsuitable-nodes")
    finally:
        stage.cluster.kubectl("taint", "node", OTHER_NODE, "example.com/maintenance-")
    stage.runs("decides", "tainted")
    here, elsewhere = (
        {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}
        for node in (OTHER_NODE, NODE)
    )
    _does_not_fit(stage, "elsewhere", 1, rule="leaves-unsuitable-nodes", affinity=_required(elsewhere))
    # One of several terms is enough.
    stage.submit("either", 1, OTHER_NODE, affinity=_required(elsewhere, here))
    stage.runs("decides", "either")


def _required(*terms: Mapping[str, Any]) -> dict[str, Any]:
    required = {"nodeSelectorTerms": terms}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def _successor(stage: SchedulerStage) -> None:
    for _ in range(2):
        uid = stage.submit("again", 1)
        stage.runs("decides-for-a-successor", "again")
        owners = {
            owner["uid"]
            for request in stage.requests("again")
            for owner in request["metadata"].get("ownerReferences") or ()
        }
        stage.require("owner", uid in owners, "the pod is bound by a request for its predecessor")
        stage.delete_pods("again")


def _gates(stage: SchedulerStage) -> None:
    gates = [{"name": "example.com/quota"}]
    _does_not_fit(stage, "gated", 1, rule="waits-for-gates", schedulingGates=gates)
    stage.kubectl("patch", "pod", "gated", "--type=merge", '--patch={"spec":{"schedulingGates":null}}')
    stage.runs("decides", "gated")


def _denied_request(stage: SchedulerStage) -> None:
    with stage.denied_requests("denied"):
        for name in ("denied", "first"):
            stage.submit(name, 1)
        stage.runs("survives-a-denial", "first")
        stage.submit("second", 1)
        stage.runs("survives-a-denial", "second")
        before, calls = stage.denials(), stage.calls()
        stage.observe(OBSERVED_S)
        tries, calls = stage.denials() - before, stage.calls() - calls
        why = f"{calls} calls of the API in {OBSERVED_S:g} s, for one pod: a scheduler pauses, or watches"
        stage.require("pauses-between-passes", calls <= CALLS_PER_S * OBSERVED_S, why)
        why = f"{tries} denied requests in {OBSERVED_S:g} s: a scheduler pauses after a denial"
        stage.require("pauses-after-a-denial", tries <= DENIALS_PER_S * OBSERVED_S, why)
    stage.runs("repeats-a-denied-request", "denied")


def _removed_cause(stage: SchedulerStage) -> None:
    def left_alone() -> Mapping[str, Any] | None:
        return next((item for item in _failures(stage, "frozen") if not item["status"].get("suggestion")), None)

    with stage.failing_binds("frozen", "no binds during a freeze"):
        stage.submit("frozen", 1)
        request = stage.until("decides", "the bind has failed, and no other decision helps", left_alone)
    stage.runs("decides-again-when-the-cause-has-gone", "frozen")
    end = datetime.fromisoformat(request["status"]["completionTime"])
    pauses = [time - end for time in stage.deletes(request["metadata"]["uid"])]
    why = f"the failed request was deleted at once: {', '.join(map(str, pauses))} after its end"
    stage.require("pauses-after-a-failure", all(pause >= SHORTEST_PAUSE for pause in pauses), why)


def _delete_pod(stage: SchedulerStage) -> None:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "controller"}}
    uid = stage.cluster.api.post(f"/api/v1/namespaces/{stage.namespace}/configmaps", body)["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "controller", "uid": uid, "controller": True}
    tolerations = [{"key": f"example.com/{number}", "operator": "Exists"} for number in range(MAX_TOLERATIONS + 1)]
    stage.submit("bare", 1, tolerations=tolerations)
    stage.until("decides", "no node is suitable for the pod", lambda: _is_hopeless(stage, "bare"))
    stage.submit("owned", 1, tolerations=tolerations, owner=owner)
    stage.until("deletes-a-controllers-pod", "the pod is deleted", lambda: "owned" not in stage.stored_pods())
    del stage.pods["owned"]


def _is_hopeless(stage: SchedulerStage, name: str) -> bool:
    """Whether the pod's request has failed with DeletePod, or the pod is deleted already."""
    suggestions = [item["status"].get("suggestion") for item in _failures(stage, name)]
    return "DeletePod" in suggestions or name not in stage.stored_pods()


def _others_requests(stage: SchedulerStage) -> None:
    uid = stage.submit("theirs", 1, scheduler=OTHER)
    stage.create_request(bind_request("theirs", "no-such-node", stage.namespace, uid))
    stage.wait("the other scheduler's decision fails", lambda: _failures(stage, "theirs"))
    for name in ("first", "second"):
        stage.submit(name, 1)
        stage.runs("decides", name)
    is_kept = bool(_failures(stage, "theirs"))
    stage.require("own-pods-only", is_kept, f"a failed request of a pod of {OTHER} was deleted")


def _failures(stage: SchedulerStage, name: str) -> list[dict[str, Any]]:
    """Return the pod's failed requests."""
    return [item for item in stage.requests(name) if (item.get("status") or {}).get("phase") == "Failed"]


def _shares(stage: SchedulerStage) -> None:
    with stage.stopped_reconciler():
        stage.submit("whole", 6, OTHER_NODE)
        stage.decided("decides", "whole")
        groups = {}
        halves = ("first", "second", "third", "fourth")
        for name, node in (("first", OTHER_NODE), ("elsewhere", NODE), *((name, OTHER_NODE) for name in halves[1:])):
            stage.submit(name, 0, node, share="0.5")
            request = stage.decided("decides-shares", name)
            groups[name] = _groups(request)
            stage.require("names-groups", len(groups[name]) == 1, f"the request for half a device, {name}, names one")
            received = request["spec"].get("receivedGPU") or {}
            kind, part = request["spec"].get("receivedResourceType"), (received.get("count"), received.get("portion"))
            is_stated = kind == "Fraction" and part in ((1, "0.5"), (1, "0.50"))
            stage.require("states-the-share", is_stated, f"half of one device, {name}, is {kind}, {received}")
        why = f"groups of two halves on one node: {groups['first']}, {groups['second']}"
        stage.require("joins-a-group", groups["first"] == groups["second"], f"one device is free for both; {why}")
        is_shared = groups["elsewhere"] & groups["first"]
        stage.require("group-of-one-node", not is_shared, f"pods on two nodes have the group {', '.join(is_shared)}")
        why = f"three halves have one group: {groups}"
        stage.require("counts-shares", groups["third"] != groups["first"], why)
        stage.submit("fifth", 0, OTHER_NODE, share="0.5")
        _pass_ends(stage, "fifth", stage.decided)
        why = "6 devices and four halves are decided, and a fifth half got a request for the same node"
        stage.require("counts-shares", not stage.requests("fifth"), why)
        stage.delete_pods(*stage.pods)


def _groups(request: Mapping[str, Any]) -> set[str]:
    spec = request["spec"]
    return {group["id"] for group in spec.get("selectedFractionalGpuGroups") or ()} or set(
        spec.get("selectedGPUGroups") or ()
    )


def _too_large(stage: SchedulerStage) -> None:
    stage.submit("too-large", 9)
    stage.until(
        "reports-why", "an event of the pod says why no node fits", lambda: stage.warnings("too-large") or None
    )
    before = len(stage.warnings("too-large"))
    stage.observe(OBSERVED_S)
    number = len(stage.warnings("too-large")) - before
    why = f"{number} new events in {OBSERVED_S:g} s, and nothing has changed"
    stage.require("repeats-no-event", number <= EVENTS_PER_S * OBSERVED_S, why)


def _pass_ends(stage: SchedulerStage, name: str, until: Callable[[str, str], object]) -> None:
    """Two later pods on the other node are decided in turn: the scheduler has considered the pod ``name``.

    One is not enough: a scheduler that lists all pods may decide the later pod of the list first.
    """
    for number in (1, 2):
        stage.submit(f"{name}-barrier-{number}", 1, NODE)
        until("decides", f"{name}-barrier-{number}")


def _does_not_fit(stage: SchedulerStage, name: str, gpus: int, *, rule: str, **spec: Any) -> None:
    """The pod gets no request, not even one that is deleted soon: two later pods on the other node are decided."""
    earlier = _created_names(stage)
    stage.submit(name, gpus, OTHER_NODE, **spec)
    _pass_ends(stage, name, stage.runs)
    why = f"{name} cannot be bound to {OTHER_NODE} now, and got a request for it"
    new_names = _created_names(stage) - earlier
    has_other = any(not request.startswith(f"{name}-barrier-") for request in new_names)
    stage.require(rule, not (stage.requests(name) or has_other), why)


def _created_names(stage: SchedulerStage) -> set[str]:
    """Return the names of the requests that were ever created in the namespace."""
    return {name for name, code in stage.creations() if code == HTTPStatus.CREATED}


def _each_created_once(stage: SchedulerStage, pods: Sequence[str]) -> None:
    """No second request; the reply to one that is stored may have failed, as its program was killed."""
    creations = stage.creations()
    counts = {name: creations[name, HTTPStatus.CREATED] or len(stage.requests(name)) for name in pods}
    stage.require("one-request-per-pod", set(counts.values()) == {1}, f"requests created: {counts}")


SCHEDULER_CASES: tuple[Case[SchedulerStage], ...] = (
    Case("first-decision", "a pod gets one request; pods of other schedulers get none", _first_decision),
    Case(
        "repeated-failure",
        "a pod whose bind fails keeps no other pod from the node, and is decided again when the cause is gone",
        _repeated_failure,
    ),
    Case("removed-cause", "a pod whose failure no other decision helps is decided again later", _removed_cause),
    Case("failed-node", "a pod whose failure suggests RescheduleElsewhere is decided for another node", _failed_node),
    Case("delete-pod", "of pods for which no node is suitable those of a controller are deleted", _delete_pod),
    Case("others-requests", "a failed request of another scheduler's pod is left alone", _others_requests),
    Case("shares", "shares of a device are counted, and a group belongs to one node", _shares),
    Case("too-large", "a pod that fits no node has an event that says why", _too_large),
    Case("stale-node", "a node that is cordoned after the decision is left", _stale_node),
    Case("restart", "kill -9 between two decisions: no second request, no capacity used twice", _restart),
    Case(
        "two-schedulers", "another scheduler's pods use capacity, and it alone deletes its requests", _two_schedulers
    ),
    Case(
        "hostile-pod",
        "pods with annotations that no admission has reviewed keep no other pod from a node",
        _hostile_pod,
    ),
    Case("unfinished-requests", "what is decided and not bound yet is used, and not withdrawn", _unfinished_requests),
    Case("ending-pods", "a pod uses its devices until it has ended or is gone, and nothing afterwards", _ending_pods),
    Case("other-needs", "init containers, sidecars and resources other than GPUs are counted", _other_needs),
    Case(
        "unsuitable-node", "taints of a node and the required node affinity of a pod are observed", _unsuitable_node
    ),
    Case("successor", "a new pod of the name of one that is gone gets a request of its own", _successor),
    Case("gates", "a pod with a scheduling gate gets no request before the gate is removed", _gates),
    Case(
        "denied-request",
        "a denied request keeps no other pod from a node, and is repeated, not at once",
        _denied_request,
    ),
)
