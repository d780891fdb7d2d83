"""Executes the effects that end a request, one at a time; ``decide.step`` states their order.

Each effect is a few calls, and adds to what is known. Nothing here decides what follows. The pod's PodBound
condition follows the status and never delays it (``pod_conditions``).
"""

import logging
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from bowline.api import names
from bowline.api.bindrequest import BindRequest, Phase
from bowline.api.meta import Object, ObjectKey
from bowline.framework.binding.context import BindContext
from bowline.framework.binding.runner import Runner
from bowline.framework.plugin_status import Done, Fatal, Status, Transient
from bowline.kube.errors import Forbidden
from bowline.kube.late_writes import noting
from bowline.runtime.clock import Clock
from bowline.runtime.workers import ReconcileError
from bowline_reconciler.binding.reads import Reads
from bowline_reconciler.binding.state import RequestState
from bowline_reconciler.binding.writer import Writer
from bowline_reconciler.decide.actions import Action, DropFinalizer, Event, Fail, Nomination, Rollback
from bowline_reconciler.decide.report import (
    Unfinished,
    failure_report,
    preparation,
    released_status,
    rollback_incomplete_status,
    rolled_back_status,
    success_report,
    unfinished_status,
)
from bowline_reconciler.decide.snapshot import Snapshot, Target, is_bound_as_asked, pod_view
from bowline_reconciler.decide.step import (
    Abandon,
    Advise,
    Facts,
    OtherEffect,
    ReadBoundPod,
    ReadPod,
    ReportFailed,
    ReportRolledBack,
    ReportSucceeded,
    RunPostBind,
    Settle,
    Undo,
    step,
)
from bowline_reconciler.observe.metrics import ReconcilerMetrics
from bowline_reconciler.request_cache import RequestCache

log = logging.getLogger(__name__)

