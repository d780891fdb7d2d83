"""Reconciles one request: read, decide, execute the decision.

Level-triggered: a reconcile starts from a key and the current state, never from an event's content. ``decide`` and
``outcome`` make the decisions; this module only executes them, in two ``match`` statements, and returns when to
process the key again. A reconcile that fails because of the API server leaves no trace and costs the request nothing,
unless the failure proves to be the request's own (``decide.transient``).
"""

import logging
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TypeGuard, assert_never

from bowline.api.bindrequest import BindRequest, Phase
from bowline.api.meta import ObjectKey
from bowline.framework.binding.post import denied_status
from bowline.kube.errors import Forbidden, InfrastructureError, KubeError, NotStoredError
from bowline.runtime.workers import DONE, REQUEUE, ReconcileError, Result
from bowline_reconciler.binding.attempt import AttemptRunner, EndedAttempt
from bowline_reconciler.binding.complete import Completer
from bowline_reconciler.binding.reads import Reads
from bowline_reconciler.binding.requeue import DeferredBind, Requeue
from bowline_reconciler.binding.state import RequestState, RequestStates
from bowline_reconciler.decide.actions import (
    Action,
    Attempt,
    Complete,
    DropFinalizer,
    Fail,
    Forget,
    RequeueAfter,
    RequeueNow,
    RetryAt,
    Rollback,
    SetOwner,
    TransientFailure,
    Wait,
)
from bowline_reconciler.decide.report import Unfinished
from bowline_reconciler.decide.snapshot import Absent, Snapshot, Target
from bowline_reconciler.observe.tracker import Observation

log = logging.getLogger(__name__)

