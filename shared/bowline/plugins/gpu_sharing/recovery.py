"""Recovers devices that pods use and no reservation pod holds any more.

The kubelet counts such a device as free, and assigns a new reservation pod any free device. It is adopted if its
device is the one that the pods use. If not, it is kept as a blocker, so that the next one gets another device, until
the right one is found or the node has no other free device; then all are released and the search is retried later.
A wrong reservation is not adopted: it would leave the lost device as the kubelet's last free one. Whoever needs a
device of the node releases the blockers, which ends the search. No user's pod is deleted.

The devices that a reservation was created for are in its annotation, so that a new leader recognises a blocker.

``next_step`` decides; ``LostDevices`` executes, in the passes of ``group_controller``.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import assert_never

from bowline.api import names
from bowline.api.meta import ObjectRef
from bowline.framework.interface.status import Status
from bowline.plugins.gpu_sharing.group import Group, Loss
from bowline.plugins.gpu_sharing.reservation import (
    ELSEWHERE,
    RELEASE_RETRY,
    DeviceRequest,
    Reservation,
    User,
    reason_suffix,
    reservation_name,
    unreported_reservations,
)
from bowline.plugins.gpu_sharing.reservation_client import ReservationClient
from bowline.plugins.gpu_sharing.watched_groups import WatchedGroups
from bowline.runtime.clock import Clock

log = logging.getLogger(__name__)

# As many devices as most nodes have. On nodes with fewer the kubelet's rejection ends the search sooner.
MOST_BLOCKERS = 8
# Other pods may need the devices that a search blocks, so it is not repeated sooner.
SEARCH_INTERVAL = timedelta(minutes=2)
# How long a request may wait while a device that pods still use is being reserved again.
RECOVERY = timedelta(seconds=60)
# Create a reservation pod of this name, or tell why not; delete one as read.
CreateIn = Callable[[Group, DeviceRequest, str], Awaitable[Reservation | str]]
RemoveFrom = Callable[[Group, Reservation], Awaitable[bool]]


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
    """The device is not available now: release what the search holds, and search again after ``pause``."""

    why: str
    release: tuple[Reservation, ...]
    pause: timedelta = SEARCH_INTERVAL


Step = Reserve | Await | Abandon


def running_users(users: Iterable[User]) -> list[User]:
    """Return the users that will continue to use their device."""
    return [user for user in users if user.node and not user.has_ended and not user.deleting]


def next_step(claim: DeviceRequest, reservations: Sequence[Reservation], loss: Loss, now: float) -> Step:
    """Return the next step for a device without a holder. ``reservations``: the group's reservation pods."""
    group, node = claim.group, claim.node
    on_node = [reservation for reservation in reservations if (reservation.node, reservation.group) == (node, group)]
    blockers = [reservation for reservation in on_node if reservation.is_blocker]
    # One that had its device has been evicted since: that is no answer of the kubelet to this search.
    rejections = [
        reservation
        for reservation in on_node
        if reservation.has_ended and reservation.expected_devices and not reservation.device
    ]
    waiting = unreported_reservations(on_node)
    if claim.node_facts.is_cordoned:
        why = f"node {node} is cordoned: only a pod that tolerates this can get its device"
    elif claim.node_facts.lacks_gpus:
        why = f"node {node} offers no {names.RESOURCE_GPU} (status.allocatable), so no pod gets its device either"
    elif not claim.expected_devices:
        why = "the ConfigMaps of its pods do not agree on its device"
    elif waiting and (waiting[0].uid != loss.last_uid or now < loss.until):
        return Await(waiting[0])
    elif waiting:
        why = (
            f"reservation pod {waiting[0].key} has not reported its device{reason_suffix(waiting[0])}; read its logs"
        )
    elif rejections:
        why = (
            f"the kubelet has no further device for reservation pod {rejections[0].key}{reason_suffix(rejections[0])}"
        )
    elif loss.last_uid is not None and loss.last_uid not in {reservation.uid for reservation in on_node}:
        why = "the last reservation pod of the search was removed"
    elif len(blockers) >= MOST_BLOCKERS:
        why = f"{len(blockers)} reservation pods got other devices"
    else:
        return Reserve(_free_name(group, node, {reservation.key.name for reservation in blockers}))
    replacements = (reservation for reservation in waiting if reservation.expected_devices)
    release = (*blockers, *rejections, *replacements)
    # Once the node offers GPUs again, the first pod may get the device. So may it be the one that a silent agent had.
    is_silent = bool(release) and [*release] == unreported_reservations(release)
    return Abandon(why, release, RELEASE_RETRY if claim.node_facts.lacks_gpus or is_silent else SEARCH_INTERVAL)


