"""Drives one request: read, decide, execute one effect after another.

Level-triggered: a reconcile starts from a key and the current state, never from an event's content. ``decide``,
``step`` and ``outcome`` make the decisions; this module drives them and returns when to process the key again.
A reconcile that fails because of the API server leaves no trace and costs the request nothing,
unless the failure proves to be the request's own (``decide.transient``).
"""

import logging
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TypeGuard, assert_never

from bowline.api.bindrequest import BindRequest, Phase
from bowline.api.meta import ObjectKey, uid_of
from bowline.framework.binding.context import BindContext
from bowline.framework.binding.post import denied_status
from bowline.framework.plugin_status import Cancelled, Transient
from bowline.kube.errors import Forbidden, InfrastructureError, KubeError, NotStoredError
from bowline.runtime.workers import DONE, REQUEUE, ReconcileError, Result
from bowline_reconciler.binding.effects import Effects, Work
from bowline_reconciler.binding.reads import Reads
from bowline_reconciler.binding.requeue import Requeue
from bowline_reconciler.binding.state import RequestState, RequestStates
from bowline_reconciler.decide.actions import (
    Action,
    Attempt,
    Complete,
    Fail,
    Forget,
    OutcomeAction,
    RequeueAfter,
    RetryAt,
    Rollback,
    SetOwner,
    Wait,
    sentence,
)
from bowline_reconciler.decide.snapshot import Absent, Outcome, Snapshot, Target, is_bound_as_asked, is_finished
from bowline_reconciler.decide.step import Abandon, AttemptFacts, CallFailed, Conclude, Facts, Following, Last
from bowline_reconciler.decide.transient import NO_FAILURES, classify
from bowline_reconciler.observe.tracker import Observation
from bowline_reconciler.request_cache import RequestCache

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reconciler:
    """Reconciles requests. One instance per process; different keys are reconciled concurrently."""

    requests: RequestCache
    reads: Reads
    states: RequestStates
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

    async def _reconcile(self, key: ObjectKey, deferred: Work | None) -> Result:
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
            bound = self._begin(Snapshot(latest), state, Complete(), deferred.context, deferred.started_at)
            return await self._drive(bound)
        answer = await self.reads.read(key, latest, state)
        if former is not None and (isinstance(answer, Absent) or not former.is_of(answer[0].request)):
            result = await self._end_former(key, former, None if isinstance(answer, Absent) else answer[0].request)
            if result is None:
                self.states.drop(key)
                result = DONE if isinstance(answer, Absent) else REQUEUE  # what was read may have changed meanwhile
            return result
        if isinstance(answer, Absent):
            return DONE
        snapshot, action = answer
        if snapshot.request is not latest or state is None:
            state = self.states.ensure(snapshot.request)
        if isinstance(action, Attempt | Fail | Rollback) and snapshot.request.pod_uid and snapshot.request.spec:
            state.begun_request = snapshot.request
        self.observation.on_decision(snapshot.request, action)
        return await self._drive(self._begin(snapshot, state, action))

    def _begin(
        self,
        snapshot: Snapshot,
        state: RequestState,
        action: Action | OutcomeAction | CallFailed | Abandon,
        context: BindContext | None = None,
        started_at: datetime | None = None,
        *,
        may_defer: bool = False,
    ) -> Work:
        """Begin to execute an action, before any await.

        A failure that has begun is remembered, and no other pod of the gang relies on this one.
        """
        if isinstance(action, Attempt):
            return self._begin_attempt(snapshot, state, action)
        is_undoing, is_pod_live = isinstance(action, Fail | Rollback | Abandon), Target.POD in snapshot.live
        if is_undoing:
            state.gang.leave()
        if isinstance(action, Fail):
            state.rollback.ending = action
        facts = Facts(
            snapshot.request,
            is_bound=is_pod_live and is_bound_as_asked(snapshot.request, snapshot.pod_view),
            is_pod_live=is_pod_live,
            has_side_effects=state.rollback.side_effects is not None,
            has_late_writes=is_undoing and state.attempt.may_have_late_writes,
            is_inherited=is_undoing and self.reads.may_predate_term(snapshot.request),
            may_defer=may_defer,
        )
        return Work(snapshot, state, action, facts, context, started_at)

    def _begin_attempt(self, snapshot: Snapshot, state: RequestState, action: Attempt) -> Work:
        request, attempt, now = snapshot.request, state.attempt, self.effects.clock.now()
        pending = attempt.pending_outcome
        if pending is not None and attempt.failed_before == request.failed_attempts:
            facts = AttemptFacts(request, uncounted=pending.status)
            return Work(snapshot, state, action, facts, started_at=pending.started_at)
        node = None if isinstance(snapshot.node, Absent) or Target.NODE in snapshot.live else snapshot.node
        running = attempt.begin(request, uid_of(node) if node is not None else None)
        if snapshot.live and not self.reads.still_wanted(running):
            attempt.withdraw()  # it has changed during the live read
        is_known = state.rollback.side_effects is not None or not request.has_finalizer
        facts = AttemptFacts(
            request,
            action.effects,
            is_inherited=not is_known and self.reads.may_predate_term(request),
            is_withdrawn=running.cancelled.is_set(),
            has_lost_reply=attempt.unacknowledged_at is not None,
        )
        # What was read live was so before the attempt.
        return Work(replace(snapshot, live=frozenset()), state, action, facts, started_at=now)

    async def _drive(self, work: Work | Result) -> Result:
        """Execute one effect after another, until the request is closed or rests; returns when to continue."""
        while isinstance(work, Work):
            try:
                effect = await self.effects.run(work)
            except BaseException:
                work.state.attempt.stop()
                raise
            work = await self._execute(effect, work)
        return work

    async def _execute(self, effect: Following, work: Work) -> Work | Result:
        snapshot, state, request = work.snapshot, work.state, work.snapshot.request
        match effect:
            case Conclude():
                return await self._conclude(effect, work)
            case Complete() | Attempt():
                return self._begin(snapshot, state, effect)
            case Wait():
                return await self.requeue.after_wait(request, state, effect, snapshot.named_pod)
            case RetryAt():
                return await self.requeue.after_attempt(request, state, effect, snapshot.named_pod)
            case RequeueAfter():
                is_pause = request.failed_attempts and not effect.why and state.attempt.retry_at is None
                return (
                    self.requeue.retry(state, effect.after) if is_pause else Result(effect.after, pending=effect.why)
                )
            case Transient():
                raise self._failure(request.key, state, sentence(effect.message, effect.plugin), effect.retry_after)
            case Cancelled():
                self.requests.mark_stale((request.key,))
                raise self._failure(request.key, state, "the attempt was withdrawn")
            case SetOwner():
                await self.effects.set_owner(request, state, effect.pod_uid)
                return REQUEUE
            case Forget():
                return await self._forget(request, state)
            case Last.DEFER:
                return self.requeue.defer(work)
            case Last.RECONSIDER:
                return await self._reconsider(work)
            case Last.CLOSE:
                return await self._close(work)
            case _:
                assert_never(effect)

    async def _reconsider(self, work: Work) -> Work | Result:
        """Decide again on a request whose pod is not on its node after the bind, or is gone."""
        state = work.state
        snapshot = await self.reads.with_live_pod(work.snapshot.request, state)
        state.attempt.awaited_bind = None
        action = self.reads.decide_on(snapshot, state)
        if isinstance(action, Fail):
            return self._begin(snapshot, state, action)
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
                return await self._drive(self._begin(snapshot, former, Complete()))
        return await self._abandon(key, former)

    async def _abandon(self, key: ObjectKey, state: RequestState) -> Result | None:
        """Undo what the request has left that no finalizer records; returns when to continue, None at the end."""
        leftover = state.leftover
        if leftover is not None:
            result = await self._drive(self._begin(self.reads.from_cache(leftover, None), state, Abandon()))
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

    async def _conclude(self, effect: Conclude, work: Work) -> Work:
        """Begin what follows from an attempt's result, after deciding whether a transient failure counts."""
        snapshot, state, status = work.snapshot, work.state, effect.status
        state.attempt.finish()
        if isinstance(work.action, CallFailed):
            snapshot = await self.reads.with_pod(snapshot)
        context = work.context or self.reads.context(snapshot)
        if effect.is_new:
            if status.may_be_transient:
                self.requeue.extend_streak(state, status.retry_after if isinstance(status, Transient) else None)
                status = classify(status, state.failures)
            elif isinstance(work.action, Attempt):
                state.failures = NO_FAILURES
            self.observation.attempt_ended(context, status)
        outcome = Outcome(status, work.started_at or self.effects.clock.now())
        action = self.reads.follow_up(snapshot.request, outcome, state)
        may_defer = self.requeue.may_defer
        return self._begin(snapshot, state, action, context, outcome.started_at, may_defer=may_defer)

    # --- failures ---

    async def _on_error(self, key: ObjectKey, error: KubeError) -> Result:
        """Go on from a failed call, which may have ended an attempt; else raise ReconcileError."""
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
            request, is_altered = self.reads.latest(key, state), isinstance(error, NotStoredError)
            if request is not None:
                call = CallFailed(why, retry_after, state.failures.is_own, is_altered, state.attempt.is_open)
                try:
                    return await self._drive(self._begin(self.reads.from_cache(request, state), state, call))
                except KubeError as report_error:
                    log.debug("a failure is not reported", extra={"error": str(report_error)})
        raise self._failure(key, state, why, retry_after) from error

    def _failure(
        self, key: ObjectKey, state: RequestState | None, why: str, retry_after: timedelta | None = None
    ) -> ReconcileError:
        """Return the error that requeues a request whose reconcile has failed."""
        self.observation.on_transient_failure(key, why, is_quiet=state is None or state.failures.is_quiet)
        return self.requeue.error(why, state, retry_after)


def is_resumable(latest: BindRequest | None) -> TypeGuard[BindRequest]:
    """Return whether a deferred completion can continue; if not, an ordinary reconcile must decide."""
    return latest is not None and not latest.deleting and latest.phase is Phase.PENDING