# While the watch is behind a finished request that it does not show; a bookmark comes each minute.
WATCH_PAUSE = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Reconciler:
    """Reconciles requests. One instance per process; different keys are reconciled concurrently."""

    reads: Reads
    states: RequestStates
    attempts: AttemptRunner
    completer: Completer
    requeue: Requeue
    observation: Observation

    async def reconcile(self, key: ObjectKey) -> Result:
        """Reconcile a key once and return when to process it again.

        Raises ReconcileError if it is to be requeued with the queue's rate limit, and other errors only on defects of
        Bowline itself.
        """
        deferred = self.requeue.take(key)
        try:
            return await self._reconcile(key, deferred)
        except KubeError as error:
            return await self._on_error(key, error)
        finally:
            state = self.states.get(key)
            if state is None or state.is_finished:
                self.requeue.discard_turn(key)
                self.observation.on_end(key)

    # --- one reconcile ---

    async def _reconcile(self, key: ObjectKey, deferred: DeferredBind | None) -> Result:
        """Identify the request, decide what is to be done with it, and do that."""
        identity = self.reads.identify(key)
        latest, state = identity.latest, identity.state
        if state is not None and state.is_finished:
            return self._leave(key)
        if deferred is not None and state is not None and is_resumable(latest):
            self.observation.on_decision(latest, Complete())
            return await self.completer.complete(Snapshot(latest), state, deferred.context, deferred.started_at)
        answer, former = await self.reads.read(identity), identity.remembered
        if former is not None and (isinstance(answer, Absent) or not former.is_of(answer[0].request)):
            result = await self._release(key, former, None if isinstance(answer, Absent) else answer[0].request)
            if result is not None:
                return result
            if not isinstance(answer, Absent):
                self.states.drop(key)
        if isinstance(answer, Absent):
            self.states.end(identity)
            return self._leave(key)
        snapshot, action = answer
        state = self.states.observe(snapshot.request, identity.cached, is_live=Target.REQUEST in snapshot.live)
        if isinstance(action, Attempt | Fail | Rollback) and snapshot.request.pod_uid and snapshot.request.spec:
            state.begin(snapshot.request)
        self.observation.on_decision(snapshot.request, action)
        return await self._execute(action, snapshot, state)

    async def _release(self, key: ObjectKey, former: RequestState, request: BindRequest | None) -> Result | None:
        """Release the former request or decision; returns when to continue, or the end if its pod is bound."""
        result = await self.completer.complete_as_executed(request, former) if request is not None else None
        return result or await self.completer.release_request(key, former)

    async def _execute(self, action: Action, snapshot: Snapshot, state: RequestState) -> Result:
        request = snapshot.request
        match action:
            case Attempt():
                return await self._attempt(snapshot, state, action.effects)
            case Complete():
                return await self.completer.complete(snapshot, state)
            case Fail():
                return await self.completer.fail(snapshot, state, action)
            case Rollback():
                return await self.completer.roll_back(snapshot, state, action.why)
            case DropFinalizer():
                return await self.completer.drop_finalizer(request, state)
            case SetOwner():
                await self.attempts.set_owner(request, state, action.pod_uid)
                return REQUEUE
            case Wait():
                return await self.requeue.after_wait(request, state, action, snapshot.named_pod)
            case RequeueAfter():
                is_pause = request.failed_attempts and not action.why and state.attempt.retry_at is None
                return (
                    self.requeue.retry(state, action.after) if is_pause else Result(action.after, pending=action.why)
                )
            case Forget():
                return await self._forget(request, state)
            case _:
                assert_never(action)

    async def _forget(self, request: BindRequest, state: RequestState) -> Result:
        """Drop the state: nothing is left to do, unless another client has removed the finalizer too early."""
        pending = await self.completer.release_request(request.key, state)
        if pending is not None:
            return pending
        state.finish(request.resource_version)
        return self._leave(request.key)

    def _leave(self, key: ObjectKey) -> Result:
        """Drop the state of a finished request; not before the watch can show no older one of that name."""
        is_over = self.reads.is_cached(key) or self.states.leave(key, self.reads.position)
        return DONE if is_over else Result(WATCH_PAUSE)

    # --- attempts ---

    async def _attempt(self, snapshot: Snapshot, state: RequestState, effects: frozenset[str]) -> Result:
        """Run an attempt and act on its outcome. If the previous outcome is not stored yet, only write that one."""
        pending = state.attempt.pending_outcome
        if pending is not None and pending.failed_before == snapshot.request.failed_attempts:
            # The failure must be counted before the next attempt starts.
            return await self._follow_up(self.attempts.ended_attempt(snapshot, pending.outcome), state, is_new=False)
        ended = await self.attempts.run(snapshot, state, effects)
        if not ended.outcome.status.may_be_transient:
            state.failures.reset()
        return await self._conclude(ended, state)

    async def _conclude(self, ended: EndedAttempt, state: RequestState) -> Result:
        """Act on an attempt's outcome, after deciding whether a transient failure counts as the request's own."""
        status = ended.outcome.status
        if status.may_be_transient:
            self.requeue.extend_streak(state, status.retry_after)
            status = state.failures.classify(status)
        ended = replace(ended, outcome=replace(ended.outcome, status=status))
        return await self._follow_up(ended, state, is_new=True)

    async def _follow_up(self, ended: EndedAttempt, state: RequestState, *, is_new: bool) -> Result:
        """Execute what follows from an attempt's outcome. ``is_new``: it was not observed before."""
        outcome, snapshot, request = ended.outcome, ended.snapshot, ended.snapshot.request
        action = self.reads.follow_up(request, outcome, state)
        if is_new:
            self.observation.attempt_ended(ended.context, outcome.status)
        match action:
            case Complete():
                deferred = self.requeue.defer(request.key, DeferredBind(ended.context, outcome.started_at))
                return deferred or await self.completer.complete(snapshot, state, ended.context, outcome.started_at)
            case Fail():
                return await self.completer.fail(snapshot, state, action)
            case RetryAt():
                return await self.requeue.after_attempt(request, state, outcome, action, snapshot.named_pod)
            case Wait():
                # If the wait had expired but its failure could not be written, and the plugin waits again, nothing
                # has failed.
                state.attempt.confirm()
                return await self.requeue.after_wait(request, state, action, snapshot.named_pod)
            case TransientFailure():
                raise self._failure(request.key, state, action.why, action.after)
            case RequeueNow():
                state.overlay.invalidate()
                raise self._failure(request.key, state, "the attempt was withdrawn")
            case _:
                assert_never(action)

    # --- failures ---

    async def _on_error(self, key: ObjectKey, error: KubeError) -> Result:
        """Count a failed attempt if the failure of a call has ended one and is its own; else raise ReconcileError."""
        why, state = str(error), self.states.get(key)
        if isinstance(error, Forbidden):
            why = denied_status(error.message).message
        retry_after = error.retry_after if isinstance(error, InfrastructureError) else None
        if state is not None and not state.is_finished:
            if not isinstance(error, InfrastructureError):
                # Another client wrote in between, or a policy denies the write: the next reconcile starts with a live
                # read.
                state.overlay.invalidate()
            self.requeue.extend_streak(state, retry_after)
            is_not_stored = isinstance(error, NotStoredError)
            if state.failures.is_own or is_not_stored:
                try:
                    result = await self._count(key, state, why, counts=not is_not_stored)
                except KubeError as report_error:
                    log.debug("a failure is not reported", extra={"error": str(report_error)})
                else:
                    if result is not None:
                        return result
        raise self._failure(key, state, why, retry_after) from error

    async def _count(self, key: ObjectKey, state: RequestState, why: str, *, counts: bool) -> Result | None:
        """Count a failed attempt if one was in progress and ``counts``; else None.

        A write that a policy changes says nothing about the node: it never counts, and is reported at once.
        """
        was_attempting = state.attempt.finish()
        request = self.reads.latest(key, state)
        if request is None or request.deleting:
            return None
        if was_attempting and counts:
            return await self._conclude(await self.attempts.interrupted_attempt(request, state, why), state)
        if not counts:
            await self.completer.report_unfinished(request, state, Unfinished("Retrying", why), is_isolated=True)
        return None

    def _failure(
        self, key: ObjectKey, state: RequestState | None, why: str, retry_after: timedelta | None = None
    ) -> ReconcileError:
        """Return the error that requeues a request whose reconcile has failed."""
        self.observation.on_transient_failure(key, why, is_quiet=state is None or state.failures.is_quiet)
        return self.requeue.error(why, state, retry_after)


def is_resumable(latest: BindRequest | None) -> TypeGuard[BindRequest]:
    """Return whether a deferred completion can continue; if not, an ordinary reconcile must decide."""
    return latest is not None and not latest.deleting and latest.phase is Phase.PENDING
