"""The controller of all groups: creates reservation pods, and deletes them when their device has no users.

Requests ask it for a group's device or release it. Each call is a pass over the group from live reads; a group has
one pass at a time, different groups have theirs concurrently:

- a *claim* is kept from the call until its pod is bound, so that no cleanup runs between the answer and the label
  that makes the pod a user. It is answered with the device, what to wait for, or the pods that leave it no room;
- a *release* is answered when the group has been checked and unused reservations are deleted, and those whose agent
  was silent for as long as a request may wait for it: others that wait for the same one try again;
- an *event* (a sharing pod ended or lost its label) triggers a check; pods are read live only before a delete, and
  only if the watch shows no other user. So is a group that the watches show idle or unreserved, from time to time and
  at the start of a term: a watch may have been silent, or another binder's pods lack the label that it selects, which
  they get then.

The device of a group that pods use without a reservation is recovered first (``recovery``).
A pass waits for API responses only. If an agent has not reported its device, the claim is answered with Pending, and
the request waits without a worker.

The state may be lost: after a restart, unfinished requests and labels show which devices are in use. Decision 35.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import assert_never

from bowline.api import names
from bowline.api.meta import ObjectKey, ObjectUID
from bowline.framework.interface.handle import Handle
from bowline.framework.interface.status import UNLIMITED, Status, Transient
from bowline.kube.accounting import turn_at
from bowline.kube.errors import KubeError
from bowline.plugins.gpu_sharing.group import Group, Groups, Loss
from bowline.plugins.gpu_sharing.recovery import (
    Abandon,
    Await,
    Reserve,
    leftovers,
    next_step,
    recovery_status,
    running_users,
)
from bowline.plugins.gpu_sharing.reservation import (
    ELSEWHERE,
    RELEASE_RETRY,
    REQUEUE_DELAY,
    DeviceRequest,
    Held,
    Pending,
    Reservation,
    Unreleased,
    User,
    check_reservations,
    excess,
    no_room,
    reservation_name,
    unused_reservations,
)
from bowline.plugins.gpu_sharing.reservation_client import ReservationClient

log = logging.getLogger(__name__)

# How long a write of a check may take: pods that need a device wait for its result.
CALL_TIMEOUT_S = 2.0
# How often groups are looked for that stay idle or unreserved without an event; while shares are off.
PERIOD, PERIOD_OFF = timedelta(seconds=30), timedelta(minutes=10)
# The times of a wait are stored in whole seconds.
ROUNDING_S = 1.0


class GroupController:
    """Answers for all groups of the cluster while this process is the leader. Methods raise the client's errors."""

    def __init__(
        self, handle: Handle, client: ReservationClient, groups: Groups, in_flight_timeout: timedelta
    ) -> None:
        self._client = client
        self._in_flight_s, self._quiet_at = in_flight_timeout.total_seconds(), 0.0
        self._groups = groups
        self._clock = handle.clock
        self._enqueue = handle.worker("groups", self._reconcile)
        # Rolled back requests, which may still list a group for some time.
        self._withdrawn: dict[ObjectKey, ObjectUID] = {}
        help_text = "Reservation pods, by whether the agent reported the device."
        reservations = handle.metrics.gauge("reservations", help_text, state=("held", "waiting"))
        unreserved = handle.metrics.gauge("groups_unreserved", "Groups that pods use and no reservation pod holds.")
        unreserved.set_function(lambda: groups.unreserved)
        reservations.labels("held").set_function(lambda: sum(bool(entry.device) for entry in groups.reservations))
        reservations.labels("waiting").set_function(lambda: sum(not entry.device for entry in groups.reservations))

    # --- called by requests ---

    async def claim(self, claim: DeviceRequest) -> Held | Pending | Status:
        """Return the group's device, what to wait for, or why the request gets none."""
        self._withdrawn.pop(claim.request, None)
        former = self._groups[claim.group].claims.get(claim.request, claim).answer
        # What an earlier attempt was given is no device that a pod is about to be bound with.
        group = self._groups.add_claim(claim)
        async with self._pass(group):
            answer = await self._answer(group, replace(claim, answer=former))
            if claim.request in group.claims and isinstance(answer, Held | Pending):  # not released meanwhile
                group.claims[claim.request] = replace(claim, answer=answer)
        if group.loss is not None or any(entry.is_blocker for entry in group.reservations):
            self._enqueue(ObjectKey(claim.request.namespace, group.name))
        return answer

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of what is remembered, by kind."""
        return {**self._groups.sizes, "withdrawn": len(self._withdrawn)}

    async def release(self, request: ObjectKey, uid: ObjectUID, groups: Iterable[str]) -> None:
        """Drop the request's claims; returns after one try to delete the unused reservations of the groups.

        What cannot be deleted now is deleted later: it delays only pods that need its device.
        """
        self._withdrawn[request] = uid
        self._groups.release_claims(request)
        await asyncio.gather(*(self._release(group, request.namespace) for group in groups))

    async def release_unused(self, groups: Iterable[str], node: str, tenant: str) -> list[Unreleased]:
        """Try to delete the unused reservations of the groups without claims, for a pod of ``tenant``, a namespace.
        Returns those on the node that cannot be deleted now.
        """
        unclaimed = [name for name in groups if not self._groups[name].claims]
        failures = await asyncio.gather(*(self._release(name, tenant) for name in unclaimed))
        return [failure for failure in failures if failure is not None and failure.reservation.node == node]

    def forget(self, request: ObjectKey) -> None:
        """Drop the state of a request that does not exist any more, or whose pod is bound: its label keeps the device
        from now on.
        """
        self._withdrawn.pop(request, None)
        self._groups.release_claims(request)

    # --- called by watches ---

    def enqueue(self, groups: Iterable[str], tenant: str = "") -> None:
        """Enqueue the groups for a check, because of a pod of ``tenant``. On a standby no effect."""
        for name in groups:
            self._enqueue(ObjectKey(tenant, name))

    async def run(self) -> None:
        """Look for groups that the watches show idle or unreserved for a while, until cancelled. They are synced.

        The last user of such a group may have come and gone while a watch was silent. An unfinished request that
        lists it may have ended without having asked for it, such as one whose pod was deleted.
        """
        # While shares are off, no watch shows the users of another binder's groups: all of these look idle.
        period = PERIOD if self._client.sharing.enabled else PERIOD_OFF
        # Until then a Binding of a former leader may take effect: its pod is labelled, and no claim shows it.
        self._quiet_at = self._clock.monotonic() + self._in_flight_s
        try:
            self.enqueue(self._groups.to_look_at)
            while True:
                before = self._groups.to_look_at
                await asyncio.sleep(period.total_seconds())
                self.enqueue(before & self._groups.to_look_at)
        finally:
            self._groups.end_term()
            self._withdrawn.clear()

    # --- one pass over one group ---

    async def _reconcile(self, key: ObjectKey) -> timedelta | None:
        """Check the group; returns the delay until its next check without an event."""
        group = self._groups.keep(key.name)
        failure = await self._check(group)
        pauses = [failure.retry_after] if failure is not None and failure.retry_after is not None else []
        if group.loss is not None:
            pauses.append(timedelta(seconds=group.loss.until - self._clock.monotonic()))
        if group.claims and not group.users:
            pauses.append(RELEASE_RETRY)  # a claim keeps an idle device, perhaps of a pod that has ended already
        return max(min(pauses), REQUEUE_DELAY) if pauses else None

    @property
    def _cutoff(self) -> float:
        """Since when a reservation is silent that has not reported its device: no request waits longer for it."""
        return self._clock.monotonic() - self._client.sharing.agent_timeout.total_seconds() + ROUNDING_S

    async def _release(self, name: str, tenant: str) -> Unreleased | None:
        """Check the group; what fails is repeated without the caller, whose request may be gone by then."""
        group = self._groups.keep(name)
        try:
            failure = await self._check(group, is_release=True)
        except BaseException:
            self._enqueue(ObjectKey(tenant, name))
            raise
        if group.loss is not None or (failure is not None and failure.retry_after is not None):
            self._enqueue(ObjectKey(tenant, name))
        return failure

    async def _check(self, group: Group, *, is_release: bool = False) -> Unreleased | None:
        """Recover a lost device, and delete what serves nobody; returns a reservation that cannot be deleted now."""
        async with self._pass(group, is_check=True):
            await self._recover(group)
            return await self._delete_unused(group, is_release=is_release)

    @asynccontextmanager
    async def _pass(self, group: Group, *, is_check: bool = False) -> AsyncIterator[None]:
        """Wait for the passes before this one, and read the group's reservation pods.

        A claim needs no read of its own if the pass before it has read since the claim was made.
        """
        group.passes += 1
        asked_at = self._clock.monotonic()
        try:
            async with turn_at(group.lock):
                if is_check or group.read_at <= asked_at:
                    read_at = self._clock.monotonic()
                    group.read(await self._client.reservations(group.name), read_at)
                yield
        finally:
            group.passes -= 1
            self._groups.drop_empty(group)

    async def _answer(self, group: Group, claim: DeviceRequest) -> Held | Pending | Status:
        verdict = check_reservations(claim, group.reservations)
        lost = await self._recover(group, claim.node if verdict is None else "")
        if lost is not None:
            return lost
        if verdict is None:
            verdict = await self._create(group, claim)
        return await self._give(group, claim, verdict) if isinstance(verdict, Held) else verdict

    async def _give(self, group: Group, claim: DeviceRequest, held: Held) -> Held | Status:
        """Return the device, or who leaves no room on it.

        The reservation is changed for it, unless the request's last attempt has done so. Whoever has found the device
        unused, such as a former leader that was stopped, deletes the version that it has read: a delete that arrives
        from here on is refused.
        """
        other = self._other_holder(group, claim, held.device)
        if other:
            return no_room(
                f"device {held.device} of group {claim.group} on node {claim.node} is that of group {other}: "
                "the node offers it several times, as with time slicing; choose that group, or another node"
            )
        full = await self._excess(group, claim)
        if full is not None:
            return full
        if isinstance(claim.answer, Held) and held.uid == claim.answer.uid:
            return held
        reservation = next(entry for entry in group.reservations if entry.uid == held.uid)
        joined = await self._client.touch(reservation)
        if joined is None or not joined.holds or joined.group != group.name:
            return Transient((f"pod {reservation.key} has just been deleted, or has another device or group",))
        group.reservations[group.reservations.index(reservation)] = joined
        return held

    def _other_holder(self, group: Group, claim: DeviceRequest, device: str) -> str:
        """Return the group, other than those of the request, that has the device already; empty if none.

        If pods have it of neither group, it is the first by name.
        """
        own = {group.name, *self._groups.claimed_by(claim.request)}
        others = sorted(self._groups.holders(claim.node, device) - own)
        if self._is_given(group.name):
            return ""
        return next((name for name in others if self._is_given(name) or name < group.name), "")

    def _is_given(self, name: str) -> bool:
        """Return whether a pod has the group's device, or is about to."""
        group = self._groups[name]
        return bool(group.users or group.joined)

    async def _excess(self, group: Group, claim: DeviceRequest) -> Status | None:
        """Return why the device has no room for the claim, beside the pods on the node and those about to be bound.

        The latter are read first: one that is bound meanwhile is listed.
        """
        memory, limit = claim.node_facts.device_memory, self._client.args.overcommit
        portions = {other.pod: other.portion for other in group.joined if other.node == claim.node}
        late: list[User] = []
        if self._clock.monotonic() < self._quiet_at:
            late = [user for user in await self._client.users(claim.group, "", memory) if not user.has_ended]
        users = await self._client.users(claim.group, claim.node, memory)
        portions |= {user.key: user.portion for user in users if not user.has_ended}
        full = excess(claim, portions, limit)
        waiting = excess(claim, {user.key: user.portion for user in late} | portions, limit)
        if full is not None or waiting is None:
            return full
        refs = [user.ref for user in late]
        why = f"a former leader may still bind pods with the device: {waiting.message}"
        return Status.wait(why, *refs, retry_after=RELEASE_RETRY, timeout=UNLIMITED, suggestion=ELSEWHERE)

    async def _create(self, group: Group, claim: DeviceRequest) -> Held | Pending | Status:
        """Create a reservation pod; return what it, or the one that others have created meanwhile, answers."""
        if any(other.node == claim.node for other in group.joined):
            why = f"a pod that was given its device, which group {group.name} has lost, is being bound"
            return Transient((why,))
        scaling = await self._client.scaling_up()
        if scaling is not None:
            return scaling
        reservation = await self._reserve(group, claim, reservation_name(claim.node, claim.group))
        if isinstance(reservation, str):
            return Status.retry(reservation, suggestion=ELSEWHERE)
        verdict = check_reservations(replace(claim, answer=None), [reservation])
        return verdict or Transient((f"reservation pod {reservation.key} has ended meanwhile",))

    async def _reserve(self, group: Group, claim: DeviceRequest, name: str) -> Reservation | str:
        """Create a reservation pod in place of those of its name, which hold nothing; or return why not."""
        for former in [reservation for reservation in group.reservations if reservation.key.name == name]:
            await self._remove(group, former)
        reservation = await self._client.create(claim, name)
        if isinstance(reservation, Reservation):
            about = {"group": group.name, "node": claim.node, "reservation": str(reservation.key)}
            log.info("reserving a device", extra=about)
            group.reservations.append(reservation)
            group.unreported[reservation.uid] = self._clock.monotonic()
        return reservation

    async def _remove(self, group: Group, target: Reservation) -> bool:
        """Delete the pod as read, and from the group. False if it has changed: a later pass deletes it."""
        if not await self._client.remove(target):
            return False
        group.reservations.remove(target)
        return True

    async def _delete_unused(self, group: Group, *, is_release: bool) -> Unreleased | None:
        """Delete what serves nobody and what is unused; returns one that cannot be deleted now."""
        deleting = (entry for entry in group.reservations if entry.deleting and not entry.has_ended)
        failure = next((Unreleased(entry, entry.deletion) for entry in deleting), None)
        # Those of another binder are its own while shares are off.
        own = [entry for entry in group.reservations if self._client.sharing.enabled or not entry.is_foreign]
        useless = [entry for entry in leftovers(group, self._cutoff) if entry in own]
        # Whoever else waits for one: a request that waits ends by its own limit, and releases it. Pods may use its
        # device: somebody may have removed its report.
        silent = [entry for entry in own if is_release and group.is_silent(entry, self._cutoff)]
        # A release is answered from live reads, so watch lag does not matter.
        idle = unused_reservations(own, (), group.claimed_nodes) if is_release or not group.users else []
        nodes = {reservation.node for reservation in (*silent, *idle)}
        # Requests are read before users: of one that is completed meanwhile the pod is bound, and listed.
        requested_nodes = await self._client.requested_nodes(group.name, nodes, set(self._withdrawn.values()))
        users = [user for node in nodes for user in await self._client.users(group.name, node or None)]
        await self._adopt(users)
        # Claims may have been made meanwhile; from here to each delete only deletes are awaited.
        for reservation in dict.fromkeys((*useless, *silent, *idle)):
            joined_nodes = {claim.node for claim in group.joined}
            awaited_nodes = joined_nodes if reservation in silent else group.claimed_nodes | requested_nodes
            if reservation not in useless and not unused_reservations([reservation], users, awaited_nodes):
                continue
            about = {"group": group.name, "node": reservation.node, "reservation": str(reservation.key)}
            try:
                async with asyncio.timeout(CALL_TIMEOUT_S):
                    is_removed = await self._remove(group, reservation)
            except (KubeError, TimeoutError) as error:
                why = str(error) or f"the delete has not ended within {CALL_TIMEOUT_S:g} s"
                failure = Unreleased(reservation, why, RELEASE_RETRY)
                log.warning("a device cannot be released", extra={**about, "error": why})
                continue
            if is_removed:
                log.info("device released", extra=about)
            else:
                # It exists still: a pod that needs its device waits for its deletion.
                failure = Unreleased(reservation, "it has changed meanwhile", REQUEUE_DELAY)
        return failure

    async def _adopt(self, users: Iterable[User]) -> None:
        """Add the labels for watch and schedulers to pods of another binder."""
        for user in users:
            try:
                if user.missing_labels:
                    async with asyncio.timeout(CALL_TIMEOUT_S):
                        await self._client.patch_metadata(user.key, {"uid": user.uid, "labels": user.missing_labels})
            except (KubeError, TimeoutError) as error:
                # For example denied by a policy: the next check retries.
                why = str(error) or f"the patch has not ended within {CALL_TIMEOUT_S:g} s"
                log.warning("a sharing pod cannot be labelled", extra={"pod": str(user.key), "error": why})

    # --- a device that pods use and nothing reserves ---

    async def _recover(self, group: Group, node: str = "") -> Status | None:
        """Recover the group's device if pods use it and no reservation holds it; returns the wait of a request for
        it, None if there is nothing to recover.

        ``node``: where a new device would be reserved otherwise, so that pods are read which no watch shows.
        """
        is_held = group.is_held
        is_read = group.loss is not None if is_held else bool(node or group.users)
        on_node = node if node and not group.users else None
        users = running_users(await self._client.users(group.name, on_node)) if is_read else []
        if is_held or not users:
            if group.loss is not None and is_held:
                log.info("a shared device is reserved again", extra={"group": group.name})
                note = f"the GPU of group {group.name} is reserved again"
                await self._client.report(users, names.EVENT_RESERVED, note, is_warning=False)
            group.loss = None
            return None
        if group.loss is None:
            group.loss = Loss()
            log.warning("a shared device is no longer reserved", extra={"group": group.name, "node": users[0].node})
            note = f"the GPU of group {group.name} is no longer reserved: the kubelet may assign it to another pod"
            await self._client.report(users, names.EVENT_UNRESERVED, note)
        if group.is_searched or self._clock.monotonic() >= group.loss.until:
            group.loss = await self._search(group, group.loss, users)
        return recovery_status(group, users)

    async def _search(self, group: Group, loss: Loss, users: Sequence[User]) -> Loss:
        """Execute one step of the search for the lost device; returns what is known of it then."""
        now, timeout_s = self._clock.monotonic(), self._client.sharing.agent_timeout.total_seconds()
        claim = await self._client.lost_device(group.name, users)
        step = next_step(claim, group, loss.last_uid, self._cutoff)
        match step:
            case Await(awaited):
                return replace(loss, until=group.unreported[awaited.uid] + timeout_s, last_uid=awaited.uid)
            case Reserve(name):
                reservation = await self._reserve(group, claim, name)
                if isinstance(reservation, Reservation):
                    return replace(loss, until=now + timeout_s, last_uid=reservation.uid)
                why, pause = reservation, RELEASE_RETRY
            case Abandon():
                why, pause = step.why, step.pause
            case _:
                assert_never(step)
        if why != loss.why:
            note = f"the GPU of group {group.name} cannot be reserved again now: {why}; restart this pod"
            await self._client.report(users, names.EVENT_UNRESERVED, note)
        log.warning("a lost device cannot be reserved", extra={"group": group.name, "why": why})
        return Loss(why, now + pause.total_seconds())
