"""Why a pod is not bound, from the objects in the cluster: what happens, since when, until when, what helps. Pure.

The rows are those of docs/stuck-pods.md, in the order in which a pod passes its scheduler, the reconciler and the
kubelet. Nothing is guessed: where an object could not be read, the explanation says so (``Facts.unreadable``).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Final

from bowline.api import names
from bowline.api.label_selector import parse_label_selector
from bowline.api.meta import Object, ObjectKey, is_deleting, parse_time, status_of
from bowline.api.request_facts import failure_of, reported_status
from bowline.framework.reason import Reason, Suggestion

_WAITING_FOR = re.compile(r" \(waiting for ([^()]*)\)")
_DEADLINE = re.compile(r"; (fails with WaitTimeout at \S+)$")
_DENIAL = re.compile(r'admission webhook "[^"]*" denied the request: ?')
_WEBHOOK_FAILURE = 'failed calling webhook "'
# A Lease whose holder has not renewed it for so many times its duration: clocks differ.
_EXPIRED_AFTER: Final = 2
_KAI: Final = "kai-scheduler"


@dataclass(frozen=True, slots=True)
class Facts:
    """What was read. ``unreadable``: what could not be, and why; the fields are then empty.

    ``events``: those about the pod and its request (core/v1), oldest first; without a pod, the failed creations of
    pods in its namespace. ``leases``: of reconcilers. ``system``: the release's namespace.
    """

    key: ObjectKey
    now: datetime
    pod: Object | None = None
    request: Object | None = None
    events: Sequence[Object] = ()
    leases: Sequence[Object] = ()
    deployments: Sequence[Object] = ()
    awaited_pods: Sequence[Object] = ()
    scheduler_names: Sequence[str] = ()
    system: str = "bowline-system"
    unreadable: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Explanation:
    """What happens, since when, until when, and the commands that help; ``is_stuck`` is False once the pod runs."""

    cause: str
    since: datetime | None = None
    until: str = ""
    commands: tuple[str, ...] = ()
    details: tuple[str, ...] = ()
    is_stuck: bool = True


def explain(facts: Facts) -> Explanation | None:
    """Return the explanation; None if neither the pod nor a failed creation of it exists."""
    if facts.pod is None:
        return _uncreated(facts) if facts.request is None else _orphan(facts, facts.request)
    if (facts.pod.get("spec") or {}).get("nodeName"):
        return _bound(facts, facts.pod)
    if facts.request is None:
        return _undecided(facts, facts.pod)
    return _decided(facts, facts.request)


def awaited_keys(request: Object) -> list[ObjectKey]:
    """Return the keys of the pods that the request's status names as awaited."""
    return [key for kind, key in _awaited(_reason(request)) if kind == "Pod"]


# --- before the decision ---


def _uncreated(facts: Facts) -> Explanation | None:
    """Explain why a controller's pods are not created; the name may be a prefix of theirs."""
    name = facts.key.name
    failures = [event for event in facts.events if _may_create(event["involvedObject"].get("name") or "", name)]
    if not failures:
        return None
    event = failures[-1]
    owner, message = event["involvedObject"], event.get("message") or ""
    cause = f"the pod is not created; {owner.get('kind')} {owner.get('name')}: {message}"
    since = parse_time(event.get("firstTimestamp") or event.get("eventTime"))
    if _WEBHOOK_FAILURE in message:
        until = "a replica of the webhook answers; the controller retries"
        check = f"kubectl -n {facts.system} get pods,endpointslices"
        return Explanation(cause, since, until, (check,), _components(facts, "webhook"))
    if _DENIAL.search(message):
        edit = f"kubectl -n {facts.key.namespace} edit {str(owner.get('kind')).lower()} {owner.get('name')}"
        return Explanation(cause, since, "the pod template is corrected, in the object that owns it", (edit,))
    return Explanation(cause, since, "the cause is removed; the controller retries")


def _may_create(owner: str, pod: str) -> bool:
    return owner == pod or owner.startswith(f"{pod}-") or pod.startswith(f"{owner}-")


