"""Drives one request: read, decide, execute one effect after another.

Level-triggered: a reconcile starts from a key and the current state, never from an event's content. ``decide``,
``step`` and ``outcome`` make the decisions; this module only executes them and returns when to process the key again.
A reconcile that fails because of the API server leaves no trace and costs the request nothing,
unless the failure proves to be the request's own (``decide.transient``).
"""

import logging
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TypeGuard, assert_never

from bowline.api.bindrequest import BindRequest, Phase
from bowline.api.meta import ObjectKey
from bowline.framework.binding.post import denied_status
from bowline.framework.plugin_status import Cancelled, Transient
from bowline.kube.errors import Forbidden, InfrastructureError, KubeError, NotStoredError
from bowline.runtime.workers import DONE, REQUEUE, ReconcileError, Result
from bowline_reconciler.binding.attempt import AttemptRunner, EndedAttempt
from bowline_reconciler.binding.effects import Effects, Work
from bowline_reconciler.binding.reads import Reads
from bowline_reconciler.binding.requeue import DeferredBind, Requeue
from bowline_reconciler.binding.state import RequestState, RequestStates
from bowline_reconciler.decide.actions import (
    Attempt,
    Complete,
    Fail,
    Forget,
    RequeueAfter,
    RetryAt,
    Rollback,
    SetOwner,
    Wait,
    sentence,
)
from bowline_reconciler.decide.report import Unfinished
from bowline_reconciler.decide.snapshot import Absent, Snapshot, is_bound_as_asked, is_finished
from bowline_reconciler.decide.step import Abandon, Close, OtherEffect, Reconsider
from bowline_reconciler.observe.tracker import Observation
from bowline_reconciler.request_cache import RequestCache

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reconciler:
    """Reconciles requests. One instance per process; different keys are reconciled concurrently."""

    requests: RequestCache
    reads: Reads
    states: RequestStates
    attempts: AttemptRunner
    effects: Effects
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
            if self.states.get(key) is None:
                self.requeue.discard_turn(key)
                self.observation.on_end(key)

    # --- one reconcile ---

    async def _reconcile(self, key: ObjectKey, deferred: DeferredBind | None) -> Result:
        """Identify the request, decide what is to be done with it, and do that."""
        latest, former = self.requests.get(key), self.states.get(key)
        is_past = latest is None or is_finished(latest)
        if is_past and former is None and not self.requests.is_stale(key):
            return DONE  # it has ended or left the watch, and this process has left nothing
        if former is None and latest is not None:
            former = self.states.ensure(latest)
        state = self.states.of(latest) if latest is not None else former
        if deferred is not None and state is not None and is_resumable(latest):
            self.observation.on_decision(latest, Complete())
            bound = self.effects.begin(Snapshot(latest), state, Complete(), deferred.context, deferred.started_at)
            return await self._drive(bound)
        answer = await self.reads.read(key, latest, state)
        if former is not None and (isinstance(answer, Absent) or not former.is_of(answer[0].request)):
            result = await self._end_former(key, former, None if isinstance(answer, Absent) else answer[0].request)
            if result is not None:
                return result
            self.states.drop(key)
        if isinstance(answer, Absent):
            return DONE
        snapshot, action = answer
        state = self.states.ensure(snapshot.request)
        if isinstance(action, Attempt | Fail | Rollback) and snapshot.request.pod_uid and snapshot.request.spec:
            state.begin(snapshot.request)
        self.observation.on_decision(snapshot.request, action)
        return await self._drive(self.effects.begin(snapshot, state, action))

    async def _drive(self, work: Work | Result) -> Result:
        """Execute one effect after another, until the request is closed or rests; returns when to continue."""
        while isinstance(work, Work):
            effect, work = await self.effects.run(work)
            work = await self._execute(effect, work)
        return work

    async def _execute(self, effect: OtherEffect, work: Work) -> Work | Result:
        snapshot, state, request = work.snapshot, work.state, work.snapshot.request
        match effect:
            case Attempt():
                return await self._attempt(work, effect.effects)
            case Wait():
                return await self.requeue.after_wait(request, state, effect, snapshot.named_pod)
            case RequeueAfter():
                is_pause = request.failed_attempts and not effect.why and state.attempt.retry_at is None
                return (
                    self.requeue.retry(state, effect.after) if is_pause else Result(effect.after, pending=effect.why)
                )
            case SetOwner():
                await self.attempts.set_owner(request, state, effect.pod_uid)
                return REQUEUE
            case Forget():
                return await self._forget(request, state)
            case Complete() | Fail() | Rollback():
                return self.effects.begin(snapshot, state, effect)
            case Reconsider():
                return await self._reconsider(work)
            case Close():
                return await self._close(work)
            case _:
                assert_never(effect)

    async def _reconsider(self, work: Work) -> Work | Result:
        """Decide again on a request whose pod is not on its node after the bind, or is gone."""
        state = work.state
        snapshot = await self.reads.with_live_pod(work.snapshot.request, state)
        state.attempt.end_bind()
        action = self.reads.decide_on(snapshot, state)
        if isinstance(action, Fail):
            return self.effects.begin(snapshot, state, action)
        self.requests.mark_stale((work.snapshot.request.key,))
        return REQUEUE

    async def _end_former(self, key: ObjectKey, former: RequestState, request: BindRequest | None) -> Result | None:
        """End the former request or decision; returns when to continue, or the end if its pod is bound.

        ``request``: as it is now. A decision that was changed after its execution is completed as it was executed.
        """
        executed = former.begun_request
        is_pending = request is not None and request.phase is Phase.PENDING and not request.deleting
        if is_pending and executed is not None and request is not None and executed.uid == request.uid:
            raw = {**request.raw, "spec": executed.raw["spec"]}
            as_executed = replace(request, raw=raw, spec=executed.spec, pod_uid=executed.pod_uid)
            snapshot = await self.reads.with_live_pod(as_executed)
            if is_bound_as_asked(as_executed, snapshot.pod_view):
                return await self._drive(self.effects.begin(snapshot, former, Complete()))
        return await self._abandon(key, former)

    async def _abandon(self, key: ObjectKey, state: RequestState) -> Result | None:
        """Undo what the request has left that no finalizer records; returns when to continue, None at the end."""
        leftover = state.leftover
        if leftover is not None:
            result = await self._drive(self.effects.begin(self.reads.from_cache(leftover, None), state, Abandon()))
            if result is not DONE:
                return result
        state.gang.leave()
        if state.wait.nominated is not None:
            await self.effects.withdraw_nomination(state.wait.nominated)
        await self.effects.drop(key, state)
        return None

    async def _forget(self, request: BindRequest, state: RequestState) -> Result:
        """Drop the state: nothing is left to do, unless another client has removed the finalizer too early."""
        pending = await self._abandon(request.key, state)
        if pending is not None:
            return pending
        self.states.drop(request.key)
        return DONE

    async def _close(self, work: Work) -> Result:
        request = work.snapshot.request
        if not isinstance(work.action, Abandon):
            await self.effects.drop(request.key, work.state)
            self.states.drop(request.key)
        return DONE

    # --- attempts ---

    async def _attempt(self, work: Work, effects: frozenset[str]) -> Work | Result:
        """Run an attempt and act on its outcome. If the previous outcome is not stored yet, only write that one."""
        snapshot, state = work.snapshot, work.state
        pending = state.attempt.pending_outcome
        if pending is not None and pending.failed_before == snapshot.request.failed_attempts:
            # The failure must be counted before the next attempt starts.
            return await self._follow_up(self.attempts.ended_attempt(snapshot, pending.outcome), state, is_new=False)
        ended = await self.attempts.run(snapshot, state, effects)
        if not ended.outcome.status.may_be_transient:
            state.failures.reset()
        return await self._conclude(ended, state)

    async def _conclude(self, ended: EndedAttempt, state: RequestState) -> Work | Result:
        """Act on an attempt's outcome, after deciding whether a transient failure counts as the request's own."""
        status = ended.outcome.status
        if status.may_be_transient:
            self.requeue.extend_streak(state, status.retry_after if isinstance(status, Transient) else None)
            status = state.failures.classify(status)
        ended = replace(ended, outcome=replace(ended.outcome, status=status))
        return await self._follow_up(ended, state, is_new=True)

    async def _follow_up(self, ended: EndedAttempt, state: RequestState, *, is_new: bool) -> Work | Result:
        """Return what follows from an attempt's outcome. ``is_new``: it was not observed before."""
        outcome, snapshot, request = ended.outcome, ended.snapshot, ended.snapshot.request
        action = self.reads.follow_up(request, outcome, state)
        if is_new:
            self.observation.attempt_ended(ended.context, outcome.status)
        match action:
            case Complete():
                deferred = self.requeue.defer(request.key, DeferredBind(ended.context, outcome.started_at))
                return deferred or self.effects.begin(snapshot, state, action, ended.context, outcome.started_at)
            case Fail():
                return self.effects.begin(snapshot, state, action)
            case RetryAt():
                return await self.requeue.after_attempt(request, state, outcome, action, snapshot.named_pod)
            case Wait():
                # If the wait had expired but its failure could not be written, and the plugin waits again, nothing
                # has failed.
                state.attempt.confirm()
                return await self.requeue.after_wait(request, state, action, snapshot.named_pod)
            case Transient():
                why = sentence(action.message, action.plugin)
                raise self._failure(request.key, state, why, action.retry_after)
            case Cancelled():
                self.requests.mark_stale((request.key,))
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
        if state is not None:
            if not isinstance(error, InfrastructureError):
                # Another client wrote in between, or a policy denies the write: the next reconcile starts with a live
                # read.
                self.requests.mark_stale((key,))
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
            ended = await self.attempts.interrupted_attempt(request, state, why)
            return await self._drive(await self._conclude(ended, state))
        if not counts:
            await self.effects.report_unfinished(request, state, Unfinished("Retrying", why), is_isolated=True)
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
