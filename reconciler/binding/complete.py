"""Completes, fails and rolls back requests: one code path each, whatever caused it.

The order of the writes is guaranteed. Success: post_bind, finalizer, Succeeded, event; a request that reports
Succeeded has no work left. Failure: rollback, finalizer, then Failed and RolledBack in one patch. **Failed means
released**: no finalizer of Bowline remains on a Failed request, so its scheduler can delete it and create another one
of the same name in the same cycle. While the rollback is incomplete, the request stays Pending with that reason. A
crash between removing the finalizer and writing Failed costs one more attempt, because the failure is not stored yet.
The pod's PodBound condition follows the status and never delays it (``pod_conditions``). Decision 115.
"""

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta

from reconciler.binding.pod_conditions import PodConditions
from reconciler.binding.read import StateReader
from reconciler.binding.requeue import DONE, Result, TransientFailures
from reconciler.binding.state import RequestState
from reconciler.binding.writer import Writer
from reconciler.decide.decide import Fail
from reconciler.decide.in_flight import existed_before, in_flight_for
from reconciler.decide.observed import Snapshot, Target, has_finalizer, is_bound_as_asked, is_rollback_incomplete
from reconciler.decide.status import (
    Event,
    blocked_status,
    failure_report,
    preparation,
    released_status,
    rollback_incomplete_status,
    rolled_back_status,
    success_report,
)
from reconciler.decide.transient import QUIET_FAILURES
from reconciler.observe.metrics import ReconcilerMetrics
from shared.api import names
from shared.api.bindrequest import BindRequest, Phase
from shared.framework.binding.context import BindContext
from shared.framework.binding.runner import Runner
from shared.framework.config import Binding
from shared.framework.status import Code, Reason, Status
from shared.runtime.clock import Clock

log = logging.getLogger(__name__)

ROLLBACK_PAUSE = timedelta(seconds=1)


