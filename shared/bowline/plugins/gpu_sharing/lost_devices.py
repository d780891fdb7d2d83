"""Recovers devices that pods use and no reservation pod holds any more: executes the steps of ``recovery``.

Called by ``group_controller`` in the reconcile of the group, so that nothing else writes to its reservation pods
meanwhile. What is remembered is when the next search is due, and what the last one has found.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import assert_never

from bowline.api.meta import ObjectKey, ObjectRef
from bowline.plugins.gpu_sharing.agent_timeouts import REQUEUE_DELAY
from bowline.plugins.gpu_sharing.idle_groups import IdleGroups
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
    DeviceRequest,
    Orphaned,
    Reservation,
    User,
    unreported_reservations,
)
from bowline.plugins.gpu_sharing.reservation_client import ReservationClient
from bowline.runtime.clock import Clock

log = logging.getLogger(__name__)

# A recovery serves running pods, not a request.
_NO_REQUEST = ObjectKey("", "")
# Deletes reservation pods as read, and removes them from the list.
RemoveAll = Callable[[Sequence[Reservation], list[Reservation]], Awaitable[None]]


class LostDevices:
    """The lost devices, by group, while this process is the leader. Methods raise the client's errors."""

    def __init__(self, client: ReservationClient, idle: IdleGroups, clock: Clock, remove_all: RemoveAll) -> None:
        self._client = client
        self._idle = idle
        self._clock = clock
        self._remove_all = remove_all
        self._losses: dict[str, Loss] = {}

    def __len__(self) -> int:
        return len(self._losses)

    def clear(self) -> None:
        """Forget all: this process is not the leader any more."""
        self._losses.clear()

    def pause(self, group: str) -> timedelta | None:
        """Return the delay before the group's next search; None if none is due, or one waits for its reservation."""
        loss = self._losses.get(group)
        return loss.pause(self._clock.monotonic()) if loss is not None and loss.last_uid is None else None

    async def recover(
        self, group: str, reservations: list[Reservation], claims: Sequence[DeviceRequest], is_released: bool
    ) -> Orphaned | None:
        """Recover the group's device if pods use it and no reservation holds it. None if there is nothing to recover.

        Removes blockers and adds a new reservation to ``reservations``. ``is_released``: another pod is about to be
        bound to the node, perhaps with a device that the search blocks, so the search ends.
        """
        if any(reservation.holds for reservation in reservations):
            await self._finish_recovery(group, reservations)
            return None
        if self._idle.has_users(group):
            users = running_users(await self._client.users(group))
        else:
            nodes = {
                claim.node
                for claim in claims
                if not any(reservation.lives and reservation.node == claim.node for reservation in reservations)
            }
            users = running_users([user for node in sorted(nodes) for user in await self._client.users(group, node)])
        if not users:
            self._losses.pop(group, None)
            return None
        node = users[0].node
        loss = self._losses.get(group)
        if loss is None:
            loss = self._losses[group] = Loss()
            log.warning("a shared device is no longer reserved", extra={"group": group, "node": node})
            note = f"the GPU of group {group} is no longer reserved: the kubelet may assign it to another pod"
            await self._client.report(users, "SharedGPUUnreserved", note)
        is_blocking = any(reservation.is_blocker for reservation in reservations)
        if loss.pause(self._clock.monotonic()) <= REQUEUE_DELAY or (is_released and is_blocking):
            await self._search(group, node, users, reservations, is_released)
        refs = [reservation.ref for reservation in unreported_reservations(reservations)]
        refs += [ObjectRef("v1", "Pod", user.key, user.uid, user.version) for user in users[:5]]
        pods = ", ".join(str(user.key) for user in users[:5])
        why = self._losses[group].why or "it is being reserved again"
        problem = f"nothing reserves the device of group {group} on node {node}, used by pod {pods}"
        return Orphaned(f"{problem}: {why}", tuple(refs))

    async def _finish_recovery(self, group: str, reservations: list[Reservation]) -> None:
        loss = self._losses.pop(group, None)
        await self._remove_all([reservation for reservation in reservations if reservation.is_blocker], reservations)
        if loss is not None:
            log.info("a shared device is reserved again", extra={"group": group})
            users = running_users(await self._client.users(group))
            note = f"the GPU of group {group} is reserved again"
            await self._client.report(users, "SharedGPUReserved", note, is_warning=False)

    async def _search(
        self, group: str, node: str, users: Sequence[User], reservations: list[Reservation], is_released: bool
    ) -> None:
        """Execute one step of the search for the lost device."""
        loss, now = self._losses[group], self._clock.monotonic()
        evidence = await self._client.evidence(group, node, users)
        step = next_step(group, node, reservations, evidence, loss.last_uid)
        blockers = tuple(reservation for reservation in reservations if reservation.is_blocker)
        if is_released and blockers:
            step = Abandon("another pod is bound to the node", blockers)
        match step:
            case Await():
                return
            case Reserve():
                await self._remove_all(step.remove, reservations)
                claim = DeviceRequest(
                    request=_NO_REQUEST,
                    pod=users[0].key,
                    node=node,
                    group=group,
                    tolerations=evidence.tolerations,
                    compute_mode=evidence.compute_mode,
                    node_uid=evidence.node_uid,
                )
                reservation = await self._client.create(claim, step.name, evidence.devices)
                if isinstance(reservation, str):
                    self._losses[group] = Loss(reservation, now + SEARCH_INTERVAL.total_seconds())
                    return
                self._losses[group] = Loss(loss.why, loss.until, reservation.uid)
                if reservation.uid not in {existing.uid for existing in reservations}:
                    reservations.append(reservation)
                log.info("reserving a lost device", extra={"group": group, "reservation": str(reservation.key)})
            case Abandon():
                await self._remove_all(step.release, reservations)
                if step.why != loss.why:
                    note = f"the GPU of group {group} cannot be reserved again now: {step.why}; restart this pod"
                    await self._client.report(users, "SharedGPUUnreserved", note)
                self._losses[group] = Loss(step.why, now + SEARCH_INTERVAL.total_seconds())
                log.warning("a lost device cannot be reserved", extra={"group": group, "why": step.why})
            case _:
                assert_never(step)
