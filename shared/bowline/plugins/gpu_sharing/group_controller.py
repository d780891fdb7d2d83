"""The controller of all groups: creates reservation pods, and deletes them when their device has no users.

Requests ask it for a group's device or release it. A group is reconciled once at a time, different groups
concurrently and in turns of the namespaces that asked for them, from live reads:

- a *claim* is kept from the call until its pod is bound, so that no cleanup runs between the answer and the label
  that makes the pod a user. It is answered with the device, what to wait for, or the pods that leave it no room;
- a *release* is answered when the group has been checked and unused reservations are deleted;
- an *event* (a sharing pod ended or lost its label) triggers a check if the watch shows no other user; pods are read
  live only before a delete.

The device of a group that pods use without a reservation is recovered first (``lost_devices``).
A reconcile waits for API responses only. If an agent has not reported its device, the claim is answered with Pending,
and the request waits without a worker.

The state may be lost: after a restart, unfinished requests and labels show which devices are in use. Decision 35.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from http import HTTPStatus
from typing import assert_never

from bowline.api.meta import ObjectKey, ObjectUID
from bowline.framework.binding.handle import Handle
from bowline.kube.accounting import api_time
from bowline.kube.errors import ApiStatus, Conflict, ConnectionFailed, KubeError
from bowline.kube.late_writes import current_writes, noting
from bowline.plugins.gpu_sharing.group import Group, Query
from bowline.plugins.gpu_sharing.idle_groups import IdleGroups
from bowline.plugins.gpu_sharing.lost_devices import LostDevices
from bowline.plugins.gpu_sharing.metrics import SharingMetrics
from bowline.plugins.gpu_sharing.reservation import (
    RELEASE_RETRY,
    REQUEUE_DELAY,
    Answer,
    Create,
    DeviceRequest,
    Full,
    Held,
    Lost,
    Pending,
    Reservation,
    ReservationState,
    Unreleased,
    check_reservations,
    excess,
    overdue,
    unreported_reservations,
    unused_reservations,
)
from bowline.plugins.gpu_sharing.reservation_client import ReservationClient

log = logging.getLogger(__name__)

# How long a delete of an unused reservation may take: pods that need its device wait for the answer.
DELETE_TIMEOUT_S = 2.0
# When an idle device is checked again that is kept only because an unfinished request lists it: that request may end
# without having asked for it, such as one whose pod was deleted.
KEPT_RETRY = timedelta(seconds=30)


class GroupController:
    """Answers for all groups of the cluster while this process is the leader."""

    def __init__(
        self,
        handle: Handle,
        client: ReservationClient,
        agent_timeout: timedelta,
        metrics: SharingMetrics,
        idle: IdleGroups,
    ) -> None:
        self._client = client
        self._idle = idle
        self._metrics = metrics
        self._clock = handle.clock
        self._agent_timeout = agent_timeout
        self._enqueue = handle.worker("groups", self._reconcile)
        self._groups: dict[str, Group] = {}
        self._claimed_by: dict[ObjectKey, set[str]] = {}  # the groups of each request's claims
        # Rolled back requests, which may still list a group for some time.
        self._withdrawn: dict[ObjectKey, ObjectUID] = {}
        self._leads = False
        self._lost_devices = LostDevices(client, idle, handle.clock, self._remove_all)

    # --- called by requests ---

    async def claim(self, claims: Sequence[DeviceRequest]) -> list[ReservationState]:
        """Return the answer to each claim, in order. Raises the client's errors."""
        for claim in claims:
            self._withdrawn.pop(claim.request, None)
            self._group(claim.group).claims[claim.request] = claim
            self._claimed_by.setdefault(claim.request, set()).add(claim.group)
        answers = await asyncio.gather(
            *(self._query(claim.group, claim, claim.request.namespace) for claim in claims)
        )
        return [answer for answer in answers if answer is not None and not isinstance(answer, Unreleased)]

    def time_left(self, reservation: Reservation) -> timedelta:
        """Return how long the agent of a reservation may still take to report its device, at least REQUEUE_DELAY."""
        group, now = self._groups.get(reservation.group), self._clock.monotonic()
        since = group.unreported_since.get(reservation.uid, now) if group is not None else now
        return max(self._agent_timeout - timedelta(seconds=now - since), REQUEUE_DELAY)

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of what is remembered, by kind."""
        claimants, withdrawn = len(self._claimed_by), len(self._withdrawn)
        return {"groups": len(self._groups), "claimants": claimants, "withdrawn": withdrawn}

    def release_claims(self, request: ObjectKey) -> None:
        """Drop the request's claims: its pod is bound, and the label keeps the device from now on."""
        for name in self._claimed_by.pop(request, ()):
            group = self._groups[name]
            del group.claims[request]
            if not group.claims:
                group.timeouts.clear()
                if group.is_unchecked:
                    self._add(group, request.namespace)
            self._drop_empty(group)

    async def release(self, request: ObjectKey, uid: ObjectUID, groups: Iterable[str], node: str) -> None:
        """Drop the request's claims; returns after one try to delete the unused reservations of the groups.

        On ``node`` these are found by their name, too: a policy may have removed their labels. What cannot be deleted
        now is deleted later: it delays only pods that need its device.
        """
        self._withdrawn[request] = uid
        self.release_claims(request)
        await asyncio.gather(*(self._query(group, None, request.namespace, node) for group in groups))

    async def release_unused(self, groups: Iterable[str], node: str, tenant: str) -> list[Unreleased]:
        """Try to delete the unused reservations of the groups without claims, for a pod of ``tenant``, a namespace.
        Returns those on the node that cannot be deleted now.
        """
        unclaimed = [name for name in groups if not (group := self._groups.get(name)) or not group.claims]
        answers = await asyncio.gather(*(self._query(name, None, tenant) for name in unclaimed))
        return [answer for answer in answers if isinstance(answer, Unreleased) and answer.reservation.node == node]

    def forget(self, request: ObjectKey) -> None:
        """Drop the state of a request that does not exist any more."""
        self._withdrawn.pop(request, None)
        self.release_claims(request)

    # --- called by watches ---

    def enqueue(self, groups: Iterable[str], tenant: str = "") -> None:
        """Enqueue the groups for a check, because of a pod of ``tenant``. On a standby no effect."""
        for name in groups if self._leads else ():
            group = self._group(name)
            group.is_unchecked = True
            self._add(group, tenant)

    def begin(self) -> None:
        """Record that this process is the leader."""
        self._leads = True

    def clear(self) -> None:
        """Drop all state and cancel pending queries: this process is not the leader any more."""
        self._leads = False
        for group in self._groups.values():
            _refuse(group.queries)
        for memory in (self._groups, self._claimed_by, self._withdrawn):
            memory.clear()

    # --- one reconcile of one group ---

    async def _reconcile(self, key: ObjectKey) -> timedelta | None:
        group = self._groups.get(key.name)
        if group is None:
            return None  # of an earlier term
        group.is_enqueued = False
        again = await self._check(group)
        if again is None and not group.is_enqueued:
            group.key = None
            self._drop_empty(group)
        return again

    async def _check(self, group: Group) -> timedelta | None:
        queries, group.queries = group.queries, []
        try:
            nodes = {query.node for query in queries} - {""}
            group.reservations = await self._client.reservations(group.name, nodes)
            await self._delete_overdue(group)
            is_released = any(query.claim is None for query in queries)
            claims = [query.claim for query in queries if query.claim]
            orphan = await self._lost_devices.recover(group, claims, is_released)
            for query in queries:
                # Done if the caller was cancelled: create nothing for a withdrawn request.
                if query.claim is not None and not query.answer.done():
                    with noting(query.writes):
                        answer = orphan if orphan is not None else await self._answer(group, query.claim)
                    if not query.answer.done():
                        query.answer.set_result(answer)
            timeout = self._update_unreported(group)
            # A release is answered from live reads, so watch lag does not matter.
            again, release_failure = None, None
            if is_released or not self._idle.has_users(group.name):
                again, release_failure = await self._delete_unused(group)
            if not group.claims and not group.queries:
                group.is_unchecked = False
            again = min(filter(None, (again or timeout, self._lost_devices.pause(group))), default=None)
            for query in queries:
                if not query.answer.done():
                    query.answer.set_result(release_failure)
        except Exception as error:
            pending = [query for query in queries if not query.answer.done()]
            for query in pending:
                query.answer.set_exception(error)
            if not pending or not isinstance(error, KubeError):
                raise
            # The callers retry; nobody else checks the group.
            return RELEASE_RETRY if group.is_unchecked else None
        finally:
            # Pending only if this worker was cancelled, at the end of the leadership or of its budget.
            _refuse(queries)
        return again

    async def _answer(self, group: Group, claim: DeviceRequest) -> ReservationState:
        verdict = check_reservations(claim, group.reservations, group.timeouts)
        match verdict:
            case Held():
                full = await self._excess(group, claim)
                if full is not None:
                    return full
                await self._join(group, claim, verdict)
                if claim.request in group.claims:  # not released meanwhile
                    group.claims[claim.request] = replace(claim, joined_uid=verdict.uid)
                return verdict
            case Pending() | Full():
                return verdict
            case Lost():
                if verdict.remove is not None:
                    await self._remove(group, verdict.remove)
                return verdict
            case Create():
                return await self._create(group, claim, verdict)
            case _:
                assert_never(verdict)

    async def _excess(self, group: Group, claim: DeviceRequest) -> Full | None:
        """Return why the device has no room for the claim, beside the pods on the node and those about to be bound.

        The latter are read first: one that is bound meanwhile is listed.
        """
        others = [other for other in group.claims.values() if other.joined_uid and other.node == claim.node]
        portions = {other.pod: other.portion for other in others}
        portions |= await self._client.portions(claim.group, claim.node)
        return excess(claim, portions, self._client.spec.settings.overcommit)

    async def _join(self, group: Group, claim: DeviceRequest, held: Held) -> None:
        """Change the reservation whose device the request is given; raises Conflict if it does not exist any more.

        Whoever has found the device unused, such as a former leader that was stopped, deletes the version that it has
        read: a delete that arrives from here on is refused.
        """
        if held.uid == claim.joined_uid:
            return
        reservation = next(entry for entry in group.reservations if entry.uid == held.uid)
        joined = await self._client.touch(reservation)
        if joined is None:
            raise Conflict(ApiStatus(HTTPStatus.CONFLICT, "Conflict", f"pod {reservation.key} has just been deleted"))
        group.reservations[group.reservations.index(reservation)] = joined

    async def _create(self, group: Group, claim: DeviceRequest, verdict: Create) -> ReservationState:
        scaling = await self._client.scaling_up()
        if scaling is not None:
            return scaling
        await self._remove_all(group, verdict.instead_of)
        reservation = await self._client.create(claim)
        if isinstance(reservation, str):
            return Lost(reservation)
        reserved = {"group": group.name, "node": claim.node, "reservation": str(reservation.key)}
        log.info("device reserved", extra=reserved)
        group.reservations.append(reservation)
        return Pending(reservation)

    async def _remove_all(self, group: Group, targets: Iterable[Reservation]) -> None:
        for target in targets:
            await self._remove(group, target)

    async def _remove(self, group: Group, target: Reservation) -> bool:
        """Delete the pod as read, and from the group. False if it has changed: a later pass deletes it."""
        if not await self._client.remove(target):
            return False
        group.reservations.remove(target)
        if target.has_ended and not target.device:
            self._metrics.ended_reservations.inc()
        return True

    async def _delete_overdue(self, group: Group) -> None:
        """Delete reservations whose agents exceeded the timeout. The deletion wakes the waiting requests."""
        reasons = overdue(group.reservations, group.unreported_since, self._clock.monotonic(), self._agent_timeout)
        for late in [reservation for reservation in group.reservations if reservation.uid in reasons]:
            if await self._remove(group, late):
                group.timeouts[late.uid] = reasons[late.uid]
                self._metrics.silent_reservations.inc()
                log.warning("reservation released", extra={"group": group.name, "why": reasons[late.uid]})

    def _update_unreported(self, group: Group) -> timedelta | None:
        """Record which reservations have no device now; returns the delay until the first of them is overdue."""
        if not group.claims:
            group.timeouts.clear()
        before, now = group.unreported_since, self._clock.monotonic()
        unreported = unreported_reservations(group.reservations)
        group.unreported_since = {reservation.uid: before.get(reservation.uid, now) for reservation in unreported}
        return min(map(self.time_left, unreported), default=None)

    async def _delete_unused(self, group: Group) -> tuple[timedelta | None, Unreleased | None]:
        """Delete unused reservations; returns a requeue delay, and a reservation that cannot be deleted now."""
        deleting = (entry for entry in group.reservations if entry.deleting and not entry.has_ended)
        release_failure = next((Unreleased(entry, "it is being deleted") for entry in deleting), None)
        idle = unused_reservations(group.reservations, (), group.claimed_nodes, ())
        if not idle:
            return None, release_failure
        nodes = {reservation.node for reservation in idle}
        users = [user for node in nodes for user in await self._client.users(group.name, node)]
        idle = unused_reservations(idle, users, group.claimed_nodes, ())
        if not idle:
            return None, release_failure
        requested_nodes = await self._client.requested_nodes(group.name, nodes, set(self._withdrawn.values()))
        pauses: list[timedelta] = []
        # Claims may have been made meanwhile; from here to each delete only deletes are awaited.
        for reservation in idle:
            if not unused_reservations([reservation], (), (), requested_nodes):
                pauses.append(KEPT_RETRY)
            if not unused_reservations([reservation], users, group.claimed_nodes, requested_nodes):
                continue
            try:
                async with asyncio.timeout(DELETE_TIMEOUT_S):
                    is_removed = await self._remove(group, reservation)
            except (KubeError, TimeoutError) as error:
                why = str(error) or f"the delete has not ended within {DELETE_TIMEOUT_S:g} s"
                release_failure = Unreleased(reservation, why)
                pauses.append(RELEASE_RETRY)
                log.warning("a device cannot be released", extra={"reservation": str(reservation.key), "error": why})
                continue
            if is_removed:
                released = {"group": group.name, "node": reservation.node, "reservation": str(reservation.key)}
                log.info("device released", extra=released)
            else:
                # It exists still: a pod that needs its device waits for its deletion.
                release_failure = Unreleased(reservation, "it has changed meanwhile")
                pauses.append(REQUEUE_DELAY)
        return min(pauses, default=None), release_failure

    def _group(self, name: str) -> Group:
        """Return the group, which is kept until it is empty."""
        return self._groups.setdefault(name, Group(name))

    def _drop_empty(self, group: Group) -> None:
        if group.is_empty and self._groups.get(group.name) is group:  # not of an earlier term
            del self._groups[group.name]

    def _add(self, group: Group, tenant: str) -> None:
        group.is_enqueued = True
        group.key = group.key or ObjectKey(tenant, group.name)
        self._enqueue(group.key)

    async def _query(self, name: str, claim: DeviceRequest | None, tenant: str, node: str = "") -> Answer:
        group, query = (
            self._group(name),
            Query(claim, node, asyncio.get_running_loop().create_future(), current_writes()),
        )
        group.queries.append(query)
        group.is_unchecked = group.is_unchecked or claim is None
        self._add(group, tenant)
        # The caller waits for the worker's API requests, so this counts as API time.
        with api_time():
            return await query.answer


def _refuse(queries: Iterable[Query]) -> None:
    """Answer that the reconcile was cancelled: not a defect of the plugin, and the next one answers."""
    why = "the check of the GPU group has ended: it took too long, or this process no longer leads"
    for query in queries:
        if not query.answer.done():
            query.answer.set_exception(ConnectionFailed(why))
