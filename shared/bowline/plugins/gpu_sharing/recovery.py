"""How a device is recovered that pods use and no reservation pod holds any more. Pure: ``group_controller`` executes.

The kubelet counts such a device as free, and assigns a new reservation pod any free device. It is adopted if its
device is the one that the pods use. If not, it is kept as a blocker, so that the next one gets another device, until
the right one is found or the node has no other free device; then all are released and the search is retried later.
A wrong reservation is not adopted: it would leave the lost device as the kubelet's last free one. Whoever needs a
device of the node releases the blockers, which ends the search. No user's pod is deleted.

The devices that a reservation was created for are in its annotation, so that a new leader recognises a blocker.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from bowline.api import names
from bowline.api.meta import ObjectUID
from bowline.framework.interface.status import Status
from bowline.plugins.gpu_sharing.group import Group
from bowline.plugins.gpu_sharing.reservation import (
    ELSEWHERE,
    RELEASE_RETRY,
    DeviceRequest,
    Reservation,
    User,
    reason_suffix,
    reservation_name,
)

# As many devices as most nodes have. On nodes with fewer the kubelet's rejection ends the search sooner.
MOST_BLOCKERS = 8
# Other pods may need the devices that a search blocks, so it is not repeated sooner.
SEARCH_INTERVAL = timedelta(minutes=2)
# How long a request may wait while a device that pods still use is being reserved again.
RECOVERY = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class Reserve:
    """Create a reservation of this name."""

    name: str


@dataclass(frozen=True, slots=True)
class Await:
    """A reservation has not reported its device yet."""

    reservation: Reservation


@dataclass(frozen=True, slots=True)
class Abandon:
    """The device is not available now: search again after ``pause``. What the search has reserved serves nobody."""

    why: str
    pause: timedelta = SEARCH_INTERVAL


Step = Reserve | Await | Abandon


def running_users(users: Iterable[User]) -> list[User]:
    """Return the users that will continue to use their device."""
    return [user for user in users if user.node and not user.has_ended and not user.deleting]


def next_step(claim: DeviceRequest, group: Group, last_uid: ObjectUID | None, cutoff: float) -> Step:
    """Return the next step for a device without a holder.

    ``last_uid``: the last reservation of this search. ``cutoff``: since when one that has not reported is silent.
    """
    node = claim.node
    on_node = [entry for entry in group.reservations if (entry.node, entry.group) == (node, group.name)]
    blockers = [reservation for reservation in on_node if reservation.is_blocker]
    rejections = [entry for entry in on_node if entry.is_rejected and entry.expected_devices]
    waiting = [entry for entry in on_node if entry.is_unreported]
    if claim.node_facts.is_cordoned:
        why = f"node {node} is cordoned: only a pod that tolerates this can get its device"
    elif claim.node_facts.lacks_gpus:
        why = f"node {node} offers no {names.RESOURCE_GPU} (status.allocatable), so no pod gets its device either"
    elif not claim.expected_devices:
        why = "the ConfigMaps of its pods do not agree on its device"
    elif waiting and not group.is_silent(waiting[0], cutoff):
        return Await(waiting[0])
    elif waiting:
        why = (
            f"reservation pod {waiting[0].key} has not reported its device{reason_suffix(waiting[0])}; read its logs"
        )
    elif rejections:
        why = (
            f"the kubelet has no further device for reservation pod {rejections[0].key}{reason_suffix(rejections[0])}"
        )
    elif last_uid is not None and last_uid not in {reservation.uid for reservation in on_node}:
        why = "the last reservation pod of the search was removed"
    elif len(blockers) >= MOST_BLOCKERS:
        why = f"{len(blockers)} reservation pods got other devices"
    else:
        return Reserve(_free_name(group.name, node, {reservation.key.name for reservation in blockers}))
    # Once the node offers GPUs again, the first pod may get the device. So may it be the one that a silent agent had.
    is_silent = any(entry.expected_devices for entry in waiting) and not blockers and not rejections
    return Abandon(why, RELEASE_RETRY if claim.node_facts.lacks_gpus or is_silent else SEARCH_INTERVAL)


def _free_name(group: str, node: str, unavailable_names: Collection[str]) -> str:
    base = reservation_name(node, group)
    return next(name for name in (base, *(f"{base}-{n}" for n in range(1, 100))) if name not in unavailable_names)


def leftovers(group: Group, cutoff: float) -> list[Reservation]:
    """Return the reservations that serve nobody, whoever uses the group's device.

    Blockers, unless a search is on; what a search that is over has reserved, and no request has joined: pods may run
    with its device, though its report was removed; beside the one that holds the device those that are silent since
    ``cutoff``.
    """
    is_held, is_abandoned = group.is_held, group.loss is not None and not group.is_searched
    return [
        entry
        for entry in group.reservations
        if (entry.is_blocker and not group.is_searched)
        or (is_held and group.is_silent(entry, cutoff))
        or (is_abandoned and entry.expected_devices and entry.is_unreported and not entry.is_joined)
        or ((is_abandoned or is_held) and entry.expected_devices and entry.is_rejected)
    ]


def recovery_status(group: Group, users: Sequence[User]) -> Status:
    """Return the wait of a request for a device that the users have lost."""
    refs = [reservation.ref for reservation in group.reservations if reservation.is_unreported]
    refs += [user.ref for user in users[:5]]
    pods = ", ".join(str(user.key) for user in users[:5])
    why = (group.loss.why if group.loss is not None else "") or "it is being reserved again"
    problem = f"nothing reserves the device of group {group.name} on node {users[0].node}, used by pod {pods}"
    # Not terminal immediately: a scheduler that sees room in the group would choose it again each time.
    return Status.wait(f"{problem}: {why}", *refs, timeout=RECOVERY, suggestion=ELSEWHERE)
