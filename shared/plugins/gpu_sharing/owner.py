"""The one owner of every group: creates reservation pods, and deletes them when nobody uses their device.

Whoever wants a group's device or gives it up asks here; one pass at a time answers for the group, from live reads:

- a *claim* is remembered from the moment it is made until its pod is bound, so that no cleanup comes between the
  answer and the label that makes the pod a user; it is answered with the device, or with what there is to wait for;
- a *release* is answered when the group has been looked at and what nobody needs is gone;
- an *event* (a sharing pod has ended or lost its label) has the group examined once the watch shows no other user;
  pods are read live only before a delete.

A pass waits for nothing but the API server's answers. An agent that has yet to tell its device is not waited for
here: the claim is answered with Pending, and its request waits without a worker.

What is remembered may be lost: after a restart unfinished requests and labels say who needs a device.
"""

import asyncio
import logging
import zlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import assert_never

from shared.api.meta import ObjectKey, ObjectRef, ObjectUID
from shared.framework.binding.handle import Handle
from shared.kube.accounting import api_time
from shared.kube.errors import KubeError
from shared.plugins.gpu_sharing.idle import Idle
from shared.plugins.gpu_sharing.metrics import SharingMetrics
from shared.plugins.gpu_sharing.recovery import PAUSE, Abandon, Await, Reserve, next_step, running
from shared.plugins.gpu_sharing.reservation import (
    Answer,
    Claim,
    Create,
    Held,
    Lost,
    Orphaned,
    Pending,
    Reservation,
    User,
    judge_claim,
    overdue,
    silent,
    unused,
)
from shared.plugins.gpu_sharing.site import Site

log = logging.getLogger(__name__)

# Groups are independent: one slow answer of the API server holds up only those of its queue.
QUEUES = 8
# A reservation that changed while it was being deleted is looked at again.
AGAIN = timedelta(milliseconds=200)
# What a reservation is recovered for: its pods, not a request.
_NO_REQUEST = ObjectKey("", "")


@dataclass(frozen=True, slots=True)
class Loss:
    """A device that pods use and nothing holds. ``until``: when it is tried again, by the monotonic clock."""

    why: str = ""  # it could not be reserved again; empty during the first search
    until: float = 0.0
    tried: ObjectUID | None = None  # the reservation created last in this search

    def pause(self, now: float) -> timedelta:
        """Return how long until the next step; steps of a search follow each other."""
        return max(timedelta(seconds=self.until - now), AGAIN)


@dataclass(frozen=True, slots=True)
class _Asked:
    """One question to a group's pass: for the claim, or for a look at what nobody needs (None)."""

    claim: Claim | None
    answer: "asyncio.Future[Answer | None]"


