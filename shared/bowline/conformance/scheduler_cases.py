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
from bowline.conformance.case import NODE, NODE_LABEL, OTHER_NODE, Case
from bowline.conformance.scheduler import OTHER, SchedulerStage
from bowline.localcluster.nodes import GPU_MEMORY_MIB
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

# Shares of devices, each with the number of devices and its part of each.
_HALF: Final = {names.GPU_FRACTION: "0.5"}
_QUARTERS: Final = {names.GPU_MEMORY: str(GPU_MEMORY_MIB // 4), names.GPU_FRACTION_NUM_DEVICES: "2"}
# By how much a part may be rounded.
_ROUNDING: Final = 0.02


def _first_decision(stage: SchedulerStage) -> None:
    stage.submit("foreign", 1, scheduler=OTHER)
    stage.submit("placed", 0, nodeName=NODE)
    pods = {"cpu": 0, "one": 1, "two": 2}
    for name, gpus in pods.items():
        uid = stage.submit(name, gpus)
        stage.runs("decides", name)
        stage.require("owner", _has_request(stage, name, uid), f"the request for {name} is not owned by its pod")
    _each_created_once(stage, tuple(pods))
    stage.require("own-pods-only", not stage.requests("foreign"), f"a pod of {OTHER} got a request")
    stage.require("unbound-pods-only", not stage.requests("placed"), "a pod that is on its node got a request")


def _has_request(stage: SchedulerStage, name: str, uid: str) -> bool:
    """Whether the pod's request is for that UID, by its owner and its spec."""
    requests = stage.requests(name)
    owners = [owner["uid"] for item in requests for owner in item["metadata"].get("ownerReferences") or ()]
    return owners == [uid] and requests[0]["spec"].get("podUID", uid) == uid


def _repeated_failure(stage: SchedulerStage) -> None:
    with stage.failing_binds("doomed"):
        stage.submit("doomed", 8, OTHER_NODE)
        stage.decided("decides", "doomed")
        stage.submit("neighbour", 8, OTHER_NODE)
        stage.runs("frees-the-node", "neighbour")
        stage.delete_pods("neighbour")
    # A changed pod may be decided again at once.
    stage.change_pod("doomed", {"metadata": {"annotations": {"example.com/cause": "fixed"}}})
    stage.runs("replaces-failed-requests", "doomed")


def _stale_node(stage: SchedulerStage) -> None:
    _leaves_a_node(stage, "leaves-unsuitable-nodes", partial(stage.changed_node, unschedulable=True))


def _failed_node(stage: SchedulerStage) -> None:
    obstacle = partial(stage.failing_binds, "moved", "the node is not for this pod")
    first_node = _leaves_a_node(stage, "reschedules-elsewhere", obstacle)
    stage.submit("neighbour", 1, first_node)
    stage.runs("frees-the-node", "neighbour")


def _leaves_a_node(stage: SchedulerStage, rule: str, obstacle: Callable[[str], AbstractContextManager[None]]) -> str:
    """The pod is bound to another node, when an obstacle appears at the first one after the decision: returns it."""
    with ExitStack() as ending:
        with stage.stopped_reconciler():
            stage.submit("moved", 1)
            first_node = str(stage.decided("decides", "moved")["spec"]["selectedNode"])
            ending.enter_context(obstacle(first_node))
        is_left = stage.runs(rule, "moved") != first_node
        stage.require(rule, is_left, f"the pod is bound to {first_node}, which is not for it any more")
    return first_node


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
    with stage.other_namespace() as others:
        # Of the name that a pod of the program has as well.
        uid = others.submit("fits", 6, OTHER_NODE, scheduler=OTHER)
        gpus = {"count": 6, "portion": "1.00"}
        others.create_request(bind_request("fits", OTHER_NODE, others.namespace, uid, receivedGPU=gpus))
        stage.wait("the pod of the other scheduler is bound", lambda: others.pod("fits")["spec"].get("nodeName"))
        stage.submit("waiting", 1, NODE, scheduler=OTHER)
        stage.submit("fits", 2, OTHER_NODE)
        stage.runs("decides", "fits")
        _does_not_fit(stage, "too-large", 1, rule="counts-what-is-used")
        stage.require("own-pods-only", not stage.requests("waiting"), f"a pod of {OTHER} got a request")
        is_kept = len(others.requests("fits")) == 1
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
        stage.delete_pods("second-barrier-2")
        uid = stage.submit("second-barrier-2", 1, NODE)
        why = "a request for a pod whose predecessor of the same name was deleted before it was bound"
        stage.until("decides-for-a-successor", why, lambda: _has_request(stage, "second-barrier-2", uid))
        created = stage.creations()["second-barrier-1", HTTPStatus.CREATED]
        is_single = created <= 1 and len(stage.requests("second-barrier-1")) == 1
        why = "the request for second-barrier-1 was replaced while its phase was not final"
        stage.require("waits-for-the-result", is_single, why)


def _ending_pods(stage: SchedulerStage) -> None:
    stage.submit("terminating", 8, OTHER_NODE)
    stage.runs("decides", "terminating")
    with stage.kept("pods", "terminating"):
        stage.delete_pods("terminating", grace_period_s=30)
        # Its containers have not been started yet.
        stage.change_pod("terminating", {"status": {"phase": "Pending"}}, "status")
        _does_not_fit(stage, "next", 8, rule="counts-what-is-used")
    stage.runs("frees-what-has-ended", "next")
    # Or its kubelet writes Running over the end.
    stage.wait("pod next is running", lambda: stage.pod("next")["status"].get("phase") == "Running")
    stage.change_pod("next", {"status": {"phase": "Succeeded"}}, "status")
    stage.submit("last", 8, OTHER_NODE)
    stage.runs("frees-what-has-ended", "last")


def _other_needs(stage: SchedulerStage) -> None:
    def container(name: str, amounts: Mapping[str, str], **fields: str) -> list[dict[str, Any]]:
        resources = {"requests": amounts, "limits": amounts}
        return [{"name": name, "image": "registry.example/app:1", "resources": resources, **fields}]

    stage.submit("small", 1, OTHER_NODE)
    stage.runs("decides", "small")
    gpus = {names.RESOURCE_GPU: "4"}
    sidecar = container("sidecar", gpus, restartPolicy="Always")
    stage.submit("init", 0, OTHER_NODE, initContainers=container("init", {names.RESOURCE_GPU: "8"}))
    stage.submit("sidecar", 4, OTHER_NODE, initContainers=sidecar)
    main = container("main", {"cpu": "1"})
    stage.submit("cpu", 0, OTHER_NODE, containers=main + container("second", {"cpu": "100k"}))
    stage.submit("absent", 0, OTHER_NODE, containers=container("main", {"example.com/absent": "1"}))
    # The claim does not exist, so no request can have its allocation.
    stage.submit("claim", 0, OTHER_NODE, resourceClaims=[{"name": "device", "resourceClaimName": "absent"}])
    every = "counts-every-resource"
    rules = {"init": "counts-init-containers", "sidecar": "counts-sidecars", "cpu": every, "absent": every}
    if stage.pod("claim")["spec"].get("resourceClaims"):  # an older API server drops them
        rules["claim"] = "allocates-claims"
    _pass_ends(stage, "absent", stage.runs)
    _stay_undecided(stage, rules)
    with stage.changed_node(OTHER_NODE, "status", allocatable={"pods": "1"}):
        _does_not_fit(stage, "second-pod", 0, rule=every)


def _unsuitable_node(stage: SchedulerStage) -> None:
    rule = "leaves-unsuitable-nodes"
    taints = [{"key": f"example.com/{effect}", "effect": effect} for effect in ("NoSchedule", "NoExecute")]
    tolerations = [{"key": taint["key"], "operator": "Exists"} for taint in taints]
    here, elsewhere = ({"key": NODE_LABEL, "operator": "In", "values": [node]} for node in (OTHER_NODE, NODE))
    with stage.changed_node(OTHER_NODE, taints=taints):
        stage.submit("no-schedule", 1, OTHER_NODE, tolerations=tolerations[1:])
        stage.submit("no-execute", 1, OTHER_NODE, tolerations=tolerations[:1])
        # One of several terms is enough, of a term every expression is required.
        affinity = _required([here, elsewhere], [elsewhere])
        stage.submit("elsewhere", 1, OTHER_NODE, tolerations=tolerations, affinity=affinity)
        affinity = _required([elsewhere], [here])
        stage.submit("either", 1, OTHER_NODE, tolerations=tolerations, affinity=affinity)
        stage.runs("decides", "either")
        _pass_ends(stage, "elsewhere", stage.runs)
        _stay_undecided(stage, dict.fromkeys(("no-schedule", "no-execute", "elsewhere"), rule))
    with stage.changed_node(OTHER_NODE, unschedulable=True):
        _does_not_fit(stage, "cordoned", 1, rule=rule)
    stage.runs("decides", "cordoned")


def _required(*terms: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    required = {"nodeSelectorTerms": [{"matchExpressions": expressions} for expressions in terms]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def _successor(stage: SchedulerStage) -> None:
    stage.submit("again", 1)
    stage.runs("decides", "again")
    # As long as a plugin holds something for the former pod, its request has the name of the next one.
    with stage.kept(names.PLURAL, "again"):
        stage.delete_pods("again")
        uid = stage.submit("again", 1)
        _pass_ends(stage, "again", stage.runs)
    stage.runs("decides-for-a-successor", "again")
    is_new = _has_request(stage, "again", uid)
    stage.require("owner", is_new, "the pod is bound by a request for its predecessor")


def _gates(stage: SchedulerStage) -> None:
    gates = [{"name": "example.com/quota"}]
    _does_not_fit(stage, "gated", 1, rule="waits-for-gates", schedulingGates=gates)
    stage.submit("deleted", 1, OTHER_NODE, schedulingGates=gates)
    with stage.kept("pods", "deleted"):
        stage.delete_pods("deleted")
        for name in ("deleted", "gated"):
            stage.change_pod(name, {"spec": {"schedulingGates": None}})
        stage.runs("decides", "gated")
        stage.submit("later", 1)
        stage.runs("decides", "later")
        _stay_undecided(stage, {"deleted": "decides-no-deleted-pods"})


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
    # What the failure suggests was for the former pod.
    with stage.kept(names.PLURAL, "bare"):
        stage.delete_pods("bare")
        stage.submit("bare", 1, owner=owner)
        _pass_ends(stage, "bare", stage.runs)
    stage.runs("decides-for-a-successor", "bare")


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
        first, second = (_share(stage, name, OTHER_NODE, _HALF, (1, 0.5)) for name in ("first", "second"))
        why = f"one device is free for two halves on one node; their groups: {first}, {second}"
        stage.require("joins-a-group", first == second, why)
        elsewhere = _share(stage, "elsewhere", NODE, _QUARTERS, (2, 0.25))
        why = f"pods on two nodes have the group {', '.join(elsewhere & first)}"
        stage.require("group-of-one-node", not elsewhere & first, why)
        # A new process knows the shares from the API only.
        stage.scheduler.kill()
        stage.scheduler.start()
        third, _ = (_share(stage, name, OTHER_NODE, _HALF, (1, 0.5)) for name in ("third", "fourth"))
        stage.require("counts-shares", third != first, f"three halves have the group {', '.join(first)}")
        stage.submit("fifth", 0, OTHER_NODE, annotations=_HALF)
        _pass_ends(stage, "fifth", stage.decided)
        why = "6 devices and four halves are decided, and a fifth half got a request for the same node"
        stage.require("counts-shares", not stage.requests("fifth"), why)
    # Three devices of the node are shared now, each held by a reservation pod.
    stage.delete_pods("whole")
    for name in ("first", "second", "third", "fourth", "fifth"):
        stage.runs("decides-shares", name)
    stage.submit("rest", 5, OTHER_NODE)
    stage.runs("counts-a-reservation-once", "rest")
    _does_not_fit(stage, "more", 1, rule="counts-shares")


def _share(
    stage: SchedulerStage, name: str, node: str, annotations: Mapping[str, str], size: tuple[int, float]
) -> set[str]:
    """A pod with a share is decided, and its request states the share: returns its groups."""
    stage.submit(name, 0, node, annotations=annotations)
    request = stage.decided("decides-shares", name)
    groups, received = _groups(request), request["spec"].get("receivedGPU") or {}
    number, part = size
    stage.require("names-groups", len(groups) == number, f"{name} needs {number} devices, its groups are {groups}")
    kind, portion = request["spec"].get("receivedResourceType"), float(received.get("portion") or 0)
    is_stated = kind == "Fraction" and received.get("count") == number and abs(portion - part) <= _ROUNDING
    stage.require("states-the-share", is_stated, f"{part} of {number} devices, {name}, is {kind}, {received}")
    return groups


def _groups(request: Mapping[str, Any]) -> set[str]:
    spec = request["spec"]
    return {group["id"] for group in spec.get("selectedFractionalGpuGroups") or ()} or set(
        spec.get("selectedGPUGroups") or ()
    )


def _too_large(stage: SchedulerStage) -> None:
    stage.submit("too-large", 9)
    stage.until("reports-why", "an event of the pod says why no node fits", lambda: bool(stage.warnings("too-large")))
    stage.until("reports-why", "the condition PodScheduled=False of the pod", lambda: _is_refused(stage, "too-large"))
    before = len(stage.warnings("too-large"))
    stage.observe(OBSERVED_S)
    number = len(stage.warnings("too-large")) - before
    why = f"{number} new events in {OBSERVED_S:g} s, and nothing has changed"
    stage.require("repeats-no-event", number <= EVENTS_PER_S * OBSERVED_S, why)


def _is_refused(stage: SchedulerStage, name: str) -> bool:
    conditions = stage.pod(name)["status"].get("conditions") or ()
    return any((condition["type"], condition["status"]) == ("PodScheduled", "False") for condition in conditions)


def _pass_ends(stage: SchedulerStage, name: str, until: Callable[[str, str], object]) -> None:
    """Two later pods on the other node are decided in turn: the scheduler has considered the pod ``name``.

    One is not enough: a scheduler that lists all pods may decide the later pod of the list first.
    """
    for number in (1, 2):
        stage.submit(f"{name}-barrier-{number}", 1, NODE)
        until("decides", f"{name}-barrier-{number}")


def _does_not_fit(stage: SchedulerStage, name: str, gpus: int, *, rule: str, **spec: Any) -> None:
    """The pod gets no request, not even one that is deleted soon: two later pods on the other node are decided."""
    stage.submit(name, gpus, OTHER_NODE, **spec)
    _pass_ends(stage, name, stage.runs)
    _stay_undecided(stage, {name: rule})


def _stay_undecided(stage: SchedulerStage, rules: Mapping[str, str]) -> None:
    """None of the pods was ever decided; with the rule of each."""
    creations = stage.creations()
    for name, rule in rules.items():
        why = f"{name} cannot be bound to {OTHER_NODE} now, and got a request for it"
        stage.require(rule, not creations[name, HTTPStatus.CREATED], why)


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
