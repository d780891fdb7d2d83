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
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from http import HTTPStatus
from typing import assert_never

from bowline.api.meta import ObjectKey, ObjectUID
from bowline.framework.binding.handle import Handle
from bowline.kube.accounting import api_time
from bowline.kube.errors import ApiStatus, Conflict, ConnectionFailed, KubeError
from bowline.kube.late_writes import LateWrites, current_writes, noting
from bowline.plugins.gpu_sharing.agent_timeouts import REQUEUE_DELAY, AgentTimeouts
from bowline.plugins.gpu_sharing.idle_groups import IdleGroups
from bowline.plugins.gpu_sharing.lost_devices import LostDevices
from bowline.plugins.gpu_sharing.metrics import SharingMetrics
from bowline.plugins.gpu_sharing.reservation import (
    RELEASE_RETRY,
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
    unused_reservations,
)
from bowline.plugins.gpu_sharing.reservation_client import ReservationClient

log = logging.getLogger(__name__)

# How long a delete of an unused reservation may take: pods that need its device wait for the answer.
DELETE_TIMEOUT_S = 2.0
# When an idle device is checked again that is kept only because an unfinished request lists it: that request may end
# without having asked for it, such as one whose pod was deleted.
KEPT_RETRY = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class _Query:
    """A query to a group's reconcile: a claim, or None for a release. ``node``: where names are looked up."""

    claim: DeviceRequest | None
    node: str
    answer: "asyncio.Future[Answer]"
    writes: LateWrites | None  # where the caller's writes are noted


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
        self._timeouts = AgentTimeouts(agent_timeout, handle.clock)
        self._enqueue = handle.worker("groups", self._reconcile)
        # The key of each group in the queue: one only, of the namespace that was the first to ask for the group.
        self._keys: dict[str, ObjectKey] = {}
        self._enqueued: set[str] = set()  # groups that were enqueued since their last reconcile began
        self._claims: dict[str, dict[ObjectKey, DeviceRequest]] = {}
        self._claimed_by: dict[ObjectKey, set[str]] = {}  # the groups of each request's claims
        self._queries: dict[str, list[_Query]] = {}
        # Groups to be checked for unused devices. A claim may keep one from the check, which follows the claim's end.
        self._unchecked: set[str] = set()
        self._leads = False
        # Rolled back requests, which may still list a group for some time.
        self._withdrawn: dict[ObjectKey, ObjectUID] = {}
        self._lost_devices = LostDevices(client, idle, handle.clock, self._remove_all)

    # --- called by requests ---

    async def claim(self, claims: Sequence[DeviceRequest]) -> list[ReservationState]:
        """Return the answer to each claim, in order. Raises the client's errors."""
        for claim in claims:
            self._withdrawn.pop(claim.request, None)
            self._claims.setdefault(claim.group, {})[claim.request] = claim
            self._claimed_by.setdefault(claim.request, set()).add(claim.group)
        queries = (self._query(claim.group, claim, claim.request.namespace) for claim in claims)
        answers = await asyncio.gather(*queries)
        return [answer for answer in answers if answer is not None and not isinstance(answer, Unreleased)]

    def time_left(self, reservation: Reservation) -> timedelta:
        """Return how long the agent of a reservation may still take to report its device."""
        return self._timeouts.time_left(reservation)

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of what is remembered, by kind."""
        return {
            "groups": len(self._keys),
            "claims": len(self._claims),
            "claimants": len(self._claimed_by),
            "queries": sum(map(len, self._queries.values())),
            "unchecked": len(self._unchecked),
            "withdrawn": len(self._withdrawn),
            "losses": len(self._lost_devices),
            **self._timeouts.sizes,
        }

    def release_claims(self, request: ObjectKey) -> None:
        """Drop the request's claims: its pod is bound, and the label keeps the device from now on."""
        for group in self._claimed_by.pop(request, ()):
            claims = self._claims[group]
            del claims[request]
            if not claims:
                del self._claims[group]
                self._timeouts.drop_reasons(group)
                if group in self._unchecked:
                    self._add(group, request.namespace)

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
        unclaimed = [group for group in groups if group not in self._claims]
        answers = await asyncio.gather(*(self._query(group, None, tenant) for group in unclaimed))
        return [answer for answer in answers if isinstance(answer, Unreleased) and answer.reservation.node == node]

    def forget(self, request: ObjectKey) -> None:
        """Drop the state of a request that does not exist any more."""
        self._withdrawn.pop(request, None)
        self.release_claims(request)

    # --- called by watches ---

    def enqueue(self, groups: Iterable[str], tenant: str = "") -> None:
        """Enqueue the groups for a check, because of a pod of ``tenant``. On a standby no effect."""
        for group in groups if self._leads else ():
            self._unchecked.add(group)
            self._add(group, tenant)

    def begin(self) -> None:
        """Record that this process is the leader."""
        self._leads = True

    def clear(self) -> None:
        """Drop all state and cancel pending queries: this process is not the leader any more."""
        self._leads = False
        for queries in self._queries.values():
            _refuse(queries)
        for memory in (self._keys, self._claims, self._claimed_by, self._queries, self._withdrawn):
            memory.clear()
        self._enqueued.clear()
        self._unchecked.clear()
        self._timeouts.clear()
        self._lost_devices.clear()

    # --- one reconcile of one group ---

    async def _reconcile(self, key: ObjectKey) -> timedelta | None:
        self._enqueued.discard(key.name)
        again = await self._check(key.name)
        if again is None and key.name not in self._enqueued:
            self._keys.pop(key.name, None)
        return again

    async def _check(self, group: str) -> timedelta | None:
        queries = self._queries.pop(group, [])
        try:
            reservations = await self._client.reservations(group, {query.node for query in queries} - {""})
            await self._delete_overdue(group, reservations)
            is_released = any(query.claim is None for query in queries)
            claims = [query.claim for query in queries if query.claim]
            orphan = await self._lost_devices.recover(group, reservations, claims, is_released)
            for query in queries:
                # Done if the caller was cancelled: create nothing for a withdrawn request.
                if query.claim is not None and not query.answer.done():
                    with noting(query.writes):
                        answer = orphan if orphan is not None else await self._answer(query.claim, reservations)
                    if not query.answer.done():
                        query.answer.set_result(answer)
            timeout = self._timeouts.update(group, reservations, is_claimed=group in self._claims)
            # A release is answered from live reads, so watch lag does not matter.
            again, release_failure = None, None
            if is_released or not self._idle.has_users(group):
                again, release_failure = await self._delete_unused(group, reservations)
            if group not in self._claims and group not in self._queries:
                self._unchecked.discard(group)
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
            return RELEASE_RETRY if group in self._unchecked else None
        finally:
            # Pending only if this worker was cancelled, at the end of the leadership or of its budget.
            _refuse(queries)
        return again

    async def _answer(self, claim: DeviceRequest, reservations: list[Reservation]) -> ReservationState:
        verdict = check_reservations(claim, reservations, self._timeouts.reasons(claim.group))
        match verdict:
            case Held():
                full = await self._excess(claim)
                if full is not None:
                    return full
                await self._join(claim, verdict, reservations)
                if claim.request in self._claims.get(claim.group, ()):  # not released meanwhile
                    self._claims[claim.group][claim.request] = replace(claim, joined_uid=verdict.uid)
                return verdict
            case Pending() | Full():
                return verdict
            case Lost():
                if verdict.remove is not None:
                    await self._remove(verdict.remove, reservations)
                return verdict
            case Create():
                return await self._create(claim, verdict, reservations)
            case _:
                assert_never(verdict)

    async def _excess(self, claim: DeviceRequest) -> Full | None:
        """Return why the device has no room for the claim, beside the pods on the node and those about to be bound.

        The latter are read first: one that is bound meanwhile is listed.
        """
        claims = self._claims.get(claim.group, {}).values()
        admitted = {other.pod: other.portion for other in claims if other.joined_uid and other.node == claim.node}
        portions = admitted | await self._client.portions(claim.group, claim.node)
        return excess(claim, portions, self._client.spec.settings.overcommit)

    async def _join(self, claim: DeviceRequest, held: Held, reservations: list[Reservation]) -> None:
        """Change the reservation whose device the request is given; raises Conflict if it does not exist any more.

        Whoever has found the device unused, such as a former leader that was stopped, deletes the version that it has
        read: a delete that arrives from here on is refused.
        """
        if held.uid == claim.joined_uid:
            return
        reservation = next(entry for entry in reservations if entry.uid == held.uid)
        joined = await self._client.touch(reservation)
        if joined is None:
            raise Conflict(ApiStatus(HTTPStatus.CONFLICT, "Conflict", f"pod {reservation.key} has just been deleted"))
        reservations[reservations.index(reservation)] = joined

    async def _create(
        self, claim: DeviceRequest, verdict: Create, reservations: list[Reservation]
    ) -> ReservationState:
        scaling = await self._client.scaling_up()
        if scaling is not None:
            return scaling
        await self._remove_all(verdict.instead_of, reservations)
        reservation = await self._client.create(claim)
        if isinstance(reservation, str):
            return Lost(reservation)
        log.info(
            "device reserved", extra={"group": claim.group, "node": claim.node, "reservation": str(reservation.key)}
        )
        reservations.append(reservation)
        return Pending(reservation)

    async def _remove_all(self, targets: Sequence[Reservation], reservations: list[Reservation]) -> None:
        for reservation in targets:
            await self._remove(reservation, reservations)

    async def _remove(self, target: Reservation, reservations: list[Reservation]) -> bool:
        """Delete the pod as read, here and in ``reservations``. False if it has changed: a later pass deletes it."""
        if not await self._client.remove(target):
            return False
        reservations.remove(target)
        if target.has_ended and not target.device:
            self._metrics.ended_reservations.inc()
        return True

    async def _delete_overdue(self, group: str, reservations: list[Reservation]) -> None:
        """Delete reservations whose agents exceeded the timeout. The deletion wakes the waiting requests."""
        reasons = self._timeouts.overdue(group, reservations)
        for late in [reservation for reservation in reservations if reservation.uid in reasons]:
            if await self._remove(late, reservations):
                self._timeouts.add_reason(group, late.uid, reasons[late.uid])
                self._metrics.silent_reservations.inc()
                log.warning("reservation released", extra={"group": group, "why": reasons[late.uid]})

    async def _delete_unused(
        self, group: str, reservations: list[Reservation]
    ) -> tuple[timedelta | None, Unreleased | None]:
        """Delete unused reservations; returns a requeue delay, and a reservation that cannot be deleted now."""
        deleting = next(
            (reservation for reservation in reservations if reservation.deleting and not reservation.has_ended), None
        )
        release_failure = Unreleased(deleting, "it is being deleted") if deleting is not None else None
        idle = unused_reservations(reservations, (), self._claimed_nodes(group), ())
        if not idle:
            return None, release_failure
        nodes = {reservation.node for reservation in idle}
        users = [user for node in nodes for user in await self._client.users(group, node)]
        idle = unused_reservations(idle, users, self._claimed_nodes(group), ())
        if not idle:
            return None, release_failure
        requested_nodes = await self._client.requested_nodes(group, nodes, set(self._withdrawn.values()))
        pauses: list[timedelta] = []
        # Claims may have been made meanwhile; from here to each delete only deletes are awaited.
        for reservation in idle:
            if not unused_reservations([reservation], (), (), requested_nodes):
                pauses.append(KEPT_RETRY)
            if not unused_reservations([reservation], users, self._claimed_nodes(group), requested_nodes):
                continue
            try:
                async with asyncio.timeout(DELETE_TIMEOUT_S):
                    is_removed = await self._remove(reservation, reservations)
            except (KubeError, TimeoutError) as error:
                why = str(error) or f"the delete has not ended within {DELETE_TIMEOUT_S:g} s"
                release_failure = Unreleased(reservation, why)
                pauses.append(RELEASE_RETRY)
                log.warning("a device cannot be released", extra={"reservation": str(reservation.key), "error": why})
                continue
            if is_removed:
                log.info(
                    "device released",
                    extra={"group": group, "node": reservation.node, "reservation": str(reservation.key)},
                )
            else:
                # It exists still: a pod that needs its device waits for its deletion.
                release_failure = Unreleased(reservation, "it has changed meanwhile")
                pauses.append(REQUEUE_DELAY)
        return min(pauses, default=None), release_failure

    def _claimed_nodes(self, group: str) -> Collection[str]:
        return {claim.node for claim in self._claims.get(group, {}).values()}

    def _add(self, group: str, tenant: str) -> None:
        self._enqueued.add(group)
        self._enqueue(self._keys.setdefault(group, ObjectKey(tenant, group)))

    async def _query(self, group: str, claim: DeviceRequest | None, tenant: str, node: str = "") -> Answer:
        query = _Query(claim, node, asyncio.get_running_loop().create_future(), current_writes())
        self._queries.setdefault(group, []).append(query)
        if claim is None:
            self._unchecked.add(group)
        self._add(group, tenant)
        # The caller waits for the worker's API requests, so this counts as API time.
        with api_time():
            return await query.answer


def _refuse(queries: Iterable[_Query]) -> None:
    """Answer that the reconcile was cancelled: not a defect of the plugin, and the next one answers."""
    why = "the check of the GPU group has ended: it took too long, or this process no longer leads"
    for query in queries:
        if not query.answer.done():
            query.answer.set_exception(ConnectionFailed(why))