def _undecided(facts: Facts, pod: Object) -> Explanation:
    spec, since, namespace = pod.get("spec") or {}, _created(pod), facts.key.namespace
    scheduler = spec.get("schedulerName") or "default-scheduler"
    describe = f"kubectl -n {namespace} describe pod {facts.key.name}"
    gates = [str(gate.get("name")) for gate in spec.get("schedulingGates") or ()]
    if gates:
        cause = f"no scheduler decides while the pod has scheduling gates: {', '.join(gates)}"
        return Explanation(cause, since, "their owners remove the gates", (describe,))
    served = facts.scheduler_names
    if served and "*" not in served and scheduler not in served:
        cause = f"schedulerName {scheduler} is not one that Bowline serves ({', '.join(served)})"
        matches = get_close_matches(scheduler, served, 1)
        if matches:
            cause += f"; did you mean {matches[0]}?"
        until = f"a scheduler named {scheduler} binds it; to change the immutable name, delete and create the pod"
        return Explanation(cause, since, until, ("kubectl get pods -A | grep -i scheduler",), _last_event(facts))
    condition = _condition(pod, "PodScheduled")
    if condition.get("status") == "False" and condition.get("message"):
        cause = f"scheduler {scheduler} has found no node: {condition['message']}"
        since = parse_time(condition.get("lastTransitionTime")) or since
        return Explanation(cause, since, f"{scheduler} decides again", (describe,), _queue(scheduler, pod))
    cause = f"no scheduler has decided: no BindRequest names the pod, and {scheduler} has reported nothing about it"
    commands = ("kubectl get pods -A | grep -i scheduler", describe)
    details = (*_last_event(facts), *_queue(scheduler, pod))
    return Explanation(cause, since, f"{scheduler} decides: is it installed and running?", commands, details)


def _queue(scheduler: str, pod: Object) -> tuple[str, ...]:
    """Return which queue KAI-Scheduler uses: the label of the top owner, else the pod's, else default-queue."""
    if scheduler != _KAI:
        return ()
    label = (pod["metadata"].get("labels") or {}).get(names.QUEUE_LABEL)
    of_pod = f"{label} of the pod" if label else "that of the pod (none)"
    return (f"queue: label {names.QUEUE_LABEL} of the pod's owner, else {of_pod}, else default-queue",)


# --- after the decision ---


def _decided(facts: Facts, request: Object) -> Explanation:
    if is_deleting(request):
        return _deleting(facts, request)
    status, reason = status_of(request), _reason(request)
    phase, word = status.get("phase"), reason.partition(":")[0]
    if phase == "Failed":
        return _failed(facts, request)
    if phase == "Succeeded":
        node = (request.get("spec") or {}).get("selectedNode")
        cause = f"its BindRequest has Succeeded for node {node}, of an earlier pod of that name"
        return Explanation(cause, commands=(_delete_request(facts),))
    unserved = _unserved(facts, request)
    if unserved is not None:
        return unserved
    message = reason.removeprefix(f"{word}: ")
    if word == "Waiting":
        return _waiting(facts, request, message)
    describe = f"kubectl -n {facts.key.namespace} describe bindrequest {facts.key.name}"
    if word == "Retrying":
        since = parse_time(status.get("startTime")) or _created(request)
        until = f"the next attempt, at {status.get('nextAttemptTime') or 'the next retry'}"
        return Explanation(message, since, until, (describe,))
    if word in ("RollbackFailed", "Released"):
        return Explanation(message, _transition(request, "RolledBack"), commands=(describe,))
    cause = "the reconciler has not reported on the BindRequest yet; it reports a wait after 5 s"
    return Explanation(cause, _created(request), commands=(describe,))


def _waiting(facts: Facts, request: Object, message: str) -> Explanation:
    deadline = _DEADLINE.search(message)
    cause = _DEADLINE.sub("", message)
    until = deadline[1] if deadline else "the object changes; there is no deadline"
    commands = [
        f"kubectl {f'-n {key.namespace} ' if key.namespace else ''}describe {kind.lower()} {key.name}"
        for kind, key in _awaited(message)
    ]
    if "StorageClass" in message:
        commands.append("kubectl get storageclasses")
    details = tuple(f"Pod {_key(pod)}: {_pod_state(pod)}" for pod in facts.awaited_pods)
    return Explanation(cause, _transition(request, "Prepared"), until, tuple(commands), details)


