"""Reservation pods: which one holds a group's device on a node, and what follows if none does. Pure.

A reservation pod requests one whole GPU, so that the kubelet assigns that device to no other pod; an agent inside
reports which one it is. It holds its device only while it runs: one that has ended, is being deleted or is on another
node holds nothing, whatever its annotation contains.
"""

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from shared.api import names
from shared.api.meta import (
    Object,
    ObjectKey,
    ObjectRef,
    ObjectUID,
    ResourceVersion,
    is_deleting,
    key_of,
    uid_of,
    version_of,
)

ENDED = ("Succeeded", "Failed")
_NONE = ObjectUID("")
_UNREAD = ResourceVersion("")
# Our own names: a digest, and a number for one that recovers a lost device.
_OWN_NAME = re.compile(rf"{names.RESERVATION_PREFIX}[0-9a-f]{{16}}(?P<number>-[0-9]{{1,2}})?")
# Other binders: the node's name, which the API server cuts for a generated name, and five random characters.
_GENERATED_PREFIX = 58
_RANDOM = re.compile(r"[a-z0-9]{5}")


@dataclass(frozen=True, slots=True)
class Reservation:
    """A reservation pod as read."""

    key: ObjectKey
    uid: ObjectUID
    version: ResourceVersion
    node: str
    group: str
    device: str  # empty until the agent has reported it
    deleting: bool
    ended: bool
    status_reason: str  # why it does not run, if its status contains a reason
    expected: frozenset[str] = frozenset()  # the UUIDs of which it must get one; empty: any

    @property
    def lives(self) -> bool:
        """Whether it has, or may still get, its device."""
        return not self.deleting and not self.ended

    @property
    def misplaced(self) -> bool:
        """Whether it has another device than it was created for: it holds nothing for its group."""
        return bool(self.device and self.expected and self.device not in self.expected)

    @property
    def holds(self) -> bool:
        """Whether it holds its group's device."""
        return self.lives and bool(self.device) and not self.misplaced


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """A request for the device of a group. ``awaited``: the reservation that the request has been waiting for."""

    request: ObjectKey
    request_uid: ObjectUID
    pod: ObjectKey
    node: str
    group: str
    tolerations: Sequence[Object] = ()
    awaited: ObjectUID = _NONE


@dataclass(frozen=True, slots=True)
class Held:
    """The group has its device (UUID)."""

    device: str


@dataclass(frozen=True, slots=True)
class Pending:
    """The reservation runs or starts, and has not reported its device yet."""

    reservation: Reservation


@dataclass(frozen=True, slots=True)
class Blocked:
    """No device may be reserved now; it may be once ``by``, a scaling pod, is scheduled."""

    why: str
    by: ObjectRef


@dataclass(frozen=True, slots=True)
class Lost:
    """The awaited reservation failed. ``remove``: it still exists and must be deleted first."""

    why: str
    remove: Reservation | None = None


@dataclass(frozen=True, slots=True)
class Orphaned:
    """Pods use the group's device and no reservation holds it. ``by``: objects whose change may resolve that."""

    why: str
    by: tuple[ObjectRef, ...] = ()


@dataclass(frozen=True, slots=True)
class Unreleased:
    """An unused reservation that cannot be deleted now."""

    reservation: Reservation
    why: str


@dataclass(frozen=True, slots=True)
class Create:
    """No reservation exists: create it. ``instead_of``: pods of its name that hold nothing."""

    instead_of: tuple[Reservation, ...] = ()


Verdict = Held | Pending | Lost | Create
ReservationState = Held | Pending | Blocked | Lost | Orphaned
Answer = ReservationState | Unreleased | None


def reservation_name(node: str, group: str) -> str:
    """Return the reservation pod's name: deterministic, so that only one can exist."""
    digest = hashlib.sha256(f"{node}/{group}".encode()).hexdigest()
    return f"{names.RESERVATION_PREFIX}{digest[:16]}"


def may_be_on(node: str, group: str, name: str) -> bool:
    """Return whether the group's reservation pod of that name may be on the node.

    Our names and those that KAI-Scheduler's binder generated up to v0.15 show the node; other names may be on any.
    """
    own = _OWN_NAME.fullmatch(name)
    if own is not None:
        return name.removesuffix(own["number"] or "") == reservation_name(node, group)
    if not name.startswith(names.RESERVATION_PREFIX):
        return True
    prefix = f"{names.RESERVATION_PREFIX}{node}-"[:_GENERATED_PREFIX]
    return name.startswith(prefix) and _RANDOM.fullmatch(name[len(prefix) :]) is not None


