"""Reservation pods: which one holds a group's device on a node, and what follows if none does. Pure.

A reservation pod requests one whole GPU, so that the kubelet assigns that device to no other pod; an agent inside
reports which one it is. It holds its device only while it runs: one that has ended, is being deleted or is on another
node holds nothing, whatever its annotation contains.
"""

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from typing import Any

from bowline.api import names
from bowline.api.bindrequest import gpu_groups_of
from bowline.api.gpu_share import device_memory
from bowline.api.meta import (
    Object,
    ObjectKey,
    ObjectRef,
    ObjectUID,
    ResourceVersion,
    has_ended,
    is_deleting,
    key_of,
    uid_of,
    version_of,
)
from bowline.api.node_view import has_fake_gpus, lacks_gpus
from bowline.framework.interface.status import Status
from bowline.framework.reason import Reason, Suggestion
from bowline.plugins.gpu_sharing.guards import is_device
from bowline.plugins.gpu_sharing.labels import missing_labels, used_portion

_UNREAD = ResourceVersion("")
# The shortest delay until a group is reconciled again.
REQUEUE_DELAY = timedelta(milliseconds=200)
# When a delete that failed is repeated.
RELEASE_RETRY = timedelta(seconds=10)
ELSEWHERE = Suggestion.RESCHEDULE_ELSEWHERE
# Pods that a message names.
_LISTED = 5
# What runs in the reservation pods of this plugin.
AGENT = "bowline.plugins.gpu_sharing.agent"
# Our own names, which are KAI-Scheduler's since v0.16: a digest, and a number for one that recovers a lost device.
_OWN_NAME = re.compile(rf"{names.RESERVATION_PREFIX}[0-9a-f]{{16}}(-[0-9]{{1,2}})?")