def _failed(facts: Facts, request: Object) -> Explanation:
    status, reason = reported_status(request), _reason(request)
    suggestion = str(status.get("suggestion") or "")
    next_step = next((each.next_step for each in Suggestion if each.value == suggestion), "")
    until = next_step or "the cause is corrected and the BindRequest deleted, for a new decision"
    failure, node = failure_of(status), str((request.get("spec") or {}).get("selectedNode") or "")
    remedy = next((each.remedy for each in Reason if failure is not None and each.value == failure.reason), "")
    commands = [remedy.format(namespace=facts.key.namespace, system=facts.system, node=node)] if remedy else []
    if suggestion == Suggestion.DELETE_POD.value:
        commands.append(f"kubectl -n {facts.key.namespace} delete pod {facts.key.name}")
    elif not suggestion:
        commands.append(_delete_request(facts))
    return Explanation(
        f"the bind has failed: {reason}", parse_time(status.get("completionTime")), until, tuple(commands)
    )


def _orphan(facts: Facts, request: Object) -> Explanation:
    if is_deleting(request):
        return _deleting(facts, request)
    cause = "the pod does not exist; its BindRequest remains until the garbage collector or its scheduler deletes it"
    return Explanation(cause, _created(request), commands=(_delete_request(facts),))


def _deleting(facts: Facts, request: Object) -> Explanation:
    finalizers = request["metadata"].get("finalizers") or []
    since = parse_time(request["metadata"].get("deletionTimestamp"))
    if names.FINALIZER not in finalizers:
        cause = f"its BindRequest is being deleted; finalizers of others: {', '.join(finalizers) or 'none'}"
        return Explanation(cause, since, "their owners remove them")
    cause = f"its BindRequest is being deleted; finalizer {names.FINALIZER} keeps it until it is rolled back"
    message = _condition(request, "RolledBack").get("message")
    details = (f"rollback: {message}",) if message else ()
    unserved = _unserved(facts, request)
    if unserved is None:
        describe = f"kubectl -n {facts.key.namespace} describe bindrequest {facts.key.name}"
        return Explanation(cause, since, "the rollback is complete", (describe,), details)
    return replace(unserved, cause=f"{cause}; {unserved.cause}", since=since, details=(*details, *unserved.details))


def _unserved(facts: Facts, request: Object) -> Explanation | None:
    """Explain that no reconciler serves the request; None if one does, or if that could not be read."""
    if any("leases" in text for text in facts.unreadable):
        return None
    since = _created(request)
    held_leases = [lease for lease in facts.leases if is_held(lease, facts.now)]
    if not held_leases:
        names_of_leases = ", ".join(str(_key(lease)) for lease in facts.leases) or "none exists"
        cause = f"no reconciler leads: no Lease of a reconciler is held ({names_of_leases})"
        commands = (
            f"kubectl -n {facts.system} get leases,deployments,pods",
            f"kubectl -n {facts.system} logs --selector app.kubernetes.io/component=reconciler --tail 20",
        )
        return Explanation(cause, since, "a reconciler leads", commands, _components(facts, "reconciler"))
    labels = request["metadata"].get("labels") or {}
    selectors = {str(_key(lease)): _selector(lease) for lease in held_leases}
    if any(selector is None or parse_label_selector(selector).selects(labels) for selector in selectors.values()):
        return None
    shards = ", ".join(f"{lease} ({selector})" for lease, selector in selectors.items())
    own_labels = ", ".join(f"{key}={value}" for key, value in labels.items()) or "none"
    cause = f"no shard selects its BindRequest: its labels are {own_labels}; shards: {shards}"
    command = f"kubectl -n {facts.key.namespace} label bindrequest {facts.key.name} KEY=VALUE"
    return Explanation(cause, since, "its labels or a shard's selector change", (command,))


