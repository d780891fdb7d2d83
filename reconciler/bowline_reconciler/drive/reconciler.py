"""Reconciles one key: which request it is now, what is decided on it, and the end of a former one of its name.

Level-triggered: a reconcile starts from a key and the current state, never from an event's content. ``decide`` and
``step`` make the decisions; ``driver`` executes them. A reconcile that fails because of the API server leaves no
trace and costs the request nothing, unless the failure proves to be the request's own (``decide.transient``).
"""

import logging
from dataclasses import dataclass, replace
from datetime import timedelta

from bowline.api.bindrequest import BindRequest, Phase
from bowline.api.meta import ObjectKey
from bowline.framework.binding.post import denied_status
from bowline.framework.interface.status import Retriable
from bowline.kube.accounting import noting_calls
from bowline.kube.errors import Forbidden, InfrastructureError, KubeError, NotStoredError
from bowline.runtime.clock import Clock
from bowline.runtime.logging import log_scope
from bowline.runtime.workers import DONE, REQUEUE, ReconcileError, Result
from bowline_reconciler.decide.actions import Attempt, Complete, Fail, Rollback
from bowline_reconciler.decide.report import Unfinished
from bowline_reconciler.decide.snapshot import Absent, Snapshot, is_bound_as_asked, is_finished
from bowline_reconciler.decide.step import Conclude
from bowline_reconciler.decide.transient import of_failed_call
from bowline_reconciler.drive.driver import Driver
from bowline_reconciler.drive.reads import Reads
from bowline_reconciler.drive.requeue import Requeue
from bowline_reconciler.drive.state import Awaiting, Deferred, RequestState, RequestStates, TakenUp
from bowline_reconciler.observe import Observation
from bowline_reconciler.watch.request_cache import RequestCache

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reconciler:
    """Reconciles requests. One instance per process; different keys are reconciled concurrently."""

    requests: RequestCache
    reads: Reads
    states: RequestStates
    driver: Driver
    requeue: Requeue
    observation: Observation
    clock: Clock

    async def reconcile(self, key: ObjectKey) -> Result:
        """Reconcile a key once and return when to process it again.

        Until one has a result, the request is unfinished. Raises ReconcileError if it is to be requeued with the
        queue's rate limit, and other errors only on defects of Bowline itself.
        """
        latest, is_stale = self.requests.get(key), self.requests.is_stale(key)
        is_past = latest is None or is_finished(latest)
        if is_past and not is_stale and self.states.get(key) is None:
            return DONE  # it has ended or left the watch, and this process has left nothing
        work = self.states.take_up(key, latest, self.clock.now())
        progress = work.progress
        if isinstance(work.stage, Awaiting):
            self.requeue.index.unregister(key, work.stage.objects)
        with log_scope(bindRequest=str(key)), noting_calls(progress.calls):
            try:
                try:
                    result = await self._reconcile(key, latest, work, is_stale=is_stale)
                except KubeError as error:
                    result = await self._on_error(key, error)
            except Exception as error:
                progress.answer = Unfinished("Retrying", _answer(error))
                raise
            finally:
                progress.since = None
                state = self.states.get(key)
                if state is None:
                    self.requeue.report_turns.discard(key, key.namespace)
        if result.pending:
            until = self.clock.now() + (result.requeue_after or timedelta())
            progress.answer = Unfinished("Retrying", result.pending, until=until)
        elif state is not None and state.stage is progress:
            state.stage = None
        return result

    async def _reconcile(
        self, key: ObjectKey, latest: BindRequest | None, work: TakenUp, *, is_stale: bool
    ) -> Result:
        """Identify the request, decide what is to be done with it, and do that."""
        former, state, progress, stage = work.former, work.state, work.progress, work.stage
        if isinstance(stage, Deferred) and state is not None and latest is not None and is_pending(latest):
            progress.decision, progress.attempt = Complete.__name__, latest.attempt_id
            self.observation.on_decision(latest, Complete())
            return await self.driver.drive(Snapshot(latest), state, Complete(), deferred=stage)
        answer = await self.reads.read(key, None if is_stale else latest, state)
        request = None if isinstance(answer, Absent) else answer[0].request
        is_same = request is latest and former is state
        if former is not None and (request is None or not (is_same or former.is_of(request))):
            result = await self._end_former(key, former, request)
            if result is None:
                self.states.drop(key)
                result = DONE if request is None else REQUEUE  # what was read may have changed meanwhile
            return result
        if isinstance(answer, Absent):
            return DONE
        snapshot, action = answer
        if not is_same or state is None:
            state = self.states.ensure(snapshot.request)
            state.stage = progress
        if isinstance(action, Attempt | Fail | Rollback) and snapshot.request.pod_uid and snapshot.request.spec:
            state.begun_request = snapshot.request
        progress.decision, progress.attempt = type(action).__name__, snapshot.request.attempt_id
        self.observation.on_decision(snapshot.request, action)
        return await self.driver.drive(snapshot, state, action)

    async def _end_former(self, key: ObjectKey, former: RequestState, request: BindRequest | None) -> Result | None:
        """End the former request or decision; returns when to continue, or the end if its pod is bound.

        ``request``: as it is now. A decision that was changed after its execution is completed as it was executed.
        """
        executed = former.begun_request
        if request is not None and is_pending(request) and executed is not None and executed.uid == request.uid:
            raw = {**request.raw, "spec": executed.raw["spec"]}
            as_executed = replace(request, raw=raw, spec=executed.spec, pod_uid=executed.pod_uid)
            snapshot = await self.reads.with_live_pod(as_executed)
            if is_bound_as_asked(as_executed, snapshot.pod):
                return await self.driver.drive(snapshot, former, Complete())
        return await self.driver.abandon(key, former)

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
            request, is_altered = self.requests.get(key), isinstance(error, NotStoredError)
            is_same = request is not None and request.uid == state.uid
            failures, was_attempting = state.failures, state.attempt.is_open
            status = of_failed_call(why, retry_after, failures, was_attempting=was_attempting, is_altered=is_altered)
            if isinstance(status, Retriable) and request is not None and is_same and is_pending(request):
                try:
                    return await self.driver.drive(self.reads.from_cache(request, state), state, Conclude(status))
                except KubeError as report_error:
                    log.debug("a failure is not reported", extra={"error": str(report_error)})
        raise self.requeue.failure(key, state, why, retry_after) from error


def is_pending(request: BindRequest) -> bool:
    """Return whether the request is to be bound: neither ended nor deleted."""
    return request.phase is Phase.PENDING and not request.deleting


def _answer(error: Exception) -> str:
    if isinstance(error, ReconcileError):
        return str(error)
    return f"a defect of Bowline, {type(error).__name__}: {error}; the reconciler's log has the rest"