@dataclass(frozen=True, slots=True)
class Reservation:
    """A reservation pod as read."""

    key: ObjectKey
    uid: ObjectUID
    version: ResourceVersion
    node: str
    group: str
    device: str  # empty until the agent has reported one
    deleting: bool
    has_ended: bool
    status_reason: str  # why it has no device, if its status contains a reason or its agent has reported none
    expected_devices: frozenset[str] = frozenset()  # the UUIDs of which it must get one; empty: any
    is_foreign: bool = False  # another binder's, or not decoded
    is_altered: bool = False  # it lacks the device that it was created with: it serves no request
    finalizers: tuple[str, ...] = ()
    compute_mode: str = ""  # of its device; empty: time-slicing
    is_joined: bool = False  # a request was given its device

    @property
    def lives(self) -> bool:
        """Whether it has, or may still get, its device."""
        return not self.deleting and not self.has_ended and not self.is_altered

    @property
    def is_misplaced(self) -> bool:
        """Whether it has another device than it was created for: it holds nothing for its group."""
        return bool(self.device and self.expected_devices and self.device not in self.expected_devices)

    @property
    def is_blocker(self) -> bool:
        """Whether it blocks another device than its group's during a recovery."""
        return self.lives and self.is_misplaced

    @property
    def deletion(self) -> str:
        """What keeps it while it is being deleted, for messages."""
        if not self.finalizers:
            return "it is being deleted"
        finalizers = ", ".join(self.finalizers)
        return f"it is being deleted, and finalizers keep it: {finalizers}; have their owners remove them"

    @property
    def is_unreported(self) -> bool:
        """Whether it may still report its device."""
        return self.lives and not self.device

    @property
    def is_rejected(self) -> bool:
        """Whether it has ended without a device. One that had it was evicted: that is no answer of the kubelet."""
        return self.has_ended and not self.device

    @property
    def ref(self) -> ObjectRef:
        """Reference to the pod in the version that was read."""
        return ObjectRef("v1", "Pod", self.key, self.uid, self.version)

    @property
    def holds(self) -> bool:
        """Whether it holds its group's device."""
        return self.lives and bool(self.device) and not self.is_misplaced


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What is known of a device's node: nothing if it cannot be read.

    ``lacks_gpus``: it offers no whole GPU, as while a device plugin or a driver is replaced. ``device_memory``: of
    each of its GPUs, in MiB; 0 if unknown.
    """

    uid: ObjectUID | None = None
    is_cordoned: bool = False
    lacks_gpus: bool = False
    has_fake_gpus: bool = False
    device_memory: int = 0


UNKNOWN_NODE = NodeFacts()


def facts_of(node: Object | None) -> NodeFacts:
    """Return what is known of a raw or reduced node."""
    if node is None:
        return UNKNOWN_NODE
    is_cordoned = bool((node.get("spec") or {}).get("unschedulable"))
    return NodeFacts(uid_of(node), is_cordoned, lacks_gpus(node), has_fake_gpus(node), device_memory(node)[0])


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """A request for the device of a group, or that of running pods for the one that they have lost.

    ``portion``: the part of the device that it takes. ``answer``: what it was told last. ``expected_devices``: the
    UUIDs of which it must be one; of a request any.
    """

    request: ObjectKey
    pod: ObjectKey
    node: str
    group: str
    tolerations: Sequence[Object] = ()
    compute_mode: str = ""  # of the device; empty: time-slicing
    portion: Decimal = Decimal(0)
    node_facts: NodeFacts = UNKNOWN_NODE
    answer: "Held | Pending | None" = None
    expected_devices: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Held:
    """The group has its device (UUID). ``uid``: of the reservation that holds it."""

    device: str
    uid: ObjectUID = field(default=ObjectUID(""), compare=False)


@dataclass(frozen=True, slots=True)
class Pending:
    """The reservation runs or starts, and has not reported its device yet."""

    reservation: Reservation


@dataclass(frozen=True, slots=True)
class Unreleased:
    """An unused reservation that cannot be deleted now."""

    reservation: Reservation
    why: str
    retry_after: timedelta | None = None  # None: its own end is awaited


def reservation_name(node: str, group: str) -> str:
    """Return the reservation pod's name: deterministic, so that only one can exist."""
    digest = hashlib.sha256(f"{node}/{group}".encode()).hexdigest()
    return f"{names.RESERVATION_PREFIX}{digest[:16]}"