@dataclass(slots=True)
class Completer:
    """Completes, fails and rolls back. Methods raise the client's errors; repeating one after a crash is safe."""

    reader: StateReader
    runner: Runner
    writer: Writer
    conditions: PodConditions
    failures: TransientFailures
    metrics: ReconcilerMetrics
    limits: Binding
    clock: Clock
    _leading_since: float = 0.0  # start of this process's current leadership term, by the monotonic clock
    _newest_before: datetime | None = None  # the latest creationTimestamp of the requests that existed then

    def begin(self, since: float, newest: datetime | None) -> None:
        """Begin a leadership term at ``since``. ``newest``: see ``existed_before``."""
        self._leading_since = since
        self._newest_before = newest

    def may_predate_term(self, request: BindRequest) -> bool:
        """Return whether a previous leader may have started on the request: it was created before this term."""
        return existed_before(request, self._newest_before)

    async def complete(self, ctx: BindContext, state: RequestState, started_at: datetime | None = None) -> Result:
        """Complete a request whose pod is on its node: post_bind, finalizer, Succeeded, then the event.

        ``ctx``: the attempt's context, with the present request; ``started_at``: of the attempt, if there was one.
        """
        await self.runner.run_post_bind(ctx)
        request = await self.writer.drop_finalizer(ctx.request)
        if request is None:
            return await self._close(ctx.request, state)
        now = self.clock.now()
        preparation_status = preparation(request, state.rollback.is_prepared, not state.rollback.is_complete, ctx.pod)
        report = success_report(
            request, preparation_status, ctx.pod, started_at, now, bound_events=self.limits.bound_events
        )
        await self.writer.write_report(request, report, on_pod=ctx.pod is not None)
        if ctx.pod is not None and report.condition is not None:
            self.conditions.report(ctx.pod, report.condition)
        self.metrics.finished_requests.labels(reason=Phase.SUCCEEDED.value).inc()
        if request.created is not None:
            self.metrics.bind_seconds.observe(max(0.0, (now - request.created).total_seconds()))
        ctx.log.info("pod is bound", extra={"node": request.selected_node})
        return await self._close(request, state)

    async def fail(self, snapshot: Snapshot, state: RequestState, fail: Fail) -> Result:
        """Terminal failure: roll back, drop the finalizer, then report Failed. A bound pod's request is completed."""
        request = snapshot.request
        has_effects = has_finalizer(request) or state.rollback.side_effects is not None
        may_have_effects = has_effects or is_rollback_incomplete(request)
        may_be_in_flight = state.attempt.unacknowledged_at is not None or self.may_predate_term(request)
        if (may_have_effects or may_be_in_flight) and request.pod_key.name:
            # Failed is final, and what a running pod needs must not be rolled back: read the pod live.
            if Target.POD not in snapshot.live:
                snapshot = await self.reader.read_live(snapshot, Target.POD)
            if is_bound_as_asked(request, snapshot.pod_view):
                return await self.complete(self.reader.context(snapshot), state)
        pending = self._writes_in_flight(snapshot, state)
        if pending is None and may_have_effects:
            pending = await self._roll_back(snapshot, state, Status.fatal(fail.message, fail.reason), fail)
        if pending is not None:
            return pending
        without_finalizer = await self.writer.drop_finalizer(request)
        if without_finalizer is not None:
            await self._report_failed(without_finalizer, snapshot, state, fail)
        return await self._close(request, state)

    async def roll_back(self, snapshot: Snapshot, state: RequestState, why: Status) -> Result:
        """Roll back an abandoned request: being deleted, Failed with side effects, or of a release that ends."""
        pending = self._writes_in_flight(snapshot, state) or await self._roll_back(snapshot, state, why)
        if pending is not None:
            return pending
        request, now = snapshot.request, self.clock.now()
        if request.phase is Phase.FAILED:
            # Failed by an older release or another controller: this release drops the finalizer before it writes
            # Failed.
            request = await self.writer.patch_status(request, rolled_back_status(request, now))
        elif not request.deleting:
            request = await self.writer.patch_status(request, released_status(request, why.message, now))
        return await self.drop_finalizer(request, state)

    async def roll_back_orphan(self, snapshot: Snapshot, state: RequestState) -> Result | None:
        """Roll back the side effects of a request that was released without a rollback; None if none are left."""
        snapshot = await self.reader.read_live(snapshot, Target.POD)
        if is_bound_as_asked(snapshot.request, snapshot.pod_view):
            return None
        why = Status.fatal("the request was withdrawn without a rollback", Reason.SUPERSEDED)
        return self._writes_in_flight(snapshot, state) or await self._roll_back(snapshot, state, why, is_orphan=True)

    async def drop_finalizer(self, request: BindRequest, state: RequestState) -> Result:
        """Drop the finalizer and close the request: nothing is left to roll back, or nothing may be rolled back."""
        await self.writer.drop_finalizer(request)
        return await self._close(request, state)

    async def report_blocked(self, request: BindRequest, state: RequestState, why: str) -> None:
        """Report in status and event what keeps the request from completing, other than a failed attempt."""
        if state.rollback.block(why):
            self.writer.record_event(request, Event("Warning", names.EVENT_RETRY, f"not complete yet: {why}"))
        if request.phase is Phase.PENDING:
            await self.writer.patch_status(request, blocked_status(request, why, self.clock.now()))

    async def _roll_back(
        self,
        snapshot: Snapshot,
        state: RequestState,
        why: Status,
        fail: Fail | None = None,
        *,
        is_orphan: bool = False,
    ) -> Result | None:
        """Call the plugins' rollback. Returns when to continue it, None if it is complete.

        An incomplete one is reported, with the failure that follows it; that of an orphan only in the log. Transient
        failures are not reported below QUIET_FAILURES: a lost reply is not, a lasting failure is, because the
        scheduler waits for the result.
        """
        ctx = self.reader.context(snapshot)
        result = await self.runner.run_rollback(ctx, why)
        if result.code is Code.OK:
            state.rollback.complete()
            return None
        if is_orphan:
            ctx.log.warning("rollback is delayed", extra={"why": result.message})
        elif result.code is Code.TRANSIENT and state.rollback.transient_failures < QUIET_FAILURES:
            state.rollback.count_transient_failure()
        else:
            await self._report_incomplete(snapshot, state, result, fail)
            ctx.log.warning("rollback is not complete", extra={"why": result.message})
        return self.failures.requeue_rollback(snapshot.key, max(ROLLBACK_PAUSE, result.retry_after or ROLLBACK_PAUSE))

    async def _report_incomplete(
        self, snapshot: Snapshot, state: RequestState, rollback: Status, fail: Fail | None
    ) -> None:
        request = snapshot.request
        await self.writer.patch_status(request, rollback_incomplete_status(request, fail, rollback, self.clock.now()))
        # After a restart the status already reports it: the previous process has sent the event.
        if not state.rollback.is_reported and not is_rollback_incomplete(request):
            event = Event("Warning", names.EVENT_ROLLBACK_FAILED, f"rollback is not complete: {rollback.message}")
            self.writer.record_event(request, event, on_pod=snapshot.named_pod is not None)
        state.rollback.report()

    async def _report_failed(self, request: BindRequest, snapshot: Snapshot, state: RequestState, fail: Fail) -> None:
        pod = snapshot.named_pod
        report = failure_report(request, fail, state.rollback.is_complete, pod, self.clock.now())
        await self.writer.write_report(request, report, on_pod=pod is not None)
        if pod is not None and report.condition is not None:
            self.conditions.report(pod, report.condition)
        self.metrics.finished_requests.labels(reason=fail.reason.value).inc()
        log.warning("request has failed", extra={"reason": fail.reason.value, "why": fail.message})

    async def _close(self, request: BindRequest, state: RequestState) -> Result:
        state.finish()
        await self.runner.forget(request.key, request.uid)
        return DONE

    def _writes_in_flight(self, snapshot: Snapshot, state: RequestState) -> Result | None:
        """Return when to continue if an unacknowledged write may still take effect; None if none can.

        Until then nothing is rolled back and no failure is reported as final.
        """
        request, now = snapshot.request, self.clock.monotonic()
        unacknowledged_at = state.attempt.unacknowledged_at
        is_inherited = self.may_predate_term(request)
        left = in_flight_for(
            request,
            snapshot.pod_view,
            timedelta(seconds=now - unacknowledged_at) if unacknowledged_at is not None else None,
            timedelta(seconds=now - self._leading_since) if is_inherited else None,
            self.limits.in_flight_timeout,
        )
        return self.failures.requeue_rollback(snapshot.key, left) if left > timedelta() else None
