"""Executes the effects of attempts and ends, one at a time; ``decide.step`` states their order.

Each effect is a few calls, and adds to what is known. Nothing here decides what follows. The pod's PodBound
condition follows the status and never delays it (``pod_conditions``).

Without failures, no API call precedes the Binding except the finalizer's and those of plugins. From its beginning an
attempt is withdrawn by the events of the caches (``watch_events``), which are not read once more before the Binding;
the Binding's own preconditions cover the rest.
"""

import logging
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from bowline.api import names
from bowline.api.bindrequest import BindRequest, Phase
from bowline.api.gang import gang_of
from bowline.api.meta import Object, ObjectKey, ObjectUID
from bowline.framework.binding.context import BindContext
from bowline.framework.binding.runner import Runner
from bowline.framework.plugin_status import Done, Fatal, Status, Transient
from bowline.kube.errors import Forbidden
from bowline.kube.late_writes import noting
from bowline.runtime.clock import Clock
from bowline.runtime.workers import ReconcileError
from bowline_reconciler.binding.gangs import Gangs
from bowline_reconciler.binding.reads import Reads
from bowline_reconciler.binding.state import RequestState
from bowline_reconciler.binding.writer import Writer
from bowline_reconciler.bound_pods import BoundPodWatch
from bowline_reconciler.decide.actions import Action, DropFinalizer, Event, Fail, Nomination, OutcomeAction
from bowline_reconciler.decide.report import (
    BindingContent,
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
    AttemptFacts,
    Blame,
    CallFailed,
    Do,
    Facts,
    Following,
    Gather,
    Record,
    ReportCause,
    ReportFailed,
    ReportRolledBack,
    Stage,
    Undo,
    step,
)
from bowline_reconciler.observe.metrics import ReconcilerMetrics
from bowline_reconciler.request_cache import RequestCache

log = logging.getLogger(__name__)

ROLLBACK_PAUSE = timedelta(seconds=1)