def view_reservation(pod: Object) -> Reservation:
    """Parse a reservation pod."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    annotations = metadata.get("annotations") or {}
    report, container = annotations.get(names.RESERVED_DEVICE) or "", _agent_container(pod)
    # It names no device, or more than one.
    is_invalid = bool(report) and not is_device(report)
    limits = (container.get("resources") or {}).get("limits") or {}
    is_own = _OWN_NAME.fullmatch(metadata["name"]) is not None
    return Reservation(
        key=key_of(pod),
        uid=uid_of(pod),
        version=version_of(pod),
        node=(pod.get("spec") or {}).get("nodeName") or "",
        group=(metadata.get("labels") or {}).get(names.LABEL_GPU_GROUP) or "",
        device="" if is_invalid else report,
        deleting=is_deleting(pod),
        has_ended=has_ended(pod),
        status_reason=_status_reason(status, report if is_invalid else ""),
        expected_devices=frozenset(filter(None, annotations.get(names.ANNOTATION_EXPECTED_DEVICES, "").split(","))),
        is_foreign=AGENT not in container.get("command", ()),
        is_altered=is_own and "spec" in pod and limits.get(names.RESOURCE_GPU) != "1",
        finalizers=tuple(metadata.get("finalizers") or ()),
        compute_mode=other_mode(annotations.get(names.COMPUTE_MODE) or ""),
        is_joined=names.ANNOTATION_LAST_JOINED in annotations,
    )


def other_mode(mode: str) -> str:
    """Return a mode as claims have it: time-slicing is empty, as it is in whatever names no mode."""
    return "" if mode == names.TIME_SLICING else mode


def _agent_container(pod: Object) -> Object:
    """Return the container that reserves the device: an admission webhook may put others before it."""
    containers: list[Object] = (pod.get("spec") or {}).get("containers") or []
    named = (container for container in containers if container.get("name") == names.RESERVATION_CONTAINER)
    return next(named, containers[0] if containers else {})


def check_reservations(claim: DeviceRequest, reservations: Sequence[Reservation]) -> Held | Pending | Status | None:
    """Return the verdict on a claim, from all reservation pods of its group; None if one is to be created.

    If several hold a device of the group on the node, the one with the deterministic name takes precedence.
    """
    name = reservation_name(claim.node, claim.group)
    of_group = [
        reservation
        for reservation in reservations
        if reservation.lives and not reservation.is_misplaced and reservation.group == claim.group
    ]
    alive = [reservation for reservation in of_group if reservation.node == claim.node]
    alive.sort(key=lambda reservation: (not reservation.device, reservation.key.name != name, reservation.key.name))
    if alive and alive[0].compute_mode != claim.compute_mode:
        modes = [mode or names.TIME_SLICING for mode in (alive[0].compute_mode, claim.compute_mode)]
        why = f"the device of group {claim.group} on node {claim.node} is in mode {modes[0]}, not {modes[1]}"
        return no_room(f"{why}; choose another group")
    if alive and alive[0].device:
        return Held(alive[0].device, alive[0].uid)
    if isinstance(claim.answer, Pending):
        awaited = claim.answer.reservation.uid
        previous = next((reservation for reservation in reservations if reservation.uid == awaited), None)
        if previous is None or not previous.lives:
            return _loss(claim, previous)
    if alive:
        return Pending(alive[0])
    return _unavailable(claim, of_group)


def _unavailable(claim: DeviceRequest, of_group: Sequence[Reservation]) -> Status | None:
    """Return why no device is reserved for the claim; None if one is to be.

    Of a group on two nodes the loss of one device would not be noticed while the other is held.
    """
    elsewhere = next((reservation.node for reservation in of_group if reservation.node), "")
    if elsewhere:
        return no_room(
            f"group {claim.group} has a device on node {elsewhere}, not {claim.node}; choose another group"
        )
    if claim.node_facts.lacks_gpus:
        return no_room(
            f"node {claim.node} offers no {names.RESOURCE_GPU} (status.allocatable), and a shared device is reserved "
            "as one; choose a node whose GPUs a device plugin serves"
        )
    return None


def no_room(why: str) -> Status:
    """Return the end of a request whose device other pods use, or whose node offers none."""
    return Status.fatal(why, Reason.DEVICE_CONFLICT, ELSEWHERE)


def excess(claim: DeviceRequest, portions: Mapping[ObjectKey, Decimal], limit: Decimal) -> Status | None:
    """Return why the device has no room for the claim; None if it has.

    ``portions``: the part of the device that each pod uses or is about to use. ``limit``: what they may add up to.
    It is checked here, where a group answers one claim at a time: a kubelet, and so ``node_fit``, counts no portions.
    """
    others = {pod: portion for pod, portion in portions.items() if pod != claim.pod}
    total = sum(others.values(), claim.portion)
    if total <= limit or not others:
        return None
    listed = ", ".join(f"{pod} ({portion:f})" for pod, portion in sorted(others.items())[:_LISTED])
    more = f" and {len(others) - _LISTED} more" if len(others) > _LISTED else ""
    return no_room(
        f"the pods of group {claim.group} on node {claim.node} would use {total:f} of its device, and may use "
        f"{limit:f}: {claim.pod} ({claim.portion:f}) beside {listed}{more}"
    )


def _loss(claim: DeviceRequest, previous: Reservation | None) -> Status:
    """Return why the awaited reservation failed."""
    if previous is None or previous.deleting:
        name = reservation_name(claim.node, claim.group)
        why = f"the reservation pod {name} was deleted before it had reported its device"
    else:
        why = (
            f"reservation pod {previous.key} ended on node {claim.node} before it had reported its device"
            f"{reason_suffix(previous)}; the node may have no device left"
        )
    return Status.retry(why, suggestion=ELSEWHERE)


def reason_suffix(reservation: Reservation) -> str:
    """Return why the pod does not run, in brackets; empty if its status has no reason."""
    return f" ({reservation.status_reason})" if reservation.status_reason else ""


def _status_reason(status: Mapping[str, Any], invalid_report: str) -> str:
    """Return the reason why a pod has no device: its own, its agent's invalid report, else its container's; 300
    characters at most.
    """
    parts = [status.get("reason"), status.get("message")]
    if invalid_report:
        parts.append(f"its annotation {names.RESERVED_DEVICE} is {invalid_report[:64]!r}, which is not one device")
    if not any(parts):
        for container in status.get("containerStatuses") or ():
            state = container.get("state") or {}
            last = (container.get("lastState") or {}).get("terminated") or {}
            now = state.get("waiting") or state.get("terminated") or {}
            parts = [now.get("reason"), last.get("message") or now.get("message")]
    return ": ".join(" ".join(str(part).split()) for part in parts if part)[:300]


# --- cleanup ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class User:
    """A pod that is labelled as a user of the group's device."""

    key: ObjectKey
    uid: ObjectUID
    node: str
    has_ended: bool
    deleting: bool
    version: ResourceVersion = _UNREAD
    portion: Decimal = Decimal(0)  # of the device
    missing_labels: Mapping[str, str | None] = field(default_factory=dict)  # for the watch and for schedulers

    @property
    def ref(self) -> ObjectRef:
        """Reference to the pod in the version that was read."""
        return ObjectRef("v1", "Pod", self.key, self.uid, self.version)


