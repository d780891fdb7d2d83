"""Completes, fails and rolls back requests: one code path each, whatever caused it.

The order of the writes is guaranteed. Success: post_bind, finalizer, Succeeded, event; a request that reports
Succeeded has no work left. Failure: rollback, finalizer, then Failed and RolledBack in one patch. **Failed means
released**: no finalizer of Bowline remains on a Failed request, so its scheduler can delete it and create another one
of the same name in the same cycle. While the rollback is incomplete, the request stays Pending with that reason. A
crash between removing the finalizer and writing Failed costs one more attempt, because the failure is not stored yet.
The pod's PodBound condition follows the status and never delays it (``pod_conditions``). Decision 115.
"""

import logging
from collections.abc import Callable
from datetime import datetime, timedelta

from reconciler.binding.pod_conditions import PodConditions
from reconciler.binding.state import RequestState
from reconciler.binding.writer import Writer
from reconciler.decide.decide import Fail, is_rollback_incomplete
from reconciler.decide.in_flight import UnacknowledgedBindings, existed_before, in_flight_for
from reconciler.decide.observed import Absent, PodView, pod_view
from reconciler.decide.outcome import Event, PodBound, bound_condition, failure_event, success_event
from reconciler.decide.preparation import preparation
from reconciler.decide.status import blocked_block, failed_block, rolled_back_block, succeeded_block, unreleased_block
from reconciler.decide.transient import QUIET_FAILURES
from reconciler.observe.metrics import ReconcilerMetrics
from shared.api import names
from shared.api.bindrequest import BindRequest, Phase
from shared.api.meta import ObjectRef
from shared.framework.binding.context import BindContext
from shared.framework.binding.runner import Runner
from shared.framework.status import Code, Reason, Status
from shared.kube.events import EventNote
from shared.runtime.clock import Clock

log = logging.getLogger(__name__)

ROLLBACK_PAUSE = timedelta(seconds=1)
# No PodBound=False for these: the pod runs, or belongs to another scheduler.
_NO_CONDITION = (Reason.BOUND_ELSEWHERE, Reason.NOT_OURS)


def has_finalizer(request: BindRequest) -> bool:
    """Return whether the request has Bowline's finalizer, that is, whether side effects may exist."""
    return names.FINALIZER in request.finalizers