def _free_name(group: str, node: str, unavailable_names: Collection[str]) -> str:
    base = reservation_name(node, group)
    return next(name for name in (base, *(f"{base}-{n}" for n in range(1, 100))) if name not in unavailable_names)


@dataclass(frozen=True, slots=True)
class LostDevices:
    """Recovers the devices of groups. Methods raise the client's errors."""

    client: ReservationClient
    watched: WatchedGroups
    clock: Clock
    reserve: CreateIn
    remove: RemoveFrom

    async def recover(self, group: Group, node: str = "") -> Status | None:
        """Recover the group's device if pods use it and no reservation holds it; returns the wait of a request for
        it, None if there is nothing to recover.

        ``node``: where a new device would be reserved otherwise, so that pods are read which no watch shows.
        """
        if any(reservation.holds for reservation in group.reservations):
            await self._finish(group)
            return None
        node = "" if self.watched.has_users(group.name) else node
        is_read = node or self.watched.has_users(group.name)
        users = running_users(await self.client.users(group.name, node)) if is_read else []
        if not users:
            group.loss = None
            return None
        node = users[0].node
        if group.loss is None:
            group.loss = Loss()
            log.warning("a shared device is no longer reserved", extra={"group": group.name, "node": node})
            note = f"the GPU of group {group.name} is no longer reserved: the kubelet may assign it to another pod"
            await self.client.report(users, names.EVENT_UNRESERVED, note)
        if group.loss.last_uid is not None or self.clock.monotonic() >= group.loss.until:
            group.loss = await self._search(group, group.loss, users)
        refs = [reservation.ref for reservation in unreported_reservations(group.reservations)]
        refs += [ObjectRef("v1", "Pod", user.key, user.uid, user.version) for user in users[:5]]
        pods = ", ".join(str(user.key) for user in users[:5])
        why = group.loss.why or "it is being reserved again"
        problem = f"nothing reserves the device of group {group.name} on node {node}, used by pod {pods}"
        # Not terminal immediately: a scheduler that sees room in the group would choose it again each time.
        return Status.wait(f"{problem}: {why}", *refs, timeout=RECOVERY, suggestion=ELSEWHERE)

    async def _finish(self, group: Group) -> None:
        loss, group.loss = group.loss, None
        # Those that have ended hold nothing, and go with the last user of the device at the latest.
        is_over = loss is not None
        for former in [entry for entry in group.reservations if entry.is_blocker or (is_over and entry.has_ended)]:
            await self.remove(group, former)
        if loss is not None:
            log.info("a shared device is reserved again", extra={"group": group.name})
            users = running_users(await self.client.users(group.name))
            note = f"the GPU of group {group.name} is reserved again"
            await self.client.report(users, names.EVENT_RESERVED, note, is_warning=False)

    async def _search(self, group: Group, loss: Loss, users: Sequence[User]) -> Loss:
        """Execute one step of the search for the lost device; returns what is known of it then."""
        now = self.clock.monotonic()
        reported_by = now + self.client.sharing.agent_timeout.total_seconds()
        claim = await self.client.lost_device(group.name, users)
        step = next_step(claim, group.reservations, loss, now)
        match step:
            case Await(awaited):
                return (
                    loss if awaited.uid == loss.last_uid else replace(loss, until=reported_by, last_uid=awaited.uid)
                )
            case Reserve(name):
                reservation = await self.reserve(group, claim, name)
                if isinstance(reservation, str):
                    return await self._failed(group, loss, users, reservation, RELEASE_RETRY)
                return replace(loss, until=reported_by, last_uid=reservation.uid)
            case Abandon():
                for released in step.release:
                    await self.remove(group, released)
                return await self._failed(group, loss, users, step.why, step.pause)
            case _:
                assert_never(step)

    async def _failed(self, group: Group, loss: Loss, users: Sequence[User], why: str, pause: timedelta) -> Loss:
        """End a search; reports why, unless the one before it has reported the same."""
        if why != loss.why:
            note = f"the GPU of group {group.name} cannot be reserved again now: {why}; restart this pod"
            await self.client.report(users, names.EVENT_UNRESERVED, note)
        log.warning("a lost device cannot be reserved", extra={"group": group.name, "why": why})
        return Loss(why, self.clock.monotonic() + pause.total_seconds())