ROLLBACK_PAUSE = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Work:
    """A request in one reconcile: what was read, what is remembered, what was decided on, and how far that is.

    ``context``: of the attempt that has ended with the bind, which post_bind receives.
    ``started_at``: when that attempt began.
    """

    snapshot: Snapshot
    state: RequestState
    action: Action | Abandon
    facts: Facts
    context: BindContext | None = None
    started_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Effects:
    """Executes effects. Methods raise the client's errors; repeating one after an error or a crash is safe."""

    reads: Reads
    requests: RequestCache
    runner: Runner
    writer: Writer
    metrics: ReconcilerMetrics
    clock: Clock

    def begin(
        self,
        snapshot: Snapshot,
        state: RequestState,
        action: Action | Abandon,
        context: BindContext | None = None,
        started_at: datetime | None = None,
    ) -> Work:
        """Begin to execute an action, before any await.

        A failure that has begun is remembered, and no other pod of the gang relies on this one.
        """
        is_undoing, is_pod_live = isinstance(action, Fail | Rollback | Abandon), Target.POD in snapshot.live
        if is_undoing:
            state.gang.leave()
        if isinstance(action, Fail):
            state.rollback.end_with(action)
        facts = Facts(
            snapshot.request,
            is_bound=is_pod_live and is_bound_as_asked(snapshot.request, snapshot.pod_view),
            is_pod_live=is_pod_live,
            has_side_effects=state.rollback.side_effects is not None,
            has_late_writes=is_undoing and state.attempt.may_have_late_writes,
            is_inherited=is_undoing and self.reads.may_predate_term(snapshot.request),
        )
        return Work(snapshot, state, action, facts, context, started_at)

    async def run(self, work: Work) -> tuple[OtherEffect, Work]:
        """Execute the effects of an end; returns the first one that is none, and what is known by then.

        Raises ReconcileError if an effect must be repeated.
        """
        while True:
            snapshot, facts = work.snapshot, work.facts
            effect = step(work.action, facts)
            match effect:
                case ReadPod() | ReadBoundPod():
                    snapshot = await self._read(effect, work)
                    is_bound = is_bound_as_asked(snapshot.request, snapshot.pod_view)
                    is_live = Target.POD in snapshot.live
                    facts = replace(facts, is_bound=is_bound, is_pod_live=is_live, has_read_bound_pod=True)
                case Settle():
                    facts = replace(facts, quiet_in=await self.reads.writes_in_flight(snapshot, work.state.attempt))
                case Advise():
                    work = replace(work, action=await self._advised(work, effect.fail))
                case Undo():
                    quiet_in = await self._undo(work, effect)
                    is_quiet = quiet_in <= timedelta()
                    facts = replace(
                        facts,
                        has_undone=is_quiet,
                        has_side_effects=facts.has_side_effects and not is_quiet,
                        has_late_writes=not is_quiet,
                        quiet_in=quiet_in,
                    )
                case RunPostBind():
                    await self.runner.run_post_bind(self._bound_context(work))
                    is_held = bool(self.runner.holders(snapshot.request))
                    facts = replace(facts, has_run_post_bind=True, is_held=is_held)
                case DropFinalizer():
                    request = await self.writer.drop_finalizer(snapshot.request)
                    if request is None:
                        self.requests.end(snapshot.request.key, snapshot.request)
                    snapshot = replace(snapshot, request=request or snapshot.request)
                    facts = replace(facts, request=snapshot.request, is_gone=request is None)
                case ReportSucceeded() | ReportFailed() | ReportRolledBack():
                    snapshot = replace(snapshot, request=await self._report(effect, work))
                    facts = replace(facts, request=snapshot.request, has_reported=True)
                case _:
                    return effect, work
            work = replace(work, snapshot=snapshot, facts=facts)

    async def report_unfinished(
        self, request: BindRequest, state: RequestState, cause: Unfinished, *, is_isolated: bool
    ) -> BindRequest:
        """Report in status and event why the request is unfinished, beside its reconcile. Returns it as stored.

        ``is_isolated``: other calls succeed; if not, no event is sent unless the status write is answered. A status
        that reports an incomplete rollback stays: it has the failure that follows. Raises the client's errors.
        """
        if request.is_rollback_incomplete:
            return request
        if is_isolated:
            self._record_cause(request, state, cause.why)
        if request.phase is Phase.PENDING:
            try:
                request = await self.writer.patch_status(request, unfinished_status(request, cause, self.clock.now()))
            except Forbidden:
                self._record_cause(request, state, cause.why)  # the API server answers: there is no outage
                raise
            state.wait.supersede(self.clock.monotonic())
        self._record_cause(request, state, cause.why)
        return request

    async def drop(self, key: ObjectKey, state: RequestState) -> None:
        """Let the plugins drop what they remember of a request that is closed or gone."""
        await self.runner.drop_request(key, state.uid)

    async def withdraw_nomination(self, request: BindRequest) -> None:
        """Withdraw the nomination of the request's pod, of which nothing else is known."""
        snapshot = await self.reads.with_pod(self.reads.from_cache(request, None))
        self._withdraw_nomination(request, snapshot.named_pod)

    async def _read(self, effect: ReadPod | ReadBoundPod, work: Work) -> Snapshot:
        if isinstance(effect, ReadPod):
            return await self.reads.read_live(work.snapshot, Target.POD)
        return await self.reads.with_bound_pod(work.snapshot, work.state.attempt.awaited_bind)

    # --- calls of plugins ---

    def _bound_context(self, work: Work) -> BindContext:
        """Return the context of post_bind: the attempt's, with the bound pod, or a new one."""
        pod = work.snapshot.named_pod
        if work.context is None or pod is None:
            return self.reads.context(work.snapshot)
        return work.context.of_bound(work.snapshot.request, pod)

    async def _advised(self, work: Work, fail: Fail) -> Fail:
        """Return the failure with the advice of the plugins. Raises ReconcileError if one must be asked again.

        If that does not help, the failure stays as it is: advice must not keep a request from its end.
        """
        rollback = work.state.rollback
        ctx = self.reads.context(await self.reads.with_pod(work.snapshot))
        advice = await self.runner.run_on_terminal_failure(ctx, fail.status)
        if isinstance(advice, Transient) and not rollback.count_transient_failure():
            raise ReconcileError(advice.message, at_least=max(ROLLBACK_PAUSE, advice.retry_after or ROLLBACK_PAUSE))
        if isinstance(advice, Fatal):
            fail = replace(fail, status=advice)
        return rollback.end_with(replace(fail, is_advised=True))

    async def _undo(self, work: Work, effect: Undo) -> timedelta:
        """Call the plugins' rollback. Raises ReconcileError if it is incomplete.

        Returns for how long one of its own writes may still take effect: then the rollback is to be repeated. An
        incomplete one is reported, with the failure that follows it; that of an orphan only in the log. Transient
        failures are not reported while there are few: a lost reply is not, a lasting failure is, because the
        scheduler waits for the result.
        """
        attempt, rollback = work.state.attempt, work.state.rollback
        ctx = self.reads.context(work.snapshot)
        rollback.begin()
        with noting(attempt.writes):
            result = await self.runner.run_rollback(ctx, effect.why)
        if isinstance(result, Done):
            is_late = attempt.may_have_late_writes
            quiet_in = await self.reads.writes_in_flight(work.snapshot, attempt) if is_late else timedelta()
            if quiet_in <= timedelta():
                rollback.complete(result.message)
            return quiet_in
        if effect.is_orphan:
            ctx.log.warning("rollback is delayed", extra={"why": result.message})
        elif not isinstance(result, Transient) or rollback.count_transient_failure():
            await self._report_incomplete(work, result, effect.fail)
            ctx.log.warning("rollback is not complete", extra={"why": result.message})
        raise ReconcileError(result.message, at_least=max(ROLLBACK_PAUSE, result.retry_after or ROLLBACK_PAUSE))

    # --- reports ---

    async def _report(self, effect: ReportSucceeded | ReportFailed | ReportRolledBack, work: Work) -> BindRequest:
        """Write the report of an end; returns the request as stored."""
        match effect:
            case ReportSucceeded():
                return await self._report_succeeded(work)
            case ReportFailed():
                return await self._report_failed(work, effect.fail)
            case ReportRolledBack():
                return await self._report_rolled_back(work, effect.why)

    async def _report_succeeded(self, work: Work) -> BindRequest:
        request, pod, state, now = work.snapshot.request, work.snapshot.named_pod, work.state, self.clock.now()
        assert pod is not None  # noqa: S101 - it is bound as asked
        preparation_status = preparation(request, not state.rollback.has_begun, pod, state.attempt.content)
        report = success_report(request, preparation_status, pod, work.started_at, now)
        await self.writer.write_report(request, report, pod)
        self.metrics.request_finished(Phase.SUCCEEDED.value)
        if request.created is not None:
            self.metrics.bind_seconds.observe(max(0.0, (now - request.created).total_seconds()))
        fields = {"bindRequest": str(request.key), "pod": str(request.pod_key), "node": request.selected_node}
        log.info("pod is bound", extra=fields)
        return request

    async def _report_failed(self, work: Work, fail: Fail) -> BindRequest:
        request, pod, rollback = work.snapshot.request, work.snapshot.named_pod, work.state.rollback
        report = failure_report(request, fail, rollback.is_complete, pod, self.clock.now(), rollback.remains)
        await self.writer.write_report(request, report, pod)
        self.metrics.request_finished(fail.status.reason.value, fail.status.plugin)
        fields = {"reason": fail.name, "plugin": fail.status.plugin, "why": fail.message}
        log.warning("request has failed", extra=fields)
        return request

    async def _report_rolled_back(self, work: Work, why: Status) -> BindRequest:
        request, now = work.snapshot.request, self.clock.now()
        self._withdraw_nomination(request, work.snapshot.named_pod)
        if request.phase is Phase.FAILED:
            # Failed by another controller: this one drops the finalizer before it writes Failed.
            status = rolled_back_status(request, work.state.rollback.remains, now)
        elif request.deleting:
            return request
        else:
            status = released_status(request, why.message, now)
        return await self.writer.patch_status(request, status)

    async def _report_incomplete(self, work: Work, result: Status, fail: Fail | None) -> None:
        request, rollback = work.snapshot.request, work.state.rollback
        await self.writer.patch_status(request, rollback_incomplete_status(request, fail, result, self.clock.now()))
        # After a restart the status already reports it: the previous process has sent the event.
        if not rollback.is_reported and not request.is_rollback_incomplete:
            event = Event("Warning", names.EVENT_ROLLBACK_FAILED, f"rollback is not complete: {result.message}")
            self.writer.record_event(request, event, on_pod=work.snapshot.named_pod is not None)
        rollback.note_report()

    def _withdraw_nomination(self, request: BindRequest, pod: Object | None) -> None:
        """Queue the end of the pod's nomination to the request's node, which an attempt without a result has left."""
        if pod is not None and not is_bound_as_asked(request, pod_view(pod)):
            self.writer.nominate(pod, Nomination(request.selected_node, is_withdrawn=True))

    def _record_cause(self, request: BindRequest, state: RequestState, why: str) -> None:
        """Queue the event of a cause, once."""
        if state.rollback.block(why):
            self.writer.record_event(request, Event("Warning", names.EVENT_RETRY, f"not complete yet: {why}"))
