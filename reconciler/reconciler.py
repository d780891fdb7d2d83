"""Reconciles one request: read, decide, execute the decision.

Level-triggered: a reconcile starts from a key and the current state, never from an event's content. ``decide`` and
``outcome`` make the decisions; this module only executes them, in one ``match``, and returns when to process the key
again. A reconcile that fails because of the API server leaves no trace and costs the request nothing, unless the
failure proves to be the request's own (``decide.transient``).
"""

import logging
from dataclasses import dataclass, field, replace
from typing import assert_never

from reconciler.binding.attempt import AttemptRunner
from reconciler.binding.complete import Completer
from reconciler.binding.deferred import DeferredCompletions, is_resumable
from reconciler.binding.pod_conditions import PodConditions
from reconciler.binding.read import StateReader
from reconciler.binding.requeue import DONE, REQUEUE, Result, TransientFailures
from reconciler.binding.state import RequestState, RequestStates
from reconciler.binding.timing import Timing
from reconciler.binding.waits import WaitIndex, Waits
from reconciler.binding.writer import Writer
from reconciler.decide.decide import (
    Action,
    Attempt,
    Complete,
    DropFinalizer,
    Fail,
    Forget,
    RequeueAfter,
    Rollback,
    SetOwner,
    Wait,
)
from reconciler.decide.observed import Absent, Snapshot, Target
from reconciler.informers import Informers, Listed
from reconciler.observe.tracker import Observation
from shared.api.bindrequest import BindRequest
from shared.api.meta import ObjectKey
from shared.framework.binding.runner import Runner
from shared.framework.status import Status
from shared.kube.errors import InfrastructureError, KubeError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciler:
    """Reconciles requests. One instance per process; different keys are reconciled concurrently."""

    informers: Informers
    states: RequestStates
    reader: StateReader
    attempts: AttemptRunner
    completer: Completer
    conditions: PodConditions
    deferred: DeferredCompletions
    waits: Waits
    wait_index: WaitIndex
    timing: Timing
    writer: Writer
    runner: Runner
    failures: TransientFailures
    observation: Observation
    # Keys whose cached request may be older than the previous leader's last writes.
    _stale: set[ObjectKey] = field(default_factory=set)

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of the in-memory state, by kind; entries are dropped with their requests."""
        return {
            "requests": len(self.states),
            "pluginStates": self.runner.remembered,
            "waitIndex": len(self.wait_index),
            "deferredCompletions": len(self.deferred),
            "podConditions": len(self.conditions),
            "transientFailures": len(self.failures),
            "stale": len(self._stale),
        }

    async def reconcile(self, key: ObjectKey) -> Result:
        """Reconcile a key once and return when to process it again. Raises only on defects of Bowline itself."""
        self.wait_index.unregister(key)
        try:
            result = await self._reconcile(key)
        except KubeError as error:
            return await self._on_error(key, error)
        if not result.keeps_failures:
            self.failures.forget(key)
        return result

    def reset_failures(self) -> None:
        """The API server is available again after an outage: reset the transient failures."""
        self.failures.clear()

    # --- watch events ---

    def cancel_if_withdrawn(self, key: ObjectKey) -> None:
        """Cancel a running attempt before its point of no return if, by the caches, its request was withdrawn."""
        state = self.states.get(key)
        running = state.attempt.running if state is not None else None
        if running is None or running.past_point:
            return
        if not self.informers.still_wanted(running.request, running.node_uid):
            running.cancelled.set()

    def should_enqueue(self, key: ObjectKey) -> bool:
        """Return whether a change of the request or its pod can require a reconcile."""
        if key in self.deferred:
            return False  # bound by this process, and queued with low priority
        state, cached_request = self.states.get(key), self.informers.request(key)
        # Events of the request's own completion: two follow every bind.
        return state is None or not state.is_finished or cached_request is None or cached_request.uid != state.uid

    def on_delete(self, key: ObjectKey, is_queued: bool) -> bool:
        """Handle that a request has left the watch (it may still exist); return whether to enqueue it.

        The state of a finished request is dropped, unless the key is queued: without the state that reconcile would
        make a live read.
        """
        state = self.states.get(key)
        if state is None:
            return True
        running = state.attempt.running
        if running is not None and not running.past_point:
            running.cancelled.set()
        if state.is_finished and not is_queued:
            self.states.drop(key)
        return not state.is_finished

    # --- leadership ---

    def begin(self, since: float, listing: Listed) -> None:
        """Begin a leadership term at ``since`` (monotonic). ``listed``: what the API server stored after that."""
        self.completer.begin(since, listing.newest)
        self.conditions.start()
        self._stale.update(listing.stale)

    def withdraw(self) -> None:
        """Withdraw every attempt: the term is over, and the next leader waits for the last POST's end."""
        for state in self.states.values():
            if state.attempt.running is not None:
                state.attempt.running.withdraw()

    async def end(self) -> None:
        """Drop all state: this process's next term starts from the API objects, as any other process would."""
        await self.conditions.stop()
        for key, uid in self.states.clear():
            await self.runner.forget(key, uid)
        self.wait_index.clear()
        self.deferred.clear()
        self.failures.clear()
        self._stale.clear()

    # --- one reconcile ---

    async def _reconcile(self, key: ObjectKey) -> Result:
        cached_request, state = self.informers.request(key), self.states.get(key)
        # A state of another UID belongs to the previous request of that name.
        own_state = (
            state if state is not None and (cached_request is None or cached_request.uid == state.uid) else None
        )
        if own_state is not None and own_state.is_finished:
            if cached_request is None:
                # It has left the watch; no further event follows.
                self.states.drop(key)
            return DONE
        latest, needs_live_read = cached_request, False
        if own_state is not None:
            own_state.overlay.observe(cached_request)
            latest, needs_live_read = own_state.overlay.latest(cached_request), own_state.overlay.needs_live_read
        bound = self.deferred.pop(key)
        if bound is not None and own_state is not None and is_resumable(latest):
            self.observation.on_decision(latest, Complete())
            return await self.completer.complete(bound.context.with_request(latest), own_state, bound.started_at)
        snapshot, action = await self.reader.read(key, latest, needs_live_read or key in self._stale)
        self._stale.discard(key)
        request = snapshot.lookup if isinstance(snapshot.lookup, BindRequest) else None
        if state is not None and (request is None or request.uid != state.uid):
            # A request that moved to another shard keeps its side effects: its finalizer hands them over.
            pending = await self._release(key, state, roll_back=snapshot.lookup is not Absent.ELSEWHERE)
            if pending is not None:
                return pending
            self.states.drop(key)
        if request is None:
            return DONE
        state = self.states.ensure(request)
        state.overlay.confirm()
        if Target.REQUEST in snapshot.live and cached_request is not None and cached_request.uid == request.uid:
            state.overlay.replace(cached_request, request)
        self.observation.on_decision(request, action)
        return await self._execute(action, snapshot, state)

    async def _execute(self, action: Action, snapshot: Snapshot, state: RequestState) -> Result:
        request = snapshot.request
        match action:
            case Attempt():
                return await self.attempts.run(snapshot, state, has_side_effects=action.has_side_effects)
            case Complete():
                return await self.completer.complete(self.reader.context(snapshot), state)
            case Fail():
                return await self.completer.fail(snapshot, state, action)
            case Rollback():
                return await self.completer.roll_back(snapshot, state, Status.fatal(action.why, action.reason))
            case DropFinalizer():
                return await self.completer.drop_finalizer(request, state)
            case SetOwner():
                state.attempt.begin()
                await self.writer.set_owner(request, action.pod_uid)
                return REQUEUE
            case Wait():
                return await self.waits.wait(request, state, action)
            case RequeueAfter():
                if request.failed_attempts and not action.why and state.attempt.retry_at is None:
                    # From here on the monotonic clock counts.
                    self.timing.delay_retry(state, action.after)
                return Result(action.after, keeps_failures=True)
            case Forget():
                return await self._forget(request, state)
            case _:
                assert_never(action)

    async def _forget(self, request: BindRequest, state: RequestState) -> Result:
        """Drop the state: nothing is left to do, unless another client has removed the finalizer too early."""
        pending = await self._release(request.key, state, roll_back=True)
        if pending is not None:
            return pending
        state.finish()
        if self.informers.request(request.key) is None:
            self.states.drop(request.key)  # no watch will report its deletion
        return DONE

    async def _release(self, key: ObjectKey, state: RequestState, *, roll_back: bool) -> Result | None:
        """Roll back what a request has left that no finalizer holds; returns when to continue, None at the end."""
        side_effects = state.rollback.side_effects
        if side_effects is not None and roll_back:
            orphan = self.reader.from_cache(key, side_effects)
            pending = await self.completer.roll_back_orphan(orphan, state)
            if pending is not None:
                return pending
        await self.runner.forget(key, state.uid)
        return None

    # --- failures ---

    async def _on_error(self, key: ObjectKey, error: KubeError) -> Result:
        """Requeue a key whose reconcile failed in a call; report the failure if it is the request's own."""
        why, state = str(error), self.states.get(key)
        retry_after = error.retry_after if isinstance(error, InfrastructureError) else None
        if state is not None and not isinstance(error, InfrastructureError):
            # Another client wrote in between, or a policy denies the write: the next reconcile starts with a live
            # read.
            state.overlay.invalidate()
        if self.failures.note(key, retry_after).is_own and state is not None and not state.is_finished:
            try:
                result = await self._report(key, state, why)
            except KubeError as report_error:
                log.debug("a failure is not reported", extra={"bindRequest": str(key), "error": str(report_error)})
            else:
                if result is not None and result.requeue_after is not None:
                    return replace(result, keeps_failures=True)
        return self.failures.requeue(key, why, retry_after)

    async def _report(self, key: ObjectKey, state: RequestState, why: str) -> Result | None:
        """Count a failed attempt if one was in progress; otherwise report only why the request is not complete."""
        was_attempting = state.attempt.end()
        request = state.overlay.latest(self.informers.request(key))
        if request is None or request.uid != state.uid or request.deleting:
            return None
        if was_attempting:
            return await self.attempts.interrupt(self.reader.from_cache(key, request), state, why)
        await self.completer.report_blocked(request, state, why)
        return None