def view_user(pod: Object, node: str = "", mebibytes: int = 0) -> User:
    """Parse a pod that is labelled with a group. ``node``: of a selection by node, for a pod that is not decoded.

    ``mebibytes``: the memory of each device of its node; 0 if unknown.
    """
    return User(
        key_of(pod),
        uid_of(pod),
        (pod.get("spec") or {}).get("nodeName") or node,
        has_ended(pod),
        is_deleting(pod),
        version_of(pod),
        used_portion(pod, mebibytes),
        missing_labels(pod["metadata"].get("labels") or {}),
    )


def unused_reservations(
    reservations: Sequence[Reservation], users: Collection[User], awaited_nodes: Collection[str]
) -> list[Reservation]:
    """Return the unused reservations. ``awaited_nodes``: the nodes where a claim or an unfinished request needs the
    group.

    A pod that is being deleted still runs, so it still uses its device; one that has ended does not. An unbound pod
    does not either: claims and requests show whether it will be bound, a label alone does not. A pod that was deleted
    with force is not listed, so it uses none (decision 169). A reservation pod that is not decoded may be
    on any node. A blocker serves nobody.
    """
    nodes = {*awaited_nodes, *(user.node for user in users if not user.has_ended)}
    return [
        entry
        for entry in reservations
        if not entry.deleting and (entry.is_blocker or not (entry.node in nodes if entry.node else nodes))
    ]


def requested_node(request: Object, group: str, withdrawn: Collection[ObjectUID]) -> str | None:
    """Return the node on which an unfinished request needs the group; None if it does not.

    A deleted request needs it until its rollback is complete: its Binding may still take effect.
    """
    spec = request.get("spec") or {}
    is_over = is_deleting(request) and names.FINALIZER not in (request["metadata"].get("finalizers") or ())
    if has_ended(request) or is_over or uid_of(request) in withdrawn:
        return None
    return spec.get("selectedNode") if group in gpu_groups_of(spec) else None


def is_unscheduled(pod: Object) -> bool:
    """Return whether a scheduler has tried to place the pod and has failed, and may still place it."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    is_waiting = not is_deleting(pod) and not has_ended(pod)
    return is_waiting and any(
        condition.get("type") == "PodScheduled" and condition.get("status") != "True" for condition in conditions
    )
