"""Getting a lost device back: pods run on it and no reservation pod holds it any more. Pure.

The kubelet counts such a device as free. A new reservation pod gets whichever free device the kubelet chooses: it is
adopted if that is the one the pods use. If not, it is kept as a blocker, so that the next one gets another device,
until the right one is found or the node has no other free device; then all are released and it is tried again later.

What a reservation is made for is on it, as an annotation: a process that takes over knows a blocker as such.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from shared.api import names
from shared.api.meta import Object, ObjectUID
from shared.plugins.gpu_sharing.reservation import Reservation, User, because, reservation_name

# As many devices as most nodes have. The kubelet's refusal ends the search sooner where there are fewer.
MOST_BLOCKERS = 8
# Other pods may need the devices that a search blocks, so it is not repeated sooner.
PAUSE = timedelta(minutes=2)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the pods that run on the device show of it. ``devices``: those it may be; empty if they show none."""

    devices: frozenset[str]
    tolerations: tuple[Object, ...] = ()


@dataclass(frozen=True, slots=True)
class Reserve:
    """Create a reservation of this name. ``remove``: what is in its place and holds nothing."""

    name: str
    remove: tuple[Reservation, ...]


@dataclass(frozen=True, slots=True)
class Await:
    """A reservation has yet to report its device."""

    reservation: Reservation


@dataclass(frozen=True, slots=True)
class Abandon:
    """The device cannot be had now: release what the search holds."""

    why: str
    release: tuple[Reservation, ...]


Step = Reserve | Await | Abandon


def running(users: Iterable[User]) -> list[User]:
    """Return the users that will go on using their device."""
    return [user for user in users if user.node and not user.ended and not user.deleting]


def possible_devices(group: str, groups: str, visible: str) -> frozenset[str]:
    """Return the devices that may be the group's, by what a share's ConfigMap says.

    ``groups`` is its annotation, in the order of ``visible``, the devices. A ConfigMap of an earlier version has no
    such annotation: of several devices any may be the group's.
    """
    prefix = f"{names.CDI_GPU_KIND}="
    devices = [device.removeprefix(prefix) for device in visible.split(",") if device]
    order = groups.split(",") if groups else []
    if len(order) == len(devices) and group in order:
        return frozenset({devices[order.index(group)]})
    return frozenset(devices)


def agreed(shown: Collection[frozenset[str]]) -> frozenset[str]:
    """Return the devices that all pods of a group may mean; those that show none do not count."""
    known = [devices for devices in shown if devices]
    return frozenset.intersection(*known) if known else frozenset()


def next_step(
    group: str, node: str, seen: Sequence[Reservation], evidence: Evidence, tried: ObjectUID | None
) -> Step:
    """Return what to do about a device that nothing holds. ``seen``: the group's reservation pods.

    ``tried`` is the reservation created last, None before the first: one that is gone came to nothing.
    """
    here = [one for one in seen if (one.node, one.group) == (node, group)]
    blockers = [one for one in here if one.lives and one.misplaced]
    refused = [one for one in here if one.ended and one.expected]
    waiting = [one for one in here if one.lives and not one.device]
    if not evidence.devices:
        why = "the ConfigMaps of its pods do not agree on its device"
        return Abandon(why, tuple(blockers + refused + [one for one in waiting if one.expected]))
    if waiting:
        return Await(waiting[0])
    if refused:
        why = f"the kubelet has no further device for reservation pod {refused[0].key}{because(refused[0])}"
        return Abandon(why, tuple(blockers + refused))
    if tried is not None and tried not in {one.uid for one in here}:
        return Abandon("the last reservation pod was removed before it had reported its device", tuple(blockers))
    if len(blockers) >= MOST_BLOCKERS:
        return Abandon(f"{len(blockers)} reservation pods got other devices", tuple(blockers))
    name = _free_name(group, node, {one.key.name for one in blockers})
    return Reserve(name, tuple(one for one in here if one.key.name == name))


def _free_name(group: str, node: str, taken: Collection[str]) -> str:
    base = reservation_name(node, group)
    return next(name for name in (base, *(f"{base}-{n}" for n in range(1, 100))) if name not in taken)