class Completer:
    """Completes, fails and rolls back. Methods raise the client's errors; repeating one after a crash is safe."""

    def __init__(
        self,
        runner: Runner,
        writer: Writer,
        record: Callable[[EventNote], None],
        metrics: ReconcilerMetrics,
        in_flight: timedelta,
        bound_events: bool = True,
    ) -> None:
        self.conditions = PodConditions(writer)
        self._runner = runner
        self.writer = writer
        self._record = record
        self.metrics = metrics
        self._in_flight = in_flight
        self._clock: Clock = writer.clock
        # Start of this process's current leadership term, by the monotonic clock.
        self._leading_since = 0.0
        # The latest creationTimestamp of the requests that existed then.
        self._newest_before: datetime | None = None
        self._bound_events = bound_events

    def begin(self, since: float, newest: datetime | None) -> None:
        """Begin a leadership term at ``since``. ``newest``: see ``existed_before``."""
        self._leading_since = since
        self._newest_before = newest
        self.conditions.start()

    async def finish(self, c: BindContext, memory: RequestState, started: datetime | None) -> None:
        """Complete a request whose pod is on its node: post_bind, finalizer, Succeeded, then the event."""
        request = c.request
        await self._runner.run_post_bind(c)
        if has_finalizer(request):
            dropped = await self.writer.drop_finalizer(request)
            if dropped is None:
                await self._close(request, memory)
                return
            memory.wrote(request, dropped)
            request = dropped
        now = self._clock.now()
        prepared = preparation(request, memory.prepared, not memory.rolled_back, c.pod)
        block = succeeded_block(request, prepared, started, now)
        memory.wrote(request, await self.writer.status(request, block))
        if prepared.warning:
            self.tell(request, Event("Warning", "NotPrepared", prepared.warning), on_pod=True)
        elif self._bound_events:
            self.tell(request, success_event(request), on_pod=True)
        condition = bound_condition(request, c.pod) if c.pod is not None else None
        if c.pod is not None and condition is not None:
            self.conditions.report(c.pod, condition)
        self.metrics.finished.labels(reason=Phase.SUCCEEDED.value).inc()
        if request.created is not None:
            self.metrics.bind_seconds.observe(max(0.0, (now - request.created).total_seconds()))
        c.log.info("pod is bound", extra={"node": request.selected_node})
        await self._close(request, memory)

    async def fail(self, c: BindContext, memory: RequestState, fail: Fail) -> timedelta | None:
        """Terminal failure: roll back, drop the finalizer, then report Failed.

        Returns when to continue an incomplete rollback; None if nothing is left to do.
        """
        request = c.request
        pause = self._binding_in_flight(c, memory)
        if pause is not None:
            return pause
        if has_finalizer(request) or memory.effects is not None or is_rollback_incomplete(request):
            done = await self._runner.run_rollback(c, Status.fatal(fail.message, fail.reason))
            if done.code is not Code.OK:
                pause = _may_pass(memory, done)
                return pause if pause is not None else await self._report_incomplete(c, memory, done, fail)
            memory.effects = None
            memory.rolled_back = True
            memory.prepared = False
        dropped = await self.writer.drop_finalizer(request)
        if dropped is None:
            await self._close(request, memory)
            return None
        if dropped is not request:
            memory.wrote(request, dropped)
            request = dropped
        is_asked = self._is_asked_pod(c)
        pod_node = (c.pod or {}).get("spec", {}).get("nodeName", "") if is_asked else ""
        block = failed_block(request, fail, memory.rolled_back, pod_node, self._clock.now())
        memory.wrote(request, await self.writer.status(request, block))
        self.tell(request, failure_event(fail), on_pod=is_asked)
        if fail.reason not in _NO_CONDITION:
            self.report_failure(c, PodBound("False", fail.reason.value, fail.message))
        self.metrics.finished.labels(reason=fail.reason.value).inc()
        c.log.warning("request has failed", extra={"reason": fail.reason.value, "why": fail.message})
        await self._close(request, memory)
        return None

    async def undo(self, c: BindContext, memory: RequestState, why: Status) -> timedelta | None:
        """Roll back the side effects of a deleted request. Returns when to continue; None if nothing is left."""
        pause = self._binding_in_flight(c, memory)
        if pause is not None:
            return pause
        done = await self._runner.run_rollback(c, why)
        if done.code is Code.OK:
            memory.effects = None
            return None
        c.log.warning("rollback is delayed", extra={"why": done.message})
        return _pause(done)

    async def roll_back(self, c: BindContext, memory: RequestState, why: Status) -> timedelta | None:
        """Roll back an abandoned request. Returns when to continue; None if nothing is left."""
        pause = self._binding_in_flight(c, memory)
        if pause is not None:
            return pause
        request = c.request
        done = await self._runner.run_rollback(c, why)
        if done.code is not Code.OK:
            pause = _may_pass(memory, done)
            return pause if pause is not None else await self._report_incomplete(c, memory, done, None)
        if request.phase is Phase.FAILED:
            # Failed by an older release or another controller: this release drops the finalizer before it writes
            # Failed.
            written = await self.writer.status(request, rolled_back_block(request, self._clock.now()))
            memory.wrote(request, written)
            request = written
        await self.drop_finalizer(request, memory)
        return None

    async def drop_finalizer(self, request: BindRequest, memory: RequestState) -> None:
        """Drop the finalizer and close the request: nothing is left to roll back, or nothing may be rolled back."""
        dropped = await self.writer.drop_finalizer(request)
        if dropped is not None:
            memory.wrote(request, dropped)
        await self._close(request, memory)

    async def report_blocked(self, request: BindRequest, memory: RequestState, why: str) -> None:
        """Report in status and event what keeps the request from completing, other than a failed attempt."""
        if why != memory.blocked:
            memory.blocked = why
            self.tell(request, Event("Warning", "BindingRetry", f"not complete yet: {why}"), on_pod=True)
        if request.phase is Phase.PENDING:
            memory.wrote(request, await self.writer.status(request, blocked_block(request, why, self._clock.now())))

    def report_failure(self, c: BindContext, condition: PodBound) -> None:
        """Report the failure in the PodBound condition, if the pod is the one that the request names."""
        if c.pod is not None and self._is_asked_pod(c) and not _says_already(c, condition):
            self.conditions.report(c.pod, condition)

    def tell(self, request: BindRequest, event: Event, on_pod: bool) -> None:
        """Queue an event, about the pod if ``on_pod``, else about the request."""
        about = ObjectRef(names.API_VERSION, names.KIND, request.key, request.uid)
        pod = ObjectRef("v1", "Pod", request.pod_key, request.pod_uid)
        self._record(
            EventNote(pod if on_pod else about, event.reason, event.note, event.type, about if on_pod else None)
        )

    async def _report_incomplete(
        self, c: BindContext, memory: RequestState, done: Status, fail: Fail | None
    ) -> timedelta | None:
        """Report that the rollback is incomplete; returns when to continue it. ``fail``: the failure it precedes."""
        request = c.request
        block = unreleased_block(request, fail, done, self._clock.now())
        memory.wrote(request, await self.writer.status(request, block))
        # After a restart the status already reports it: the previous process has sent the event.
        if not memory.rollback_told and not is_rollback_incomplete(request):
            note = f"rollback is not complete: {done.message}"
            self.tell(request, Event("Warning", "RollbackFailed", note), on_pod=self._is_asked_pod(c))
        memory.rollback_told = True
        c.log.warning("rollback is not complete", extra={"why": done.message})
        return _pause(done)

    async def _close(self, request: BindRequest, memory: RequestState) -> None:
        memory.close()
        await self._runner.forget(request.key, request.uid)

    def may_be_a_predecessors(self, request: BindRequest) -> bool:
        """Return whether a previous leader may have started on the request: it was created before this term."""
        return existed_before(request, self._newest_before)

    def _binding_in_flight(self, c: BindContext, memory: RequestState) -> timedelta | None:
        """Return how long an unacknowledged Binding may still take effect; None if none can.

        Until then nothing is rolled back and no failure is reported as final.
        """
        now = self._clock.monotonic()
        # A previous leader's Binding matters only if the rollback would remove something.
        is_inherited = has_finalizer(c.request) and self.may_be_a_predecessors(c.request)
        posts = UnacknowledgedBindings(
            timedelta(seconds=now - memory.unknown_binding) if memory.unknown_binding is not None else None,
            timedelta(seconds=now - self._leading_since) if is_inherited else None,
            self._in_flight,
        )
        left = in_flight_for(c.request, pod_view(c.pod) if c.pod is not None else Absent.GONE, posts)
        return left if left > timedelta() else None

    @staticmethod
    def _is_asked_pod(c: BindContext) -> bool:
        view: PodView | None = pod_view(c.pod) if c.pod is not None else None
        return view is not None and view.uid == c.request.pod_uid


def _pause(done: Status) -> timedelta:
    return max(ROLLBACK_PAUSE, done.retry_after or ROLLBACK_PAUSE)


def _may_pass(memory: RequestState, done: Status) -> timedelta | None:
    """Return the retry delay of a rollback while its transient failures are below QUIET_FAILURES, else None.

    A single lost reply is not reported. A lasting failure is: the scheduler waits for the result.
    """
    if done.code is not Code.TRANSIENT or memory.rollback_troubles >= QUIET_FAILURES:
        return None
    memory.rollback_troubles += 1
    return _pause(done)


def _says_already(c: BindContext, condition: PodBound) -> bool:
    return any(
        stored.get("type") == names.CONDITION_POD_BOUND
        and stored.get("status") == condition.status
        and stored.get("reason") == condition.reason
        and stored.get("message") == condition.message
        for stored in ((c.pod or {}).get("status") or {}).get("conditions") or ()
    )
