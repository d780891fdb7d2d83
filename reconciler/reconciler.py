"""Reconciles one request: read, decide, execute the decision.

Level-triggered: a reconcile starts from a key and the current state, never from an event's content. ``decide`` and
``outcome`` make the decisions; this module only executes them, in one ``match``, and returns when to process the key
again. A reconcile that fails because of the API server leaves no trace and costs the request nothing, unless the
failure proves to be the request's own (``decide.transient``).
"""

import logging
from dataclasses import replace
from typing import assert_never

from reconciler.binding.attempt import Attempts, Tools
from reconciler.binding.deferred import still_to_finish
from reconciler.binding.read import Snapshot, StateReader
from reconciler.binding.requeue import DONE, REQUEUE, Result, TransientFailures
from reconciler.binding.state import RequestState, RequestStates
from reconciler.binding.timing import Timing
from reconciler.binding.waits import decided_wait
from reconciler.decide.decide import (
    Attempt,
    Decision,
    DropFinalizer,
    Fail,
    Finish,
    Forget,
    Look,
    Pin,
    Requeue,
    Rollback,
    Wait,
    WaitCause,
    is_bound_as_asked,
)
from reconciler.decide.observed import Absent, Policy, Target, Times
from reconciler.decide.outcome import Outcome
from reconciler.informers import Listed
from shared.api.bindrequest import BindRequest
from shared.api.meta import ObjectKey
from shared.framework.status import Reason, Status
from shared.kube.errors import InfrastructureError, KubeError

log = logging.getLogger(__name__)


