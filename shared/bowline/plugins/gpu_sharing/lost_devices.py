"""Recovers devices that pods use and no reservation pod holds any more: executes the steps of ``recovery``.

Called by ``group_controller`` in the reconcile of the group, so that nothing else writes to its reservation pods
meanwhile. ``Group.loss`` has when the next search is due, and what the last one has found.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import timedelta
from typing import assert_never

from bowline.api import names
from bowline.api.meta import ObjectKey, ObjectRef
from bowline.framework.interface.status import Status
from bowline.plugins.gpu_sharing.group import Group
from bowline.plugins.gpu_sharing.recovery import (
    SEARCH_INTERVAL,
    Abandon,
    Await,
    Loss,
    Reserve,
    next_step,
    running_users,
)
from bowline.plugins.gpu_sharing.reservation import (
    ELSEWHERE,
    RELEASE_RETRY,
    REQUEUE_DELAY,
    DeviceRequest,
    Reservation,
    User,
    unreported_reservations,
)
from bowline.plugins.gpu_sharing.reservation_client import ReservationClient
from bowline.plugins.gpu_sharing.watched_groups import WatchedGroups
from bowline.runtime.clock import Clock

log = logging.getLogger(__name__)

# How long a request may wait while a device that pods still use is being reserved again.
RECOVERY = timedelta(seconds=60)
# A recovery serves running pods, not a request.
_NO_REQUEST = ObjectKey("", "")
# Deletes reservation pods as read, and from the group.
RemoveAll = Callable[[Group, Iterable[Reservation]], Awaitable[None]]


class LostDevices:
    """Recovers the devices of groups. Methods raise the client's errors."""

    def __init__(
        self, client: ReservationClient, watched: WatchedGroups, clock: Clock, remove_all: RemoveAll
    ) -> None:
        self._client = client
        self._watched = watched
        self._clock = clock
        self._remove_all = remove_all

    async def recover(
        self, group: Group, claim: DeviceRequest | None = None, *, is_release: bool = False
    ) -> Status | None:
        """Recover the group's device if pods use it and no reservation holds it. None if there is nothing to recover,
        else the wait of a request for it.

        Removes blockers and adds a new reservation. ``is_release``: another pod is about to be bound to the node,
        perhaps with a device that the search blocks, so the search ends.
        """
        if any(reservation.holds for reservation in group.reservations):
            await self._finish_recovery(group)
            return None
        if self._watched.has_users(group.name):
            users = running_users(await self._client.users(group.name))
        elif claim is not None and not self._may_hold(group, claim.node):
            users = running_users(await self._client.users(group.name, claim.node))
        else:
            users = []
        if not users:
            group.loss = None
            return None
        node = users[0].node
        if group.loss is None:
            group.loss = Loss()
            log.warning("a shared device is no longer reserved", extra={"group": group.name, "node": node})
            note = f"the GPU of group {group.name} is no longer reserved: the kubelet may assign it to another pod"
            await self._client.report(users, names.EVENT_UNRESERVED, note)
        is_blocking = any(reservation.is_blocker for reservation in group.reservations)
        if group.loss.pause(self._clock.monotonic()) <= REQUEUE_DELAY or (is_release and is_blocking):
            group.loss = await self._search(group, group.loss, users, is_release)
        refs = [reservation.ref for reservation in unreported_reservations(group.reservations)]
        refs += [ObjectRef("v1", "Pod", user.key, user.uid, user.version) for user in users[:5]]
        pods = ", ".join(str(user.key) for user in users[:5])
        why = group.loss.why or "it is being reserved again"
        problem = f"nothing reserves the device of group {group.name} on node {node}, used by pod {pods}"
        # Not terminal immediately: a scheduler that sees room in the group would choose it again each time.
        return Status.wait(f"{problem}: {why}", *refs, timeout=RECOVERY, suggestion=ELSEWHERE)

    def _may_hold(self, group: Group, node: str) -> bool:
        """Return whether a reservation on the node has, or may still get, the group's device."""
        return any(entry.lives and not entry.is_misplaced and entry.node == node for entry in group.reservations)

    async def _finish_recovery(self, group: Group) -> None:
        loss, group.loss = group.loss, None
        await self._remove_all(group, [reservation for reservation in group.reservations if reservation.is_blocker])
        if loss is not None:
            log.info("a shared device is reserved again", extra={"group": group.name})
            users = running_users(await self._client.users(group.name))
            note = f"the GPU of group {group.name} is reserved again"
            await self._client.report(users, names.EVENT_RESERVED, note, is_warning=False)

    async def _search(self, group: Group, loss: Loss, users: Sequence[User], is_release: bool) -> Loss:
        """Execute one step of the search for the lost device; returns what is known of it then."""
        node = users[0].node
        evidence = await self._client.evidence(group.name, node, users)
        step = next_step(group.name, node, group.reservations, evidence, loss.last_uid)
        blockers = tuple(reservation for reservation in group.reservations if reservation.is_blocker)
        if is_release and blockers:
            step = Abandon("another pod is bound to the node", blockers)
        match step:
            case Await():
                return loss
            case Reserve():
                await self._remove_all(group, step.remove)
                claim = DeviceRequest(
                    request=_NO_REQUEST,
                    pod=users[0].key,
                    node=node,
                    group=group.name,
                    tolerations=evidence.tolerations,
                    compute_mode=evidence.compute_mode,
                    node_facts=evidence.node,
                )
                reservation = await self._client.create(claim, step.name, evidence.devices)
                if isinstance(reservation, str):
                    await self._report_failure(group, loss, users, reservation)
                    return Loss(reservation, self._clock.monotonic() + RELEASE_RETRY.total_seconds())
                if reservation.uid not in {existing.uid for existing in group.reservations}:
                    group.reservations.append(reservation)
                log.info("reserving a lost device", extra={"group": group.name, "reservation": str(reservation.key)})
                return Loss(loss.why, loss.until, reservation.uid)
            case Abandon():
                await self._remove_all(group, step.release)
                await self._report_failure(group, loss, users, step.why)
                # Once the node offers GPUs again, the first pod may get the device.
                pause = RELEASE_RETRY if evidence.node.lacks_gpus else SEARCH_INTERVAL
                return Loss(step.why, self._clock.monotonic() + pause.total_seconds())
            case _:
                assert_never(step)

    async def _report_failure(self, group: Group, loss: Loss, users: Sequence[User], why: str) -> None:
        """Report why a search has failed, unless the one before it has reported the same."""
        if why != loss.why:
            note = f"the GPU of group {group.name} cannot be reserved again now: {why}; restart this pod"
            await self._client.report(users, names.EVENT_UNRESERVED, note)
        log.warning("a lost device cannot be reserved", extra={"group": group.name, "why": why})
