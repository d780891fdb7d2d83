"""What is read to explain a pod, and how its parts are shown. Data, and functions of single objects."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from bowline.api import names
from bowline.api.failed_decision import FailedDecision, condition_of, failed_decision_of
from bowline.api.meta import Object, ObjectKey, ObjectRef, is_deleting, key_of, parse_time, status_of
from bowline.api.request_facts import failure_of, reported_status, wait_of
from bowline.framework.reason import Reason
from bowline_cli.reader import Unread, component_of, readable
from bowline_cli.rights import plural_of

# Kinds that requests wait for and that failures are about; others are a plugin's own.
KINDS: Final = frozenset(
    (
        *(names.KIND, names.POD_GROUP_KIND, "ConfigMap", "Namespace", "Node", "Pod"),
        *("PersistentVolume", "PersistentVolumeClaim", "ResourceClaim", "StorageClass"),
    )
)
NOT_READ: Final = Unread("not read")
# What a container waits for that nothing prevents from starting, as far as it says.
_STARTING: Final = ("ContainerCreating", "PodInitializing")


@dataclass(frozen=True, slots=True)
class ReleaseInfo:
    """What a release publishes for all users (the chart's ConfigMap whose name ends with ``-info``)."""

    scheduler_names: tuple[str, ...] = ()
    repeat_backoff: timedelta = timedelta(seconds=60)
    docs: str = ""
    binds_volumes: bool = True


@dataclass(frozen=True, slots=True)
class GangFacts:
    """The gang of the pod: its PodGroup, or None or Unread; its pods, and the requests of their namespace."""

    ref: ObjectRef
    pod_group: Object | Unread | None
    members: Sequence[Object] | Unread = ()
    requests: Sequence[Object] | Unread = ()


@dataclass(frozen=True, slots=True)
class Facts:
    """What was read. ``unreadable``: what could not be, and why; the fields are then empty.

    - ``request``: of the pod's name, perhaps of an earlier pod. ``events``: about the pod (core/v1), oldest first.
    - ``leases``: of the release's reconcilers; ``schedulers``: Leases with the name of the pod's scheduler.
    - ``objects``: those that the request waits for or that its failure is about; None: it does not exist.
    - ``object_events``: the last event about one of them. ``gang``: None: the pod is in none.
    - ``slices``: of ResourceSlices; None: not read.
    - ``info``: None: not published, or not read.
    - ``system``: the release's namespace.
    """

    key: ObjectKey
    now: datetime
    pod: Object | None = None
    request: Object | None = None
    events: Sequence[Object] = ()
    leases: Sequence[Object] | Unread = ()
    schedulers: Sequence[Object] = ()
    deployments: Sequence[Object] | Unread = NOT_READ
    objects: Mapping[ObjectRef, Object | Unread | None] = field(default_factory=dict)
    object_events: Mapping[ObjectRef, Object] = field(default_factory=dict)
    gang: GangFacts | None = None
    slices: int | None = None
    info: ReleaseInfo | None = None
    system: str = "bowline-system"
    unreadable: Sequence[str] = ()


class Section(StrEnum):
    """An anchor of docs/stuck-pods.md; empty: no section is about the explanation."""

    NONE = ""
    NO_DECISION = "no-decision"
    BETWEEN_DECISIONS = "between-two-decisions"
    UNREAD = "nothing-reads-the-request"
    WAITS = "waits"
    BACKOFF = "backoff"
    FAILURES = "failures"
    DELETION = "the-deletion-waits"
    BOUND = "the-pod-is-bound-and-does-not-run"


@dataclass(frozen=True, slots=True)
class Explanation:
    """What happens, since when, until when, and the commands that help; ``is_stuck``: it needs someone to act.

    ``afterwards``: what helps once the cause is corrected, the first command that the reader may run.
    """

    cause: str
    since: datetime | None = None
    until: str = ""
    commands: tuple[str, ...] = ()
    details: tuple[str, ...] = ()
    is_stuck: bool = True
    afterwards: tuple[str, ...] = ()
    section: Section = Section.NONE


@dataclass(frozen=True, slots=True)
class PodRecord:
    """The cause of the pod's last failure, as its conditions keep it. ``since``: on whatever node."""

    cause: str
    since: datetime
    decision: FailedDecision


def record_of(pod: Object) -> PodRecord | None:
    """Return the record of the last failure, ended or attempted again; None if nothing has failed."""
    decision, condition = failed_decision_of(pod), condition_of(pod, names.CONDITION_POD_BOUND)
    if decision is None:
        return None
    since = parse_time(condition.get("lastTransitionTime")) or decision.first
    return PodRecord(str(condition.get("message") or decision.reason), since, decision)


def current_request(facts: Facts) -> Object | None:
    """Return the request for this pod, not that of an earlier pod of its name."""
    uid = facts.pod["metadata"].get("uid") if facts.pod is not None else None
    is_current = facts.request is not None and (uid is None or pod_uid(facts.request) in ("", uid))
    return facts.request if is_current else None


def named_objects(request: Object | None, pod: Object | None = None) -> tuple[ObjectRef, ...]:
    """Return the objects that a wait or a failure names: in the status of a request, else in the pod's record."""
    status = reported_status(request) if request is not None else {}
    record = record_of(pod) if pod is not None and not status.get("phase") else None
    if record is not None:
        return record.decision.objects
    wait, failure = wait_of(status), failure_of(status)
    return (*(wait.objects if wait is not None else ()), *(failure.objects if failure is not None else ()))


def pod_state(pod: Object, *, with_node: bool = True) -> str:
    """Return the phase of a pod with its reason, its node, and what its containers wait for or ended with."""
    status, node = status_of(pod), (pod.get("spec") or {}).get("nodeName")
    words = [str(status.get("phase") or "Pending")]
    if with_node:
        words.append(f"on node {node}" if node else "without a node")
    if status.get("reason") or status.get("message"):
        words.append(": ".join(str(status[key]) for key in ("reason", "message") if status.get(key)))
    words += container_problems(pod)
    scheduling = condition_of(pod, "PodScheduled")
    if not node and scheduling.get("message"):
        words.append(str(scheduling["message"]))
    return ", ".join(words)


def container_problems(pod: Object) -> list[str]:
    """Return each container that waits for something, or has ended other than with success."""
    status, words = status_of(pod), []
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        state = container.get("state") or {}
        waiting = state.get("waiting") or {}
        end = state.get("terminated") or (container.get("lastState") or {}).get("terminated") or {}
        if waiting.get("reason") and waiting["reason"] not in _STARTING:
            message = f": {waiting['message']}" if waiting.get("message") else ""
            words.append(f"container {container.get('name')} {waiting['reason']}{message}")
        if end.get("exitCode") and (waiting or state.get("terminated")):
            message = f": {end['message']}" if end.get("message") else ""
            text = f"container {container.get('name')} ended: {end.get('reason') or 'Error'}, exit code"
            words.append(f"{text} {end['exitCode']}{message}")
    return words


def helping_commands(facts: Facts, objects: Sequence[ObjectRef], reason: str = "", node: str = "") -> tuple[str, ...]:
    """Return the commands about a cause: its objects, what the reason of a failure names; else the pod."""
    commands = [
        _show(ref, is_absent=facts.objects.get(ref, NOT_READ) is None)
        for ref in objects
        if ref.kind not in ("Namespace", "Node")  # the remedies of their reasons are shorter
    ]
    commands.append(_remedy(facts, reason, node))
    return tuple(dict.fromkeys(filter(None, commands))) or (describe_pod(facts),)


def describe_pod(facts: Facts) -> str:
    """Return the command that shows the pod and its events."""
    return f"kubectl -n {facts.key.namespace} describe pod {facts.key.name}"


def object_states(facts: Facts, objects: Sequence[ObjectRef], cause: str) -> tuple[str, ...]:
    """Return what is true now of the objects of a cause, as far as they could be read and it is not in the cause."""
    texts = []
    for ref in objects:
        target = facts.objects.get(ref, NOT_READ)
        if isinstance(target, Unread):
            continue
        absence = f"{ref} does not exist"
        is_cause = f"; {absence}" in f"; {cause}"  # not: its class, or the volume of it
        if target is None:
            texts += [] if is_cause else [absence]
        elif is_cause:
            texts.append(f"{ref} exists now")
        elif is_deleting(target):
            finalizers = ", ".join(target["metadata"].get("finalizers") or ()) or "none"
            since = target["metadata"]["deletionTimestamp"]
            texts.append(f"{ref} is being deleted since {since}; finalizers: {finalizers}")
        elif ref.kind == "Node":
            spec = target.get("spec") or {}
            taints = [f"{taint.get('key')}:{taint.get('effect')}" for taint in spec.get("taints") or ()]
            cordon = " and is cordoned" if spec.get("unschedulable") else ""
            texts.append(f"{ref} has now {', '.join(taints) or 'no taints'}{cordon}")
        elif ref.kind == "Pod" and ref.key != facts.key:
            texts.append(f"{ref}: {pod_state(target)}")
        if ref in facts.object_events:
            event = facts.object_events[ref]
            texts.append(f"last event of {ref}: {event.get('reason')}: {event.get('message')}")
    warning = last_warning(facts)  # such as why a claim of the pod is not created
    return (*texts, warning) if warning else tuple(texts)


def _show(ref: ObjectRef, *, is_absent: bool) -> str:
    """Return the command that shows an object, or of one that does not exist the others of its kind."""
    key, is_of_cluster = ref.key, ref.kind in ("StorageClass", "PersistentVolume")
    namespace = f"-n {shlex.quote(key.namespace)} " if key.namespace and not is_of_cluster else ""
    resource, (group, _, version) = ref.kind.lower(), ref.api_version.partition("/")
    if ref.kind in KINDS:
        resource = plural_of(resource)
    if version and (ref.kind == names.POD_GROUP_KIND or ref.kind not in KINDS):  # several groups have such a kind
        resource += f".{group}"
    resource = _argument(resource)
    return f"kubectl {namespace}" + (f"get {resource}" if is_absent else f"describe {resource} {_argument(key.name)}")


def _argument(text: str) -> str:
    """Return what a status or an annotation names as an argument: whoever writes it must not choose the command."""
    return f"{'-- ' if text.startswith('-') else ''}{shlex.quote(text)}"


def _remedy(facts: Facts, reason: str, node: str) -> str:
    """Return the command that a reason of a failure names; empty for a plugin's own reason, or without one."""
    template = next((each.remedy for each in Reason if each.value == reason), "")
    return template.format(namespace=facts.key.namespace, system=facts.system, node=_argument(node))


def ready_replicas(facts: Facts, component: str) -> tuple[str, ...]:
    """Return how many replicas of a component of the release are ready; nothing without the right to read it."""
    return tuple(
        f"Deployment {key_of(deployment)}: {status_of(deployment).get('readyReplicas') or 0} of "
        f"{(deployment.get('spec') or {}).get('replicas', 0)} replicas ready"
        for deployment in readable(facts.deployments)
        if component_of(deployment) == component
    )


def last_event(facts: Facts) -> tuple[str, ...]:
    """Return the last event about the pod."""
    return (f"last event: {_event_text(facts.events[-1])}",) if facts.events else ()


def last_warning(facts: Facts) -> str:
    """Return the last event about the pod from other components, if it is a warning; else an empty text.

    Once the pod's scheduler has decided, what it warned of before, such as too few GPUs, is over.
    """
    request, pod = current_request(facts), facts.pod or {}
    is_decided = (pod.get("spec") or {}).get("nodeName") or (
        request is not None and status_of(request).get("phase") != "Failed"
    )
    others = (names.EVENT_SOURCE, scheduler_of(pod)) if is_decided else (names.EVENT_SOURCE,)
    events = [event for event in facts.events if _source(event) not in others]
    return _event_text(events[-1]) if events and events[-1].get("type") == "Warning" else ""


def _event_text(event: Object) -> str:
    return f"{event.get('reason')} from {_source(event)}: {event.get('message')}"


def _source(event: Object) -> str:
    return str(event.get("reportingComponent") or (event.get("source") or {}).get("component") or "")


def age(time: timedelta) -> str:
    """Return a duration in its two largest units, such as ``4m12s``."""
    seconds = max(0, round(time.total_seconds()))
    units = [(seconds // 86400, "d"), (seconds // 3600 % 24, "h"), (seconds // 60 % 60, "m"), (seconds % 60, "s")]
    while len(units) > 1 and not units[0][0]:
        del units[0]
    return "".join(f"{number}{unit}" for number, unit in units[:2])


def creation_time(obj: Object) -> datetime | None:
    return parse_time(obj["metadata"].get("creationTimestamp"))


def scheduler_of(pod: Object) -> str:
    """Return the name of the pod's scheduler."""
    return str((pod.get("spec") or {}).get("schedulerName") or names.DEFAULT_SCHEDULER)


def node_of(pod: Object) -> ObjectRef:
    """Return the node to which a pod is bound."""
    return ObjectRef("v1", "Node", ObjectKey("", str(pod["spec"]["nodeName"])))


def pod_uid(request: Object) -> str:
    return str((request.get("spec") or {}).get("podUID") or "")


def delete_request(request: Object) -> str:
    key = key_of(request)
    return f"kubectl -n {key.namespace} delete bindrequest {_argument(key.name)}"
