"""Recovery of a lost device: pods use it and no reservation pod holds it any more. Pure.

The kubelet counts such a device as free, and assigns a new reservation pod any free device. It is adopted if its
device is the one that the pods use. If not, it is kept as a blocker, so that the next one gets another device, until
the right one is found or the node has no other free device; then all are released and the search is retried later.

The devices that a reservation was created for are in its annotation, so that a new leader recognises a blocker.
A wrong reservation is not kept: it would leave the lost device as the kubelet's last free one. No user's pod is
deleted.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from bowline.api import names
from bowline.api.meta import Object, ObjectUID
from bowline.plugins.gpu_sharing.reservation import (
    REQUEUE_DELAY,
    UNKNOWN_NODE,
    NodeFacts,
    Reservation,
    User,
    other_mode,
    reason_suffix,
    reservation_name,
    unreported_reservations,
)

# As many devices as most nodes have. On nodes with fewer the kubelet's rejection ends the search sooner.
MOST_BLOCKERS = 8
# Other pods may need the devices that a search blocks, so it is not repeated sooner.
SEARCH_INTERVAL = timedelta(minutes=2)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the pods on the device, and their node, show of it.

    ``devices``: the possible UUIDs; empty if unknown.
    """

    devices: frozenset[str]
    tolerations: tuple[Object, ...] = ()
    compute_mode: str = ""
    node: NodeFacts = UNKNOWN_NODE


@dataclass(frozen=True, slots=True)
class Reserve:
    """Create a reservation of this name. ``remove``: pods that have ended, or of that name, which hold nothing."""

    name: str
    remove: tuple[Reservation, ...]


@dataclass(frozen=True, slots=True)
class Await:
    """A reservation has not reported its device yet."""

    reservation: Reservation


@dataclass(frozen=True, slots=True)
class Abandon:
    """The device is not available now: release what the search holds."""

    why: str
    release: tuple[Reservation, ...]


Step = Reserve | Await | Abandon


@dataclass(frozen=True, slots=True)
class Loss:
    """A device that pods use and no reservation holds. ``until``: monotonic time of the next search."""

    why: str = ""  # why the last search failed; empty during the first search
    until: float = 0.0
    last_uid: ObjectUID | None = None  # the reservation created last in this search

    def pause(self, now: float) -> timedelta:
        """Return the delay before the next search, at least REQUEUE_DELAY."""
        return max(timedelta(seconds=self.until - now), REQUEUE_DELAY)


def running_users(users: Iterable[User]) -> list[User]:
    """Return the users that will continue to use their device."""
    return [user for user in users if user.node and not user.has_ended and not user.deleting]


def possible_devices(group: str, groups: str, visible: str) -> frozenset[str]:
    """Return the UUIDs that may be the group's device, according to a share's ConfigMap.

    ``groups`` is its annotation, in the order of ``visible``, the devices; both comma-separated. A ConfigMap of
    KAI-Scheduler has no such annotation: any of its devices may be the group's.
    """
    prefix = f"{names.CDI_GPU_KIND}="
    devices = [device.removeprefix(prefix) for device in visible.split(",") if device]
    order = groups.split(",") if groups else []
    if len(order) == len(devices) and group in order:
        return frozenset({devices[order.index(group)]})
    return frozenset(devices)


def shown_mode(group: str, groups: str, modes: str) -> str:
    """Return the group's mode according to a share's ConfigMap; empty for time-slicing. See ``possible_devices``."""
    by_group = dict(zip(groups.split(","), modes.split(","), strict=False))
    return other_mode(by_group.get(group, ""))


def common_devices(device_sets: Collection[frozenset[str]]) -> frozenset[str]:
    """Return the devices that all pods of a group agree on; pods without evidence do not count."""
    nonempty_sets = [devices for devices in device_sets if devices]
    return frozenset.intersection(*nonempty_sets) if nonempty_sets else frozenset()


def next_step(
    group: str, node: str, reservations: Sequence[Reservation], evidence: Evidence, last_uid: ObjectUID | None
) -> Step:
    """Return the next step for a device without a holder. ``reservations``: the group's reservation pods.

    ``last_uid``: the reservation created last, None before the first; if it no longer exists, the search failed.
    """
    on_node = [reservation for reservation in reservations if (reservation.node, reservation.group) == (node, group)]
    blockers = [reservation for reservation in on_node if reservation.is_blocker]
    # One that had its device has been evicted since: that is no answer of the kubelet to this search.
    rejections = [
        reservation
        for reservation in on_node
        if reservation.has_ended and reservation.expected_devices and not reservation.device
    ]
    waiting = unreported_reservations(on_node)
    if evidence.node.is_cordoned or evidence.node.lacks_gpus or not evidence.devices:
        why = "the ConfigMaps of its pods do not agree on its device"
        if evidence.node.is_cordoned:
            why = f"node {node} is cordoned: only a pod that tolerates this can get its device"
        elif evidence.node.lacks_gpus:
            why = f"node {node} offers no {names.RESOURCE_GPU} (status.allocatable), so no pod gets its device either"
        replacements = (reservation for reservation in waiting if reservation.expected_devices)
        return Abandon(why, (*blockers, *rejections, *replacements))
    if waiting:
        return Await(waiting[0])
    if rejections:
        why = (
            f"the kubelet has no further device for reservation pod {rejections[0].key}{reason_suffix(rejections[0])}"
        )
        return Abandon(why, tuple(blockers + rejections))
    if last_uid is not None and last_uid not in {reservation.uid for reservation in on_node}:
        return Abandon("the last reservation pod was removed before it had reported its device", tuple(blockers))
    if len(blockers) >= MOST_BLOCKERS:
        return Abandon(f"{len(blockers)} reservation pods got other devices", tuple(blockers))
    name = _free_name(group, node, {reservation.key.name for reservation in blockers})
    ended = tuple(reservation for reservation in on_node if reservation.has_ended or reservation.key.name == name)
    return Reserve(name, ended)


def _free_name(group: str, node: str, unavailable_names: Collection[str]) -> str:
    base = reservation_name(node, group)
    return next(name for name in (base, *(f"{base}-{n}" for n in range(1, 100))) if name not in unavailable_names)