@dataclass(slots=True)
class Work:
    """A request in one reconcile: what was decided on, and what is known so far. It grows with each effect.

    ``context``: of the attempt, which post_bind receives as well. ``started_at``: when that attempt began.
    """

    snapshot: Snapshot
    state: RequestState
    action: Action | OutcomeAction | CallFailed | Abandon
    facts: Facts | AttemptFacts
    context: BindContext | None = None
    started_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Effects:
    """Executes effects. Methods raise the client's errors; repeating one after an error or a crash is safe."""

    reads: Reads
    requests: RequestCache
    bound_pods: BoundPodWatch
    runner: Runner
    writer: Writer
    metrics: ReconcilerMetrics
    clock: Clock
    gangs: Gangs | None = None

    async def run(self, work: Work) -> Following:
        """Execute effects; returns the first one that ends the reconcile or begins something else.

        Raises ReconcileError if an effect must be repeated.
        """
        state = work.state
        while True:
            effect = step(work.action, work.facts)
            request, news = work.snapshot.request, dict[str, Any]()
            match effect:
                case Do():
                    news = await self._do(effect, work)
                case Record():
                    news["request"] = await self.writer.add_finalizer(request, effect.plugins)
                    news["stage"] = Stage.RECORDED
                case Gather():
                    assert self.gangs is not None  # noqa: S101 - no pod is in a gang without them
                    status = await self.gangs.admit(request, effect.gang, state)
                    news = {"stage": Stage.GATHERED, "status": status}
                case Blame():
                    news["status"] = self._blame(work, effect.plugin)
                case Advise():
                    work.action = await self._advised(work, effect.fail)
                case Undo():
                    news = await self._undo(work, effect)
                case DropFinalizer():
                    stored_request = await self.writer.drop_finalizer(request)
                    if stored_request is None:
                        self.requests.end(request.key, request)
                    news = {"request": stored_request or request, "is_gone": stored_request is None}
                case ReportFailed():
                    news = {"request": await self._report_failed(work, effect.fail), "has_reported": True}
                case ReportRolledBack():
                    news = {"request": await self._report_rolled_back(work, effect.why), "has_reported": True}
                case ReportCause():
                    cause = Unfinished("Retrying", effect.why)
                    await self.report_unfinished(request, state, cause, is_isolated=True)
                    news["has_reported"] = True
                case _:
                    return effect
            if state.attempt.running is not None:
                news["is_withdrawn"] = state.attempt.running.cancelled.is_set()
            work.facts = replace(work.facts, **news)
            if work.facts.request is not request:
                work.snapshot = replace(work.snapshot, request=work.facts.request)

    async def _do(self, effect: Do, work: Work) -> dict[str, Any]:
        """Execute an effect; returns the new facts."""
        request, attempt = work.snapshot.request, work.state.attempt
        match effect:
            case Do.FENCE:
                return {"request": await self.writer.fence(request), "stage": Stage.RECORDED}
            case Do.PREPARE:
                return await self._prepare(work)
            case Do.POST:
                return await self._post(work)
            case Do.READ_POD:
                return self._noted(work, await self.reads.read_live(work.snapshot, Target.POD))
            case Do.READ_BOUND_POD:
                snapshot = await self.reads.with_bound_pod(work.snapshot, attempt.awaited_bind)
                return {**self._noted(work, snapshot), "has_read_bound_pod": True}
            case Do.SETTLE:
                return {"quiet_in": await self.reads.writes_in_flight(work.snapshot, attempt)}
            case Do.RUN_POST_BIND:
                await self.runner.run_post_bind(self._bound_context(work))
                return {"has_run_post_bind": True, "is_held": bool(self.runner.holders(request))}
            case Do.REPORT_SUCCEEDED:
                return {"request": await self._report_succeeded(work), "has_reported": True}

    def _noted(self, work: Work, snapshot: Snapshot) -> dict[str, Any]:
        """Note the pod as it was read; returns the new facts."""
        work.snapshot, is_live = snapshot, Target.POD in snapshot.live
        is_bound = is_bound_as_asked(snapshot.request, snapshot.pod_view)
        if not isinstance(work.facts, AttemptFacts) or is_bound:
            return {"is_bound": is_bound, "is_pod_live": is_live}
        decision = self.reads.decide_on(snapshot, work.state)
        return {"is_pod_live": is_live, "end": decision if isinstance(decision, Fail) else None}

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

    async def set_owner(self, request: BindRequest, state: RequestState, pod_uid: ObjectUID) -> None:
        """Begin an attempt by tying the request to its present pod; another reconcile goes on with it."""
        state.attempt.is_open = True
        await self.writer.set_owner(request, pod_uid)

    # --- calls of plugins ---

    async def _prepare(self, work: Work) -> dict[str, Any]:
        """Call the plugins' pre_bind. Where the finalizer records it, side effects may exist from here on."""
        state, request, rollback = work.state, work.snapshot.request, work.state.rollback
        if request.has_finalizer:
            rollback.side_effects, rollback.has_begun, rollback.is_complete = request, False, False
        ctx = work.context = self.reads.context(work.snapshot, state.attempt.running)
        with noting(state.attempt.writes):
            status = await self.runner.run_pre_bind(ctx)
        if not isinstance(status, Done):
            state.gang.leave()
        gang = gang_of(ctx.pod) if self.gangs is not None and ctx.pod is not None else None
        return {"stage": Stage.PREPARED, "status": status, "gang": gang}

    async def _post(self, work: Work) -> dict[str, Any]:
        """Call the plugins' bind, past the point of no return."""
        ctx, attempt, request = work.context, work.state.attempt, work.snapshot.request
        assert ctx is not None  # noqa: S101 - it is prepared
        # The Runner collects the content from here on, and no plugin replaces it.
        attempt.content = BindingContent(ctx.annotations, ctx.labels)
        attempt.past_point, attempt.awaited_bind = True, self.bound_pods.expect(request)
        with noting(attempt.writes):
            status = await self.runner.run_bind(ctx)
        ctx.views.clear()  # the context is kept until the bind is completed, and post_bind receives the bound pod
        posts = ctx.posts
        if self.gangs is not None and ctx.pod is not None and posts.acknowledged:
            self.gangs.bound(ctx.pod)
        if not isinstance(status, Done) or not posts.acknowledged:
            attempt.awaited_bind = None
        return {
            "stage": Stage.POSTED,
            "status": status,
            "is_acknowledged": posts.acknowledged,
            "is_rejected": posts.rejected,
            "has_lost_reply": attempt.unacknowledged_at is not None or posts.last_unknown is not None,
        }

    def _blame(self, work: Work, plugin: str) -> Status:
        """Report the defect of a bind plugin. A call that it has sent may still take effect."""
        request, ctx = work.snapshot.request, work.context
        assert ctx is not None  # noqa: S101 - its bind was called
        work.state.attempt.unacknowledged_at = self.clock.monotonic()
        why = f"answered OK, but pod {request.pod_key} is not on node {request.selected_node}"
        return self.runner.bound_nothing(ctx, plugin, why)

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
        rollback.ending = replace(fail, is_advised=True)
        return rollback.ending

    async def _undo(self, work: Work, effect: Undo) -> dict[str, Any]:
        """Call the plugins' rollback. Raises ReconcileError if it is incomplete.

        While one of its own writes may still take effect, it is to be repeated. An incomplete one is reported, with
        the failure that follows it; that of an orphan only in the log. Transient failures are not reported while
        there are few: a lost reply is not, a lasting failure is, because the scheduler waits for the result.
        """
        attempt, rollback = work.state.attempt, work.state.rollback
        ctx = self.reads.context(work.snapshot)
        rollback.has_begun = True
        with noting(attempt.writes):
            result = await self.runner.run_rollback(ctx, effect.why)
        if isinstance(result, Done):
            is_late = attempt.may_have_late_writes
            quiet_in = await self.reads.writes_in_flight(work.snapshot, attempt) if is_late else timedelta()
            is_quiet = quiet_in <= timedelta()
            if is_quiet:
                rollback.side_effects, rollback.is_complete, rollback.remains = None, True, result.message
            return {
                "has_undone": is_quiet,
                "has_side_effects": rollback.side_effects is not None,
                "has_late_writes": not is_quiet,
                "quiet_in": quiet_in,
            }
        if effect.is_orphan:
            ctx.log.warning("rollback is delayed", extra={"why": result.message})
        elif not isinstance(result, Transient) or rollback.count_transient_failure():
            await self._report_incomplete(work, result, effect.fail)
            ctx.log.warning("rollback is not complete", extra={"why": result.message})
        raise ReconcileError(result.message, at_least=max(ROLLBACK_PAUSE, result.retry_after or ROLLBACK_PAUSE))

    # --- reports; each returns the request as stored ---

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
        rollback.is_reported = True

    def _withdraw_nomination(self, request: BindRequest, pod: Object | None) -> None:
        """Queue the end of the pod's nomination to the request's node, which an attempt without a result has left."""
        if pod is not None and not is_bound_as_asked(request, pod_view(pod)):
            self.writer.nominate(pod, Nomination(request.selected_node, is_withdrawn=True))

    def _record_cause(self, request: BindRequest, state: RequestState, why: str) -> None:
        """Queue the event of a cause, once."""
        former, state.rollback.blocked_by = state.rollback.blocked_by, why
        if why != former:
            self.writer.record_event(request, Event("Warning", names.EVENT_RETRY, f"not complete yet: {why}"))