class Reconciler:
    """Reconciles requests. One instance per process; different keys are reconciled concurrently."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._runner = tools.runner
        self._ending = tools.ending
        self._clock = tools.clock
        policy = Policy(tools.settings.scheduler_names, tools.settings.binding.wait_timeout)
        self._lookout = StateReader(tools.client, tools.stores, tools.runner, policy, tools.clock)
        self._failures = TransientFailures(tools.observation.troubled, tools.client.availability, tools.clock)
        self.memories = RequestStates(tools.clock.monotonic)
        self._timing = Timing(self.memories, tools.clock, tools.stores.in_contact, tools.limits)
        self._attempts = Attempts(tools, self._lookout, self._failures, self._timing)
        # Keys whose cached request may be older than the previous leader's last writes.
        self._doubtful: set[ObjectKey] = set()

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of the in-memory state, by kind; entries are dropped with their requests."""
        return {
            "memories": len(self.memories),
            "states": self._runner.remembered,
            "sleepers": len(self._tools.sleepers),
            "toFinish": len(self._tools.afterwards),
            "podConditions": len(self._ending.conditions),
            "trouble": len(self._failures),
            "doubtful": len(self._doubtful),
        }

    async def reconcile(self, key: ObjectKey) -> Result:
        """Reconcile a key once and return when to process it again. Raises only on defects of Bowline itself."""
        held = self._failures.held(key)
        if held is not None:
            return held
        self._tools.sleepers.wake(key)
        try:
            again = await self._pass(key)
        except KubeError as error:
            return await self._failed(key, error)
        if not again.inconclusive and again is not REQUEUE:
            self._failures.over(key)
        return again

    def recovered(self) -> None:
        """The API server is available again after an outage: reset the transient failures."""
        self._failures.recovered()

    def note_change(self, key: ObjectKey) -> bool:
        """Handle a watch event: return whether to enqueue the key.

        A running attempt is cancelled if its request was withdrawn. It does nothing else.
        """
        memory = self.memories.get(key)
        if memory is None:
            return True
        if memory.running is not None and not memory.running.past_point:
            if not self._tools.stores.still_wanted(memory.running.request, memory.running.node_uid):
                memory.running.cancelled.set()
            return True
        if key in self._tools.afterwards:
            return False  # bound by this process, and queued with low priority
        # Events of the request's own completion: two follow every bind.
        return not (memory.done and self._shows(key, memory))

    def note_gone(self, key: ObjectKey, in_line: bool) -> bool:
        """Handle in the same way that a request has left the watch; it may still exist.

        ``in_line``: the key is queued already. Then the state is kept, because without it that reconcile would make a
        live read.
        """
        memory = self.memories.get(key)
        if memory is None:
            return True
        if memory.running is not None and not memory.running.past_point:
            memory.running.cancelled.set()
        if memory.done and not in_line:
            self.memories.drop(key)
        return not memory.done

    def _shows(self, key: ObjectKey, memory: RequestState) -> bool:
        """Return whether the cached request has the remembered UID, in whatever version."""
        stored = self._tools.stores.request(key)
        return stored is not None and stored.uid == memory.uid

    def begin(self, since: float, listed: Listed) -> None:
        """Begin a leadership term at ``since`` (monotonic). ``listed``: what the API server stored after that."""
        self._ending.begin(since, listed.newest)
        self._doubtful = set(listed.stale)

    def withdraw(self) -> None:
        """Withdraw every attempt: the term is over, and the next leader waits for the last POST's end."""
        for memory in self.memories.values():
            if memory.running is not None:
                memory.running.withdraw()

    async def end(self) -> None:
        """Drop all state: this process's next term starts from the API objects, as any other process would."""
        await self._ending.conditions.stop()
        for key, uid in self.memories.clear():
            await self._runner.forget(key, uid)
        self._tools.sleepers.clear()
        self._tools.afterwards.clear()
        self._failures.clear()
        self._doubtful.clear()

    # --- one reconcile ---

    async def _pass(self, key: ObjectKey) -> Result:
        known = self.memories.get(key)
        stored = self._tools.stores.request(key)
        if known is not None and stored is not None and stored.uid != known.uid:
            known = None  # re-created under the same name: the state belongs to the previous request
        if known is not None and known.done:
            if stored is None:
                # It has left the watch; no further event follows.
                self.memories.drop(key)
            return DONE
        bound = self._tools.afterwards.take(key)
        to_finish = still_to_finish(known, stored) if bound is not None else None
        if bound is not None and known is not None and to_finish is not None:
            return await self._attempts.finish_later(bound, to_finish, known)
        newest = known.newest(stored) if known is not None else stored
        ask_live = key in self._doubtful or (known is not None and known.ask_live)
        sight, decision = await self._lookout.see(key, newest, ask_live, self._times)
        self._doubtful.discard(key)
        request = sight.request if isinstance(sight.request, BindRequest) else None
        predecessor = self.memories.get(key)
        if predecessor is not None and (request is None or request.uid != predecessor.uid):
            # A request that moved to another shard keeps its side effects: its finalizer hands them over.
            left = sight.request is Absent.ELSEWHERE
            unfinished = await self._orphaned(key, predecessor, roll_back=not left)
            if unfinished is not None:
                return unfinished
        if request is None:
            return DONE
        memory = self.memories.of(request)
        memory.ask_live = False
        if Target.REQUEST in sight.live and stored is not None and stored.uid == request.uid:
            memory.saw(stored, request)
        return await self._carry_out(decision, sight, request, memory)

    async def _carry_out(
        self, decision: Decision, sight: Snapshot, request: BindRequest, memory: RequestState
    ) -> Result:
        self._tools.observation.decided(request, decision)
        match decision:
            case Forget():
                return await self._forget(sight, request, memory)
            case Finish():
                await self._ending.finish(self._attempts.context(sight, request), memory, None)
                return DONE
            case Fail():
                return await self._fail(sight, request, memory, decision)
            case Rollback():
                why = Status.fatal(decision.why, decision.reason)
                unfinished = await self._ending.roll_back(self._attempts.context(sight, request), memory, why)
                return DONE if unfinished is None else self._failures.unfinished(request.key, unfinished)
            case DropFinalizer():
                await self._ending.drop_finalizer(request, memory)
                return DONE
            case Pin():
                memory.attempting = True
                memory.wrote(request, await self._ending.writer.pin(request, decision.pod_uid))
                return REQUEUE
            case Wait():
                self._timing.begin_wait(request, memory, decision.cause.value)
                since = self._timing.waiting_since(memory)
                waiting = decided_wait(request, decision, since, self._clock.now())
                return await self._attempts.waits.wait(request, memory, waiting)
            case Requeue():
                if request.failed_attempts and not decision.why and memory.retry_at is None:
                    # From here on the monotonic clock counts.
                    self._timing.delay_retry(memory, decision.after)
                return Result(decision.after, inconclusive=True)
            case Attempt():
                return await self._attempts.attempt(sight, request, memory)
            case Look():
                raise AssertionError("ReadLive was executed before")
            case _:
                assert_never(decision)

    async def _fail(self, sight: Snapshot, request: BindRequest, memory: RequestState, fail: Fail) -> Result:
        if memory.effects is not None and Target.POD not in sight.live:
            # Another client has removed the finalizer: roll back the side effects nevertheless, but not under a
            # running pod.
            await self._lookout.look(sight, Target.POD)
            if is_bound_as_asked(request, sight.pod_view):
                await self._ending.finish(self._attempts.context(sight, request), memory, None)
                return DONE
        unfinished = await self._ending.fail(self._attempts.context(sight, request), memory, fail)
        return DONE if unfinished is None else self._failures.unfinished(request.key, unfinished)

    async def _forget(self, sight: Snapshot, request: BindRequest, memory: RequestState) -> Result:
        """Drop the state: nothing is left to do, unless another client has removed the finalizer too early."""
        if memory.effects is not None:
            unfinished = await self._undo_orphan(sight, memory.effects, memory)
            if unfinished is not None:
                return unfinished
        memory.close()
        await self._runner.forget(request.key, request.uid)
        if self._tools.stores.request(request.key) is None:
            self.memories.drop(request.key)  # no watch will report its deletion
        return DONE

    async def _orphaned(self, key: ObjectKey, memory: RequestState, *, roll_back: bool) -> Result | None:
        """Release a deleted, replaced or moved request. Returns when to continue; None if nothing is left."""
        if memory.effects is not None and roll_back:
            unfinished = await self._undo_orphan(Snapshot(key, memory.effects), memory.effects, memory)
            if unfinished is not None:
                return unfinished
        self.memories.drop(key)
        await self._runner.forget(key, memory.uid)
        return None

    async def _undo_orphan(self, sight: Snapshot, request: BindRequest, memory: RequestState) -> Result | None:
        sight.request = request
        await self._lookout.look(sight, Target.POD)
        if is_bound_as_asked(request, sight.pod_view):
            return None
        why = Status.fatal("the request was withdrawn without a rollback", Reason.SUPERSEDED)
        pause = await self._ending.undo(self._attempts.context(sight, request), memory, why)
        return None if pause is None else self._failures.unfinished(request.key, pause)

    def _times(self, request: BindRequest) -> Times:
        return self._timing.times(request, WaitCause.GATES.value)

    async def _failed(self, key: ObjectKey, error: KubeError) -> Result:
        """Requeue a key whose reconcile failed in a call; report the failure if it is the request's own."""
        why, memory = str(error), self.memories.get(key)
        retry_after = error.retry_after if isinstance(error, InfrastructureError) else None
        if memory is not None and not isinstance(error, InfrastructureError):
            # Another client wrote in between, or a policy denies the write: the next reconcile starts with a live
            # read.
            memory.ask_live = True
        if self._failures.note(key, retry_after).own and memory is not None and not memory.done:
            try:
                reported = await self._report(key, memory, why)
            except KubeError as unreported:
                log.debug("a failure is not reported", extra={"bindRequest": str(key), "error": str(unreported)})
            else:
                if reported is not None and reported.delay is not None:
                    return replace(reported, inconclusive=True)
        return self._failures.again(key, why, retry_after)

    async def _report(self, key: ObjectKey, memory: RequestState, why: str) -> Result | None:
        """Count a failed attempt if one was in progress; otherwise report only why the request is not complete."""
        attempting, memory.attempting = memory.attempting, False
        request = memory.newest(self._tools.stores.request(key))
        if request is None or request.uid != memory.uid or request.deleting:
            return None
        if attempting:
            outcome = Outcome(Status.retry(why), self._clock.now())
            sight = self._lookout.from_stores(key, request)
            return await self._attempts.ended(self._attempts.context(sight, request), sight, memory, outcome)
        await self._ending.report_blocked(request, memory, why)
        return None