def is_held(lease: Object, now: datetime) -> bool:
    """Return whether a Lease is held, as far as this machine's clock can say."""
    spec = lease.get("spec") or {}
    renewed_at = parse_time(spec.get("renewTime"))
    if not spec.get("holderIdentity") or renewed_at is None:
        return False
    return now - renewed_at < timedelta(seconds=_EXPIRED_AFTER * int(spec.get("leaseDurationSeconds") or 0))


def _selector(lease: Object) -> str | None:
    """Return the selector of the Lease's shard; None if it cannot be parsed, as of another version."""
    text = (lease["metadata"].get("annotations") or {}).get(names.SHARD_SELECTOR)
    try:
        return str(parse_label_selector(text)) if text is not None else None
    except ValueError:
        return None


# --- after the bind ---


def _bound(facts: Facts, pod: Object) -> Explanation:
    node, state = pod["spec"]["nodeName"], _pod_state(pod)
    phase = status_of(pod).get("phase")
    describe = f"kubectl -n {facts.key.namespace} describe pod {facts.key.name}"
    if phase in ("Running", "Succeeded", "Failed"):
        return Explanation(f"the pod is bound to node {node}: {state}", is_stuck=False)
    since = parse_time(_condition(pod, "PodScheduled").get("lastTransitionTime")) or _created(pod)
    cause = f"the pod is bound to node {node}; its kubelet has not started it yet: {state}"
    return Explanation(cause, since, "the kubelet starts it", (describe,), _last_event(facts))


def _pod_state(pod: Object) -> str:
    """Return the phase of a pod, its node, and what its containers wait for."""
    status, node = status_of(pod), (pod.get("spec") or {}).get("nodeName")
    words = [str(status.get("phase") or "Pending"), f"on node {node}" if node else "without a node"]
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason"):
            message = f": {waiting['message']}" if waiting.get("message") else ""
            words.append(f"container {container.get('name')} {waiting['reason']}{message}")
    scheduled = _condition(pod, "PodScheduled")
    if not node and scheduled.get("message"):
        words.append(str(scheduled["message"]))
    return ", ".join(words)


# --- parts of objects ---


def _awaited(reason: str) -> list[tuple[str, ObjectKey]]:
    """Return kind and key of the objects that a wait names."""
    match = _WAITING_FOR.search(reason)
    objects = []
    for text in match[1].split(", ") if match else ():
        kind, _, key = text.partition(" ")
        namespace, _, name = key.rpartition("/")
        objects.append((kind, ObjectKey(namespace, name)))
    return objects


def _components(facts: Facts, component: str) -> tuple[str, ...]:
    return tuple(
        f"Deployment {_key(deployment)}: {status_of(deployment).get('readyReplicas') or 0} of "
        f"{(deployment.get('spec') or {}).get('replicas', 0)} replicas ready"
        for deployment in facts.deployments
        if (deployment["metadata"].get("labels") or {}).get("app.kubernetes.io/component") == component
    )


def _last_event(facts: Facts) -> tuple[str, ...]:
    if not facts.events:
        return ()
    event = facts.events[-1]
    source = event.get("reportingComponent") or (event.get("source") or {}).get("component") or ""
    return (f"last event: {event.get('reason')} from {source}: {event.get('message')}",)


def _condition(obj: Object, kind: str) -> Object:
    conditions = status_of(obj).get("conditions") or ()
    return next((condition for condition in conditions if condition.get("type") == kind), {})


def _transition(request: Object, kind: str) -> datetime | None:
    return parse_time(_condition(request, kind).get("lastTransitionTime")) or _created(request)


def _created(obj: Object) -> datetime | None:
    return parse_time(obj["metadata"].get("creationTimestamp"))


def _reason(request: Object) -> str:
    return str(status_of(request).get("reason") or "")


def _key(obj: Object) -> ObjectKey:
    return ObjectKey(obj["metadata"].get("namespace") or "", obj["metadata"]["name"])


def _delete_request(facts: Facts) -> str:
    return f"kubectl -n {facts.key.namespace} delete bindrequest {facts.key.name}"