def view_reservation(pod: Object) -> Reservation:
    """Parse a reservation pod."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    annotations = metadata.get("annotations") or {}
    return Reservation(
        key=key_of(pod),
        uid=uid_of(pod),
        version=version_of(pod),
        node=(pod.get("spec") or {}).get("nodeName") or "",
        group=(metadata.get("labels") or {}).get(names.LABEL_GPU_GROUP) or "",
        device=annotations.get(names.RESERVED_DEVICE) or "",
        deleting=is_deleting(pod),
        ended=status.get("phase") in ENDED,
        status_reason=_status_reason(status),
        expected=frozenset(filter(None, annotations.get(names.ANNOTATION_EXPECTED_DEVICES, "").split(","))),
    )


def check_reservations(
    claim: DeviceRequest, seen: Sequence[Reservation], timed_out: Mapping[ObjectUID, str]
) -> Verdict:
    """Return the verdict on a claim, from all reservation pods of its group and the reasons why some were deleted.

    If several hold a device of the group on the node, the one with the deterministic name takes precedence.
    """
    name = reservation_name(claim.node, claim.group)
    alive = [
        one for one in seen if one.lives and not one.misplaced and (one.node, one.group) == (claim.node, claim.group)
    ]
    alive.sort(key=lambda one: (not one.device, one.key.name != name, one.key.name))
    if alive and alive[0].device:
        return Held(alive[0].device)
    awaited = next((one for one in seen if one.uid == claim.awaited), None)
    if claim.awaited and (awaited is None or not awaited.lives):
        return _lost(claim, awaited, timed_out)
    if alive:
        return Pending(alive[0])
    return Create(tuple(one for one in seen if one.key.name == name))


def overdue(
    seen: Sequence[Reservation], since: Mapping[ObjectUID, float], now: float, timeout: timedelta
) -> dict[ObjectUID, str]:
    """Return the reservations whose agent exceeded the timeout, by UID, each with a message.

    ``since`` and ``now`` are monotonic seconds.
    """
    return {
        one.uid: f"{_called(one)} on node {one.node} has not reported its device within {timeout.total_seconds():g} s"
        f"{reason_suffix(one)}; read its logs"
        for one in seen
        if one.lives and not one.device and now - since.get(one.uid, now) >= timeout.total_seconds()
    }


def unreported(seen: Sequence[Reservation]) -> list[Reservation]:
    """Return the reservations that may still report their device."""
    return [one for one in seen if one.lives and not one.device]


def _lost(claim: DeviceRequest, awaited: Reservation | None, timed_out: Mapping[ObjectUID, str]) -> Lost:
    if claim.awaited in timed_out:
        return Lost(timed_out[claim.awaited])
    if awaited is None or awaited.deleting:
        name = reservation_name(claim.node, claim.group)
        return Lost(f"the reservation pod {name} was deleted before it had reported its device")
    why = (
        f"{_called(awaited)} ended on node {claim.node} before it had reported its device{reason_suffix(awaited)}; "
        "the node may have no device left"
    )
    return Lost(why, remove=awaited)


def _called(reservation: Reservation) -> str:
    return f"reservation pod {reservation.key}"


def reason_suffix(reservation: Reservation) -> str:
    """Return why the pod does not run, in brackets; empty if its status has no reason."""
    return f" ({reservation.status_reason})" if reservation.status_reason else ""


def _status_reason(status: Mapping[str, Any]) -> str:
    """Return the reason why a pod does not run: its own, else its container's; 300 characters at most."""
    said = [status.get("reason"), status.get("message")]
    if not any(said):
        for container in status.get("containerStatuses") or ():
            state = container.get("state") or {}
            last = (container.get("lastState") or {}).get("terminated") or {}
            now = state.get("waiting") or state.get("terminated") or {}
            said = [now.get("reason"), last.get("message") or now.get("message")]
    return ": ".join(" ".join(str(word).split()) for word in said if word)[:300]


# --- cleanup ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class User:
    """A pod that is labelled as a user of the group's device."""

    key: ObjectKey
    uid: ObjectUID
    node: str
    ended: bool
    deleting: bool
    version: ResourceVersion = _UNREAD


def view_user(pod: Object) -> User:
    """Parse a pod that is labelled with a group."""
    return User(
        key_of(pod),
        uid_of(pod),
        (pod.get("spec") or {}).get("nodeName") or "",
        (pod.get("status") or {}).get("phase") in ENDED,
        is_deleting(pod),
        version_of(pod),
    )


def unused(
    seen: Sequence[Reservation], users: Collection[User], claimed: Collection[str], asked: Collection[str]
) -> list[Reservation]:
    """Return the unused reservations. ``claimed``, ``asked``: nodes where a request needs the group.

    A pod that is being deleted still runs, so it still uses its device; one that has ended does not. An unbound pod
    does not either: claims and requests show whether it will be bound, a label alone does not.
    """
    return [
        one
        for one in seen
        if not one.deleting
        and one.node not in claimed
        and one.node not in asked
        and not any(user.node == one.node for user in users if not user.ended)
    ]


def requested_node(request: Object, group: str, withdrawn: Collection[ObjectUID]) -> str | None:
    """Return the node on which an unfinished request needs the group; None if it does not.

    A deleted request needs it until its rollback is complete: its Binding may still take effect.
    """
    spec, phase = request.get("spec") or {}, (request.get("status") or {}).get("phase")
    is_over = is_deleting(request) and names.FINALIZER not in (request["metadata"].get("finalizers") or ())
    if phase in ENDED or is_over or uid_of(request) in withdrawn:
        return None
    return spec.get("selectedNode") if group in (spec.get("selectedGPUGroups") or ()) else None


def is_unscheduled(pod: Object) -> bool:
    """Return whether a scheduler has tried to place the pod and has failed."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(one.get("type") == "PodScheduled" and one.get("status") != "True" for one in conditions)