class GroupOwner:
    """Answers for all groups of the cluster while this process leads."""

    def __init__(
        self, handle: Handle, site: Site, agent_timeout: timedelta, metrics: SharingMetrics, idle: Idle
    ) -> None:
        self._site = site
        self._idle = idle
        self._metrics = metrics
        self._clock = handle.clock
        self._timeout = agent_timeout
        self._queues = [handle.worker(f"groups-{number}", self._reconcile) for number in range(QUEUES)]
        self._claims: dict[str, dict[ObjectKey, Claim]] = {}
        self._claimed_by: dict[ObjectKey, set[str]] = {}  # the groups of a request's claims
        self._asked: dict[str, list[_Asked]] = {}
        # Requests that were given up: their objects may say for a while that they want a group.
        self._withdrawn: dict[ObjectKey, ObjectUID] = {}
        # Since when a silent reservation has been seen: by no wall clock, which may differ from others or be set.
        self._seen_since: dict[str, dict[ObjectUID, float]] = {}
        # Why silent reservations were given up, for those who waited for them.
        self._gave_up: dict[str, dict[ObjectUID, str]] = {}
        # Devices that pods use and nothing holds, by group.
        self._losses: dict[str, Loss] = {}

    # --- asked by requests ---

    async def claim(self, claims: Sequence[Claim]) -> list[Answer]:
        """Return the answer to each claim. Raises what the API server's answers raise."""
        for claim in claims:
            self._claims.setdefault(claim.group, {})[claim.request] = claim
            self._claimed_by.setdefault(claim.request, set()).add(claim.group)
        answers = await asyncio.gather(*(self._ask(claim.group, claim) for claim in claims))
        return [answer for answer in answers if answer is not None]

    def settle(self, request: ObjectKey) -> None:
        """The request's pod is bound: its label speaks for it from now on."""
        for group in self._claimed_by.pop(request, ()):
            claims = self._claims[group]
            del claims[request]
            if not claims:
                del self._claims[group]

    async def release(self, request: ObjectKey, uid: ObjectUID, groups: Iterable[str]) -> None:
        """Give the groups up, and return when what nobody else needs is gone."""
        self._withdrawn[request] = uid
        self.settle(request)
        await asyncio.gather(*(self._ask(group, None) for group in groups))

    async def vacate(self, groups: Iterable[str]) -> None:
        """Return when what nobody needs of the groups is gone. Those that are claimed are left alone."""
        await asyncio.gather(*(self._ask(group, None) for group in groups if group not in self._claims))

    def forget(self, request: ObjectKey) -> None:
        """Drop what is remembered of a request that has left the system."""
        self._withdrawn.pop(request, None)
        self.settle(request)

    # --- told by watches ---

    def look(self, groups: Iterable[str]) -> None:
        """Have the groups looked at: somebody may have stopped using them."""
        for group in groups:
            self._queues[zlib.crc32(group.encode()) % QUEUES](ObjectKey("", group))

    def clear(self) -> None:
        """Forget everything: this process no longer leads."""
        for questions in self._asked.values():
            for asked in questions:
                asked.answer.cancel()
        for memory in (
            self._claims,
            self._claimed_by,
            self._asked,
            self._withdrawn,
            self._seen_since,
            self._gave_up,
            self._losses,
        ):
            memory.clear()

    # --- one pass over one group ---

    async def _reconcile(self, key: ObjectKey) -> timedelta | None:
        group = key.name
        questions = self._asked.pop(group, [])
        try:
            seen = await self._site.reservations(group)
            await self._give_up(group, seen)
            is_released = any(asked.claim is None for asked in questions)
            lost = await self._recover(group, seen, [asked.claim for asked in questions if asked.claim], is_released)
            for asked in questions:
                # Who asked may be gone: the request was withdrawn, and nothing may be made for it.
                if asked.claim is not None and not asked.answer.done():
                    answer = lost if lost is not None else await self._answer(asked.claim, seen)
                    if not asked.answer.done():
                        asked.answer.set_result(answer)
            look = self._remember(group, seen)
            # A request that gives the group up, or comes to the node, gets an answer that no watch delays.
            again = (await self._clean(group, seen) if is_released or not self._idle.used(group) else None) or look
            loss = self._losses.get(group)
            if loss is not None and loss.tried is None:
                again = min(again or PAUSE, loss.pause(self._clock.monotonic()))
            for asked in questions:
                if not asked.answer.done():
                    asked.answer.set_result(None)
        except Exception as error:
            told = [asked for asked in questions if not asked.answer.done()]
            for asked in told:
                asked.answer.set_exception(error)
            if not told or not isinstance(error, KubeError):
                raise
            # Whoever asked comes again.
            return None
        finally:
            # Only where this process no longer leads.
            for asked in questions:
                asked.answer.cancel()
        return again

    async def _answer(self, claim: Claim, seen: list[Reservation]) -> Answer:
        verdict = judge_claim(claim, seen, self._gave_up.get(claim.group, {}))
        match verdict:
            case Held() | Pending():
                return verdict
            case Lost():
                if verdict.remove is not None and await self._site.remove(verdict.remove):
                    seen.remove(verdict.remove)
                    self._metrics.ended.inc()
                return verdict
            case Create():
                return await self._create(claim, verdict, seen)
            case _:
                assert_never(verdict)

    async def _create(self, claim: Claim, verdict: Create, seen: list[Reservation]) -> Answer:
        scaling = await self._site.scaling_up()
        if scaling is not None:
            return scaling
        for dead in verdict.instead_of:
            if await self._site.remove(dead):
                seen.remove(dead)
        made = await self._site.create(claim)
        if isinstance(made, str):
            return Lost(made)
        self._metrics.reserved.inc()
        log.info("device reserved", extra={"group": claim.group, "node": claim.node, "reservation": str(made.key)})
        seen.append(made)
        return Pending(made)

    async def _recover(
        self, group: str, seen: list[Reservation], claims: Sequence[Claim], is_released: bool
    ) -> Orphaned | None:
        """Get the group's device back if pods run on it and nothing holds it. None if there is nothing to recover.

        Removes blockers and adds a new reservation to ``seen``. ``is_released``: another pod comes to the node, which
        may have been given a device that the search blocks, so the search ends.
        """
        if any(one.holds for one in seen):
            await self._recovered(group, seen)
            return None
        if self._idle.used(group):
            users = running(await self._site.users(group))
        else:
            nodes = {claim.node for claim in claims if not any(one.lives and one.node == claim.node for one in seen)}
            users = running([user for node in sorted(nodes) for user in await self._site.users(group, node)])
        if not users:
            self._losses.pop(group, None)
            return None
        node = users[0].node
        loss = self._losses.get(group)
        if loss is None:
            loss = self._losses[group] = Loss()
            self._metrics.lost.inc()
            log.warning("a shared device is no longer reserved", extra={"group": group, "node": node})
            note = f"nothing reserves the GPU of group {group} any more: the kubelet may give it to another pod"
            await self._site.report(users, "SharedGPUUnreserved", note)
        is_blocking = any(one.lives and one.misplaced for one in seen)
        if loss.pause(self._clock.monotonic()) <= AGAIN or (is_released and is_blocking):
            await self._search(group, node, users, seen, is_released)
        waiting = [one for one in seen if one.lives and not one.device]
        refs = [ObjectRef("v1", "Pod", one.key, one.uid, one.version) for one in waiting]
        refs += [ObjectRef("v1", "Pod", user.key, user.uid, user.version) for user in users[:5]]
        pods = ", ".join(str(user.key) for user in users[:5])
        why = self._losses[group].why or "it is being reserved again"
        what = f"nothing reserves the device of group {group} on node {node}, used by pod {pods}"
        return Orphaned(f"{what}: {why}", tuple(refs))

    async def _recovered(self, group: str, seen: list[Reservation]) -> None:
        loss = self._losses.pop(group, None)
        await self._remove_all([one for one in seen if one.lives and one.misplaced], seen)
        if loss is not None:
            self._metrics.recovered.inc()
            log.info("a shared device is reserved again", extra={"group": group})
            users = running(await self._site.users(group))
            note = f"the GPU of group {group} is reserved again"
            await self._site.report(users, "SharedGPUReserved", note, is_warning=False)

    async def _search(
        self, group: str, node: str, users: Sequence[User], seen: list[Reservation], is_released: bool
    ) -> None:
        """Take one step towards the lost device."""
        loss, now = self._losses[group], self._clock.monotonic()
        evidence = await self._site.evidence(group, users)
        step = next_step(group, node, seen, evidence, loss.tried)
        blockers = tuple(one for one in seen if one.lives and one.misplaced)
        if is_released and blockers:
            step = Abandon("another pod comes to the node", blockers)
        match step:
            case Await():
                return
            case Reserve():
                await self._remove_all(step.remove, seen)
                wanted = Claim(_NO_REQUEST, ObjectUID(""), users[0].key, node, group, evidence.tolerations)
                made = await self._site.create(wanted, step.name, evidence.devices)
                if isinstance(made, str):
                    self._losses[group] = Loss(made, now + PAUSE.total_seconds())
                    return
                self._losses[group] = Loss(loss.why, loss.until, made.uid)
                if made.uid not in {one.uid for one in seen}:
                    seen.append(made)
                log.info("reserving a lost device", extra={"group": group, "reservation": str(made.key)})
            case Abandon():
                await self._remove_all(step.release, seen)
                if step.why != loss.why:
                    note = f"the GPU of group {group} cannot be reserved again now: {step.why}; restart this pod"
                    await self._site.report(users, "SharedGPUUnreserved", note)
                self._losses[group] = Loss(step.why, now + PAUSE.total_seconds())
                self._metrics.unrecovered.inc()
                log.warning("a lost device cannot be reserved", extra={"group": group, "why": step.why})
            case _:
                assert_never(step)

    async def _remove_all(self, gone: Sequence[Reservation], seen: list[Reservation]) -> None:
        for one in gone:
            if await self._site.remove(one):
                seen.remove(one)

    async def _give_up(self, group: str, seen: list[Reservation]) -> None:
        """Free the devices of agents that have been silent for too long. The deletion wakes those who waited."""
        reasons = overdue(seen, self._seen_since.get(group, {}), self._clock.monotonic(), self._timeout)
        for late in [one for one in seen if one.uid in reasons]:
            if await self._site.remove(late):
                seen.remove(late)
                self._gave_up.setdefault(group, {})[late.uid] = reasons[late.uid]
                self._metrics.silent.inc()
                log.warning("reservation given up", extra={"group": group, "why": reasons[late.uid]})

    def _remember(self, group: str, seen: Sequence[Reservation]) -> timedelta | None:
        """Keep since when reservations have been silent. Returns when the first will have been so too long."""
        now, before = self._clock.monotonic(), self._seen_since.pop(group, {})
        waiting = {one.uid: before.get(one.uid, now) for one in silent(seen)}
        if group not in self._claims:
            self._gave_up.pop(group, None)
        if not waiting:
            return None
        self._seen_since[group] = waiting
        return max(self._timeout - timedelta(seconds=now - min(waiting.values())), AGAIN)

    async def _clean(self, group: str, seen: Sequence[Reservation]) -> timedelta | None:
        """Delete the reservations that nobody needs. Returns when to look again if one of them has changed since."""
        idle = unused(seen, (), self._claimed(group), ())
        if not idle:
            return None
        nodes = {one.node for one in idle}
        users = [user for node in nodes for user in await self._site.users(group, node)]
        idle = unused(idle, users, self._claimed(group), ())
        if not idle:
            return None
        asking = await self._site.asking_nodes(group, nodes, set(self._withdrawn.values()))
        again = None
        # Claims may have come in meanwhile; from here to the delete of each nothing is awaited but deletes.
        for one in idle:
            if not unused([one], users, self._claimed(group), asking):
                continue
            if await self._site.remove(one):
                self._metrics.freed.inc()
                log.info("device given up", extra={"group": group, "node": one.node, "reservation": str(one.key)})
            else:
                again = AGAIN
        return again

    def _claimed(self, group: str) -> Collection[str]:
        return {claim.node for claim in self._claims.get(group, {}).values()}

    async def _ask(self, group: str, claim: Claim | None) -> Answer | None:
        question = _Asked(claim, asyncio.get_running_loop().create_future())
        self._asked.setdefault(group, []).append(question)
        self.look([group])
        # What the answer takes is the time of the owner's requests to the API server.
        with api_time():
            return await question.answer
