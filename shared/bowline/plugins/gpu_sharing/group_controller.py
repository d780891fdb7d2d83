"""The controller of all groups: creates reservation pods, and deletes them when their device has no users.

Requests ask it for a group's device or release it. Each call is a pass over the group from live reads; a group has
one pass at a time, different groups have theirs concurrently:

- a *claim* is kept from the call until its pod is bound, so that no cleanup runs between the answer and the label
  that makes the pod a user. It is answered with the device, what to wait for, or the pods that leave it no room;
- a *release* is answered when the group has been checked and unused reservations are deleted;
- an *event* (a sharing pod ended or lost its label) triggers a check if the watch shows no other user; pods are read
  live only before a delete. So does a group that the watches show idle or unreserved for a while, and at the start of
  a term: a watch may have been silent, or another binder's pods lack the label that it selects, which they get then.

The device of a group that pods use without a reservation is recovered first (``lost_devices``).
A pass waits for API responses only. If an agent has not reported its device, the claim is answered with Pending, and
the request waits without a worker.

The state may be lost: after a restart, unfinished requests and labels show which devices are in use. Decision 35.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from http import HTTPStatus

from bowline.api.meta import ObjectKey, ObjectUID, uid_of
from bowline.framework.interface.handle import Handle
from bowline.framework.interface.status import Status
from bowline.kube.accounting import turn_at
from bowline.kube.errors import ApiError, ApiStatus, Conflict, KubeError, NotStoredError
from bowline.plugins.gpu_sharing.group import Group
from bowline.plugins.gpu_sharing.labels import label_changes
from bowline.plugins.gpu_sharing.lost_devices import LostDevices
from bowline.plugins.gpu_sharing.metrics import SharingMetrics
from bowline.plugins.gpu_sharing.reservation import (
    ELSEWHERE,
    NO_UID,
    RELEASE_RETRY,
    REQUEUE_DELAY,
    Create,
    DeviceRequest,
    Held,
    Pending,
    Reservation,
    Unreleased,
    check_reservations,
    excess,
    is_named_for,
    no_room,
    overdue_reason,
    unused_reservations,
)
from bowline.plugins.gpu_sharing.reservation_client import ReservationClient
from bowline.plugins.gpu_sharing.watched_groups import WatchedGroups, groups_of

log = logging.getLogger(__name__)

# How long a delete of an unused reservation may take: pods that need its device wait for the answer.
DELETE_TIMEOUT_S = 2.0
# How often groups are looked for that stay idle or unreserved without an event; while shares are off.
PERIOD, PERIOD_OFF = timedelta(seconds=30), timedelta(minutes=10)
# The group of reservation pods that have lost their label.
UNLABELLED = ""


class GroupController:
    """Answers for all groups of the cluster while this process is the leader. Methods raise the client's errors."""

    def __init__(
        self,
        handle: Handle,
        client: ReservationClient,
        agent_timeout: timedelta,
        metrics: SharingMetrics,
        watched: WatchedGroups,
    ) -> None:
        self._client = client
        self._watched = watched
        self._metrics = metrics
        self._clock = handle.clock
        self._agent_timeout = agent_timeout
        self._enqueue = handle.worker("groups", self._reconcile)
        self._groups: dict[str, Group] = {}
        self._claimed_by: dict[ObjectKey, set[str]] = {}  # the groups of each request's claims
        # Rolled back requests, which may still list a group for some time.
        self._withdrawn: dict[ObjectKey, ObjectUID] = {}
        self._looked_at: frozenset[str] = frozenset()  # what ``look`` has found last
        self._leads = False
        self._lost_devices = LostDevices(client, watched, handle.clock, self._remove_all)

    # --- called by requests ---

    async def claim(self, claim: DeviceRequest) -> Held | Pending | Status:
        """Return the group's device, what to wait for, or why the request gets none."""
        self._withdrawn.pop(claim.request, None)
        group = self._group(claim.group)
        former = group.claims.get(claim.request, claim)
        claim = replace(claim, awaited_uid=former.awaited_uid, joined_uid=former.joined_uid)
        # What an earlier attempt was given is no device that a pod is about to be bound with.
        group.claims[claim.request] = replace(claim, joined_uid=NO_UID)
        self._claimed_by.setdefault(claim.request, set()).add(claim.group)
        async with self._pass(group):
            orphan = await self._lost_devices.recover(group, claim)
            answer = orphan if orphan is not None else await self._answer(group, claim)
            if claim.request in group.claims:  # not released meanwhile
                awaited_uid = answer.reservation.uid if isinstance(answer, Pending) else NO_UID
                joined_uid = answer.uid if isinstance(answer, Held) else NO_UID
                group.claims[claim.request] = replace(claim, awaited_uid=awaited_uid, joined_uid=joined_uid)
        self._schedule(group, claim.request.namespace)
        return answer

    def time_left(self, reservation: Reservation) -> timedelta:
        """Return how long the agent of a reservation may still take to report its device, at least REQUEUE_DELAY."""
        group = self._groups.get(reservation.group)
        now = self._clock.monotonic()
        return max(self._agent_timeout if group is None else group.time_left(reservation, now), REQUEUE_DELAY)

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
                    self._enqueue(ObjectKey(request.namespace, name))
            self._drop_empty(group)

    async def release(self, request: ObjectKey, uid: ObjectUID, groups: Iterable[str], node: str) -> None:
        """Drop the request's claims; returns after one try to delete the unused reservations of the groups.

        On ``node`` these are found by their name, too: a policy may have removed their labels. What cannot be deleted
        now is deleted later: it delays only pods that need its device.
        """
        self._withdrawn[request] = uid
        self.release_claims(request)
        await asyncio.gather(*(self._release(group, request.namespace, {node}) for group in groups))

    async def release_unused(self, groups: Iterable[str], node: str, tenant: str) -> list[Unreleased]:
        """Try to delete the unused reservations of the groups without claims, for a pod of ``tenant``, a namespace.
        Returns those on the node that cannot be deleted now.
        """
        unclaimed = [name for name in groups if not (group := self._groups.get(name)) or not group.claims]
        failures = await asyncio.gather(*(self._release(name, tenant) for name in unclaimed))
        return [failure for failure in failures if failure is not None and failure.reservation.node == node]

    def forget(self, request: ObjectKey) -> None:
        """Drop the state of a request that does not exist any more."""
        self._withdrawn.pop(request, None)
        self.release_claims(request)

    # --- called by watches ---

    def enqueue(self, groups: Iterable[str], tenant: str = "") -> None:
        """Enqueue the groups for a check, because of a pod of ``tenant``. On a standby no effect."""
        for name in groups if self._leads else ():
            if name != UNLABELLED:
                self._group(name).is_unchecked = True
            self._enqueue(ObjectKey(tenant, name))

    async def run(self) -> None:
        """Lead until cancelled. The watches are synced."""
        self.begin()
        # While shares are off, no watch shows the users of another binder's groups: all of these look idle.
        period = PERIOD if self._client.spec.releases_foreign else PERIOD_OFF
        try:
            while True:
                self.look()
                await asyncio.sleep(period.total_seconds())
        finally:
            self.clear()

    def begin(self) -> None:
        """Record that this process is the leader."""
        self._leads, self._looked_at = True, self._watched.to_look_at

    def clear(self) -> None:
        """Drop all state: this process is not the leader any more."""
        self._leads = False
        for memory in (self._groups, self._claimed_by, self._withdrawn):
            memory.clear()

    def look(self) -> None:
        """Enqueue the groups that the watches show idle or unreserved now and at the last call.

        The last user of such a group may have come and gone while a watch was silent. An unfinished request that
        lists it may have ended without having asked for it, such as one whose pod was deleted.
        """
        before, self._looked_at = self._looked_at, self._watched.to_look_at
        self.enqueue(before & self._looked_at)

    # --- one pass over one group ---

    async def _reconcile(self, key: ObjectKey) -> timedelta | None:
        """Check the group if an event or its time asks for it; returns the delay until its next pass."""
        if key.name == UNLABELLED:
            await self._remove_unlabelled()
            return None
        group = self._groups.get(key.name)
        if group is None:
            return None  # of an earlier term, or nothing is left to do
        due = group.due_in(self._clock.monotonic())
        if group.is_unchecked or (due is not None and due <= timedelta(0)):
            await self._check(group)
            await self._adopt(group)
            due = group.due_in(self._clock.monotonic())
        return None if due is None else max(due, REQUEUE_DELAY)

    async def _adopt(self, group: Group) -> None:
        """Add the labels for watch and schedulers to pods of another binder that the check has found."""
        pods, group.to_adopt = group.to_adopt, ()
        for user in pods:
            try:
                pod = await self._client.pod(user.key)
                labels = (pod["metadata"].get("labels") or {}) if pod is not None else {}
                if pod is not None and uid_of(pod) == user.uid and groups_of(pod):
                    await self._client.label(pod, label_changes(labels, sorted(groups_of(pod))))
            except (ApiError, NotStoredError) as error:
                # For example denied by a policy: the next check retries.
                log.warning("a sharing pod cannot be labelled", extra={"pod": str(user.key), "error": str(error)})

    async def _remove_unlabelled(self) -> None:
        """Delete reservation pods that have lost their label and are, by their names, those of no group in use.

        A group is in use by a pod, or by a request that claims its device: its reservation pod gets the label again
        when the device is recovered. A pod that is not decoded stays: neither its node nor its group is known.
        """
        for reservation in await self._client.unlabelled():
            if reservation.deleting or not reservation.node:
                continue
            groups_in_use = await self._client.groups_on(reservation.node)
            groups_in_use |= {name for name, group in self._groups.items() if group.claims}
            if any(is_named_for(reservation.key.name, reservation.node, group) for group in groups_in_use):
                continue
            about = {"reservation": str(reservation.key)}
            try:
                if await self._client.remove(reservation):
                    log.info("unlabelled reservation released", extra=about)
            except ApiError as error:
                # For example denied by a policy, which keeps no other one: the next look retries.
                log.warning("an unlabelled reservation cannot be released", extra={**about, "error": str(error)})

    def _schedule(self, group: Group, tenant: str) -> None:
        if group.due_in(self._clock.monotonic()) is not None:
            self._enqueue(ObjectKey(tenant, group.name))

    async def _release(self, name: str, tenant: str, nodes: Collection[str] = ()) -> Unreleased | None:
        group = self._group(name)
        try:
            failure = await self._check(group, nodes, is_release=True)
        except BaseException:
            self._enqueue(ObjectKey(tenant, name))  # the caller may not ask again: its request may be gone
            raise
        self._schedule(group, tenant)
        return failure

    async def _check(
        self, group: Group, nodes: Collection[str] = (), *, is_release: bool = False
    ) -> Unreleased | None:
        """Recover a lost device, and delete unused reservations; returns one that cannot be deleted now."""
        group.is_unchecked = True
        async with self._pass(group, nodes, is_check=True):
            await self._lost_devices.recover(group, is_release=is_release)
            # A release is answered from live reads, so watch lag does not matter.
            if is_release or not self._watched.has_users(group.name):
                return await self._delete_unused(group)
            group.retry_at = None
        return None

    @asynccontextmanager
    async def _pass(
        self, group: Group, nodes: Collection[str] = (), *, is_check: bool = False
    ) -> AsyncIterator[None]:
        """Wait for the passes before this one, and read the group's reservation pods.

        A claim needs no read of its own if the pass before it has read since the claim was made.
        """
        group.passes += 1
        asked_at = self._clock.monotonic()
        try:
            async with turn_at(group.lock):
                if is_check:
                    group.is_unchecked = False  # an event of a later moment asks for another check
                if is_check or group.read_at <= asked_at:
                    read_at = self._clock.monotonic()
                    group.reservations = await self._client.reservations(group.name, nodes)
                    group.read_at = read_at
                    await self._delete_overdue(group)
                yield
                group.is_unchecked |= is_check and bool(group.claims)
                group.note_unreported(self._clock.monotonic())
        except BaseException:
            group.is_unchecked |= is_check
            raise
        finally:
            group.passes -= 1
            self._drop_empty(group)

    async def _answer(self, group: Group, claim: DeviceRequest) -> Held | Pending | Status:
        verdict = check_reservations(claim, group.reservations, group.timeouts)
        if isinstance(verdict, Create):
            if any(other.joined_uid and other.node == claim.node for other in group.claims.values()):
                raise _conflict(f"a pod that was given its device, which group {group.name} has lost, is being bound")
            return await self._create(group, claim, verdict)
        if isinstance(verdict, Held):
            other = self._other_holder(group, claim, verdict.device)
            if other:
                return no_room(
                    f"device {verdict.device} of group {claim.group} on node {claim.node} is that of group {other}: "
                    "the node offers it several times, as with time slicing; choose that group, or another node"
                )
            full = await self._excess(group, claim)
            if full is not None:
                return full
            await self._join(group, claim, verdict)
        return verdict

    def _other_holder(self, group: Group, claim: DeviceRequest, device: str) -> str:
        """Return the group, other than those of the request, that has the device already; empty if none.

        If pods have it of neither group, it is the first by name.
        """
        others = sorted(self._watched.holders(device) - {group.name} - self._claimed_by.get(claim.request, set()))
        if self._is_given(group.name):
            return ""
        return next((name for name in others if self._is_given(name) or name < group.name), "")

    def _is_given(self, name: str) -> bool:
        """Return whether a pod has the group's device, or is about to."""
        group = self._groups.get(name)
        return self._watched.has_users(name) or (
            group is not None and any(c.joined_uid for c in group.claims.values())
        )

    async def _excess(self, group: Group, claim: DeviceRequest) -> Status | None:
        """Return why the device has no room for the claim, beside the pods on the node and those about to be bound.

        The latter are read first: one that is bound meanwhile is listed.
        """
        others = [other for other in group.claims.values() if other.joined_uid and other.node == claim.node]
        portions = {other.pod: other.portion for other in others}
        users = await self._client.users(claim.group, claim.node, claim.node_facts.device_memory)
        portions |= {user.key: user.portion for user in users if not user.has_ended}
        return excess(claim, portions, self._client.spec.settings.overcommit)

    async def _join(self, group: Group, claim: DeviceRequest, held: Held) -> None:
        """Change the reservation whose device the request is given; raises Conflict if it has lost that device.

        Whoever has found the device unused, such as a former leader that was stopped, deletes the version that it has
        read: a delete that arrives from here on is refused.
        """
        if held.uid == claim.joined_uid:
            return
        reservation = next(entry for entry in group.reservations if entry.uid == held.uid)
        joined = await self._client.touch(reservation)
        if joined is None or not joined.holds:
            raise _conflict(f"pod {reservation.key} has just been deleted, or has another device")
        group.reservations[group.reservations.index(reservation)] = joined

    async def _create(self, group: Group, claim: DeviceRequest, verdict: Create) -> Pending | Status:
        scaling = await self._client.scaling_up()
        if scaling is not None:
            return scaling
        await self._remove_all(group, verdict.instead_of)
        reservation = await self._client.create(claim)
        if isinstance(reservation, str):
            return Status.retry(reservation, suggestion=ELSEWHERE)
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
        for late in group.overdue(self._clock.monotonic()):
            if await self._remove(group, late):
                why = overdue_reason(late, self._agent_timeout)
                group.timeouts |= {late.uid: why} if group.claims else {}
                self._metrics.silent_reservations.inc()
                log.warning("reservation released", extra={"group": group.name, "why": why})

    async def _delete_unused(self, group: Group) -> Unreleased | None:
        """Delete unused reservations; returns a reservation that cannot be deleted now."""
        group.retry_at = None
        deleting = (entry for entry in group.reservations if entry.deleting and not entry.has_ended)
        failure = next((Unreleased(entry, entry.deletion) for entry in deleting), None)
        releasable = [
            entry for entry in group.reservations if self._client.spec.releases_foreign or not entry.is_foreign
        ]
        idle = unused_reservations(releasable, (), group.claimed_nodes, ())
        nodes = {reservation.node for reservation in idle}
        users = [user for node in nodes for user in await self._client.users(group.name, node)]
        group.to_adopt = [user for user in users if not user.is_adopted]
        idle = unused_reservations(idle, users, group.claimed_nodes, ())
        if not idle:
            return failure
        requested_nodes = await self._client.requested_nodes(group.name, nodes, set(self._withdrawn.values()))
        pauses: list[timedelta] = []
        # Claims may have been made meanwhile; from here to each delete only deletes are awaited.
        for reservation in idle:
            if not unused_reservations([reservation], users, group.claimed_nodes, requested_nodes):
                continue
            try:
                async with asyncio.timeout(DELETE_TIMEOUT_S):
                    is_removed = await self._remove(group, reservation)
            except (KubeError, TimeoutError) as error:
                why = str(error) or f"the delete has not ended within {DELETE_TIMEOUT_S:g} s"
                failure = Unreleased(reservation, why)
                pauses.append(RELEASE_RETRY)
                log.warning("a device cannot be released", extra={"reservation": str(reservation.key), "error": why})
                continue
            if is_removed:
                released = {"group": group.name, "node": reservation.node, "reservation": str(reservation.key)}
                log.info("device released", extra=released)
            else:
                # It exists still: a pod that needs its device waits for its deletion.
                failure = Unreleased(reservation, "it has changed meanwhile")
                pauses.append(REQUEUE_DELAY)
        group.retry_at = self._clock.monotonic() + min(pauses).total_seconds() if pauses else None
        return failure

    def _group(self, name: str) -> Group:
        """Return the group, which is kept until it is empty."""
        return self._groups.setdefault(name, Group(name, self._agent_timeout))

    def _drop_empty(self, group: Group) -> None:
        # Checks are the leader's. A group of an earlier term is not in the dictionary.
        is_over = group.is_empty or not (self._leads or group.claims or group.passes)
        if is_over and self._groups.get(group.name) is group:
            del self._groups[group.name]


def _conflict(why: str) -> Conflict:
    """Return the error of a request that is processed again, from what is stored then."""
    return Conflict(ApiStatus(HTTPStatus.CONFLICT, "Conflict", why))
