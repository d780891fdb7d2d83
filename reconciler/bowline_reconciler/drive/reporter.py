"""Reports how a request ends, what it waits for, and why it is unfinished: status, events and the pod's report.

``decide.report`` has the words. The pod's PodBound condition follows the status and never delays it
(``pod_conditions``).
"""

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta

from bowline.api import names
from bowline.api.bindrequest import BindRequest, Phase
from bowline.api.request_facts import WaitFact, wait_of
from bowline.framework.interface.status import Status
from bowline.kube.errors import Forbidden
from bowline.runtime.clock import Clock
from bowline_reconciler.decide.actions import Complete, Event, Fail, Nomination, Report, Rollback, Wait
from bowline_reconciler.decide.report import (
    Unfinished,
    failure_name,
    failure_report,
    given_up_status,
    preparation,
    rollback_incomplete_status,
    rolled_back_status,
    success_report,
    unfinished_status,
    waiting_status,
)
from bowline_reconciler.decide.snapshot import Snapshot, is_bound_as_asked
from bowline_reconciler.drive.state import RequestState, RollbackState
from bowline_reconciler.drive.writer import Writer
from bowline_reconciler.observe import OWN, ReconcilerMetrics

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reporter:
    """Writes reports. Methods raise the client's errors."""

    writer: Writer
    metrics: ReconcilerMetrics
    clock: Clock

    async def report(
        self,
        decision: Complete | Fail | Rollback,
        snapshot: Snapshot,
        state: RequestState,
        started_at: datetime | None,
    ) -> BindRequest:
        """Write how the request ends; returns the request on which what follows is decided.

        ``started_at``: of the attempt that has bound the pod, if it is known.
        """
        match decision:
            case Fail():
                await self._failed(snapshot, decision, state.rollback)
            case Rollback():
                return await self._rolled_back(snapshot, decision.why, state.rollback)
            case Complete():
                await self._succeeded(snapshot, state, started_at)
        return snapshot.request

    async def _succeeded(self, snapshot: Snapshot, state: RequestState, started_at: datetime | None) -> None:
        """Report that the pod is bound as asked."""
        request, pod, now = snapshot.request, snapshot.own_pod, self.clock.now()
        assert pod is not None  # noqa: S101 - it is bound as asked
        bind = state.attempt.bind
        content = bind.content if bind is not None else {}
        preparation_status = preparation(request, not state.rollback.has_begun, pod, content)
        report = success_report(request, preparation_status, pod, started_at, now)
        await self.writer.write_report(request, report, pod)
        self.metrics.succeeded.inc()
        if request.created is not None:
            self.metrics.bind_seconds.observe(max(0.0, (now - request.created).total_seconds()))
        fields = {"bindRequest": str(request.key), "pod": str(request.pod_key), "node": pod["spec"]["nodeName"]}
        log.info("pod is bound", extra=fields)

    async def _failed(self, snapshot: Snapshot, fail: Fail, rollback: RollbackState) -> None:
        """Report a terminal failure."""
        request, pod, now = snapshot.request, snapshot.own_pod, self.clock.now()
        report = failure_report(request, fail, rollback.is_complete, pod, now, rollback.remains)
        fields = {"reason": failure_name(fail), "plugin": fail.status.plugin, "why": fail.status.message}
        await self.writer.write_report(request, report, pod)
        reason, counters = fail.status.reason.value, self.metrics.failed_requests
        counters.get((reason, fail.status.plugin), counters[reason, OWN]).inc()
        log.warning("request has failed", extra=fields)

    async def _rolled_back(self, snapshot: Snapshot, why: Status, rollback: RollbackState) -> BindRequest:
        """Report that a request was rolled back, unless it is being deleted. Returns it as stored."""
        request = snapshot.request
        self.withdraw_nomination(snapshot)
        if request.phase is Phase.FAILED:
            # Failed by another controller: this one drops the finalizer before it writes Failed.
            status = rolled_back_status(request, rollback.remains, self.clock.now())
        elif request.deleting:
            return request
        else:
            status = given_up_status(request, why.message, self.clock.now())
        return await self.writer.patch_status(request, status)

    async def incomplete(self, snapshot: Snapshot, result: Status, fail: Fail | None) -> None:
        """Report an incomplete rollback, with one event. ``fail``: the failure that follows it, if one does."""
        request = snapshot.request
        await self.writer.patch_status(request, rollback_incomplete_status(request, fail, result, self.clock.now()))
        if not request.is_rollback_incomplete:
            event = Event("Warning", names.EVENT_ROLLBACK_FAILED, f"rollback is not complete: {result.message}")
            self.writer.record_event(request, event, on_pod=snapshot.own_pod is not None)

    async def unfinished(
        self, request: BindRequest, state: RequestState, cause: Unfinished, *, is_isolated: bool
    ) -> None:
        """Report in status and event why the request is unfinished, beside its reconcile.

        ``is_isolated``: other calls succeed; if not, no event is sent unless the status write is answered. A status
        that reports an incomplete rollback stays: it has the failure that follows.
        """
        if request.is_rollback_incomplete:
            return
        if is_isolated:
            self._record_cause(request, state, cause.why)
        if request.phase is Phase.PENDING:
            try:
                await self.writer.patch_status(request, unfinished_status(request, cause, self.clock.now()))
            except Forbidden:
                self._record_cause(request, state, cause.why)  # the API server answers: there is no outage
                raise
            state.wait.supersede(self.clock.monotonic())
        self._record_cause(request, state, cause.why)

    async def retrying(self, snapshot: Snapshot, report: Report) -> None:
        """Report a failed attempt that another one follows."""
        await self.writer.write_report(snapshot.request, report, snapshot.own_pod)

    async def waiting(self, snapshot: Snapshot, state: RequestState, wait: Wait) -> None:
        """Report a wait; while an attempt waits, the pod is nominated to its node."""
        request, pod, now = snapshot.request, snapshot.own_pod, self.clock.now()
        began = now - timedelta(seconds=max(0.0, self.clock.monotonic() - state.wait.began))
        # Otherwise reported by the previous process, with its event.
        is_reported = not state.wait.last_report and WaitFact(wait.cause, wait.on).is_same(wait_of(request.status))
        await self.writer.patch_status(request, waiting_status(request, wait, began, now))
        state.wait.last_report = wait.why
        state.wait.reports += 1
        if not is_reported:
            self.writer.record_event(request, Event("Normal", names.EVENT_WAITING, wait.why), on_pod=pod is not None)
        if pod is not None and wait.is_of_attempt:
            state.wait.nominated = request
            self.writer.nominate(pod, Nomination(request.selected_node))

    def withdraw_nomination(self, snapshot: Snapshot) -> None:
        """Queue the end of the pod's nomination to the request's node, which an attempt without a result has left."""
        request, pod = snapshot.request, snapshot.own_pod
        if pod is not None and not is_bound_as_asked(request, snapshot.pod):
            self.writer.nominate(pod, Nomination(request.selected_node, is_withdrawn=True))

    def _record_cause(self, request: BindRequest, state: RequestState, why: str) -> None:
        """Queue the event of a cause, once."""
        former, state.rollback.blocked_by = state.rollback.blocked_by, why
        if why != former:
            self.writer.record_event(request, Event("Warning", names.EVENT_RETRY, f"not complete yet: {why}"))
