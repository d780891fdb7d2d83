"""Completes, fails and rolls back requests: one code path each, whatever caused it.

The order of the writes is guaranteed. Success: post_bind, finalizer, Succeeded, event; a request that reports
Succeeded has no work left, except that it keeps its finalizer if plugins hold something for its pod (``releases``).
Failure: rollback, finalizer, then Failed and RolledBack in one patch. **Failed means
released**: no finalizer of Bowline remains on a Failed request, so its scheduler can delete it and create another one
of the same name in the same cycle. While the rollback is incomplete, the request stays Pending with that reason. A
crash between removing the finalizer and writing Failed costs one more attempt, because the failure is not stored yet;
within the process the failure is kept and finished, whatever call fails and whatever changes meanwhile. The pod's
PodBound condition follows the status and never delays it (``pod_conditions``). Decision 115.
"""

import logging
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from bowline.api import names
from bowline.api.bindrequest import BindRequest, Phase
from bowline.api.meta import Object, ObjectKey
from bowline.framework.binding.context import BindContext
from bowline.framework.binding.runner import Runner
from bowline.framework.plugin_status import Code, Status
from bowline.framework.reason import Reason
from bowline.kube.errors import Forbidden
from bowline.kube.late_writes import noting
from bowline.runtime.clock import Clock
from bowline.runtime.workers import DONE, REQUEUE, ReconcileError, Result
from bowline_reconciler.binding.reads import Reads
from bowline_reconciler.binding.state import RequestState, RequestStates
from bowline_reconciler.binding.writer import Writer
from bowline_reconciler.decide.actions import Event, Fail, Nomination
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
from bowline_reconciler.observe.metrics import ReconcilerMetrics

log = logging.getLogger(__name__)

ROLLBACK_PAUSE = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Completer:
    """Completes, fails and rolls back. Methods raise the client's errors, and ReconcileError while a rollback is
    incomplete; repeating one after a crash is safe.
    """

    reads: Reads
    states: RequestStates
    runner: Runner
    writer: Writer
    metrics: ReconcilerMetrics
    clock: Clock

    async def complete(
        self,
        snapshot: Snapshot,
        state: RequestState,
        attempt: BindContext | None = None,
        started_at: datetime | None = None,
    ) -> Result:
        """Verify the bind, whoever has bound, then complete the request: post_bind, finalizer, Succeeded, event.

        The pod of the snapshot is read first, unless it was read live. If it is not on its node, the request fails as
        for any pod that is elsewhere; if it lacks what its Binding contains, it is not reported as prepared.
        ``attempt``: the context of the one that has ended with the bind, if there was one, which post_bind receives;
        ``started_at``: when that began.
        """
        snapshot = await self.reads.with_bound_pod(snapshot, state.attempt.awaited_bind)
        pod = snapshot.named_pod
        if pod is None or not is_bound_as_asked(snapshot.request, snapshot.pod_view):
            return await self._fail_misdirected(snapshot, state)
        ctx = self.reads.context(snapshot) if attempt is None else attempt.of_bound(snapshot.request, pod)
        await self.runner.run_post_bind(ctx)
        is_held = bool(self.runner.holders(snapshot.request))
        request = snapshot.request if is_held else await self.writer.drop_finalizer(snapshot.request)
        if request is None:
            return await self._close(snapshot.request, state)
        now = self.clock.now()
        preparation_status = preparation(request, not state.rollback.has_begun, pod, state.attempt.content)
        report = success_report(request, preparation_status, pod, started_at, now)
        await self.writer.write_report(request, report, pod)
        self.metrics.request_finished(Phase.SUCCEEDED.value)
        if request.created is not None:
            self.metrics.bind_seconds.observe(max(0.0, (now - request.created).total_seconds()))
        ctx.log.info("pod is bound", extra={"node": request.selected_node})
        return await self._close(request, state)

    async def complete_as_executed(self, request: BindRequest, former: RequestState) -> Result | None:
        """Complete a request whose decision was changed after its execution; None if it was not executed.

        ``request``: as it is now; ``former``: the state of the decision that was executed.
        """
        begun_request = former.begun_request
        is_pending = request.phase is Phase.PENDING and not request.deleting
        if begun_request is None or begun_request.uid != request.uid or not is_pending:
            return None
        raw = {**request.raw, "spec": begun_request.raw["spec"]}
        as_executed = replace(request, raw=raw, spec=begun_request.spec, pod_uid=begun_request.pod_uid)
        snapshot = await self.reads.with_live_pod(as_executed)
        return await self.complete(snapshot, former) if is_bound_as_asked(as_executed, snapshot.pod_view) else None

    async def _fail_misdirected(self, snapshot: Snapshot, state: RequestState) -> Result:
        """Fail a request whose pod is not on its node after the bind, or is gone."""
        snapshot = await self.reads.with_live_pod(snapshot.request, state)
        state.attempt.end_bind()
        action = self.reads.decide_on(snapshot, state)
        if isinstance(action, Fail):
            return await self.fail(snapshot, state, action)
        state.overlay.invalidate()
        return REQUEUE

    async def fail(self, snapshot: Snapshot, state: RequestState, fail: Fail) -> Result:
        """Terminal failure: roll back, drop the finalizer, then report Failed. A bound pod's request is completed."""
        state.gang.leave()  # before any await: another pod of the gang must not rely on this one
        state.rollback.end_with(fail)
        request = snapshot.request
        has_effects = request.has_finalizer or state.rollback.side_effects is not None
        may_have_effects = not request.is_misnamed and (has_effects or request.is_rollback_incomplete)
        is_inherited = self.reads.may_predate_term(request)
        may_be_in_flight = is_inherited or state.attempt.may_have_late_writes
        if (may_have_effects or may_be_in_flight) and request.pod_key.name:
            # Failed is final, and what a running pod needs must not be rolled back: read the pod live.
            if Target.POD not in snapshot.live:
                snapshot = await self.reads.read_live(snapshot, Target.POD)
            if is_bound_as_asked(request, snapshot.pod_view):
                return await self.complete(snapshot, state)
        if (pending := await self._await_writes(snapshot, state)) is not None:
            return pending
        fail = await self._advised(snapshot, state, fail)
        if may_have_effects and (pending := await self._roll_back(snapshot, state, fail.status, fail)) is not None:
            return pending
        without_finalizer = await self.writer.drop_finalizer(request)
        if without_finalizer is not None:
            await self._report_failed(without_finalizer, snapshot, state, fail)
        return await self._close(request, state)

    async def _advised(self, snapshot: Snapshot, state: RequestState, fail: Fail) -> Fail:
        """Return the failure with the advice of the plugins, once. Raises ReconcileError if one must be asked again.

        If that does not help, the failure stays as it is: advice must not keep a request from its end.
        """
        if fail.is_advised or not snapshot.request.pod_key.name:
            return fail
        ctx = self.reads.context(await self.reads.with_pod(snapshot))
        advice = await self.runner.run_on_terminal_failure(ctx, fail.status)
        if advice.code is Code.TRANSIENT and not state.rollback.count_transient_failure():
            raise ReconcileError(advice.message, at_least=max(ROLLBACK_PAUSE, advice.retry_after or ROLLBACK_PAUSE))
        if advice.code is Code.FATAL:
            fail = fail.with_advice(advice)
        fail = replace(fail, is_advised=True)
        state.rollback.end_with(fail)
        return fail

    async def roll_back(self, snapshot: Snapshot, state: RequestState, why: Status) -> Result:
        """Roll back an abandoned request: being deleted, Failed with side effects, or of a release that ends."""
        state.gang.leave()
        if (pending := await self._await_writes(snapshot, state)) is not None:
            return pending
        if (pending := await self._roll_back(snapshot, state, why)) is not None:
            return pending
        request, now = snapshot.request, self.clock.now()
        self._withdraw_nomination(request, snapshot.named_pod)
        if request.phase is Phase.FAILED:
            # Failed by another controller: this one drops the finalizer before it writes Failed.
            request = await self.writer.patch_status(
                request, rolled_back_status(request, state.rollback.remains, now)
            )
        elif not request.deleting:
            request = await self.writer.patch_status(request, released_status(request, why.message, now))
        return await self.drop_finalizer(request, state)

    async def release_request(self, key: ObjectKey, state: RequestState) -> Result | None:
        """Roll back what a request has left that no finalizer holds, and drop the plugins' state of it.

        Returns when to continue; None at the end.
        """
        state.gang.leave()
        request = state.rollback.side_effects or (state.begun_request if state.attempt.may_have_late_writes else None)
        if request is not None:
            snapshot = await self.reads.with_live_pod(request)
            if not is_bound_as_asked(request, snapshot.pod_view):
                if (pending := await self._await_writes(snapshot, state)) is not None:
                    return pending
                why = Status.fatal("the request was withdrawn without a rollback", Reason.SUPERSEDED)
                if state.rollback.side_effects is not None and (
                    (pending := await self._roll_back(snapshot, state, why, is_orphan=True)) is not None
                ):
                    return pending
        if state.wait.nominated is not None:
            nominated = await self.reads.with_pod(self.reads.from_cache(state.wait.nominated, None))
            self._withdraw_nomination(state.wait.nominated, nominated.named_pod)
        await self.runner.drop_request(key, state.uid)
        return None

    async def drop_finalizer(self, request: BindRequest, state: RequestState) -> Result:
        """Drop the finalizer and close the request: nothing is left to roll back, or nothing may be rolled back."""
        await self.writer.drop_finalizer(request)
        return await self._close(request, state)

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

    def _record_cause(self, request: BindRequest, state: RequestState, why: str) -> None:
        """Queue the event of a cause, once."""
        if state.rollback.block(why):
            self.writer.record_event(request, Event("Warning", names.EVENT_RETRY, f"not complete yet: {why}"))

    async def _roll_back(
        self,
        snapshot: Snapshot,
        state: RequestState,
        why: Status,
        fail: Fail | None = None,
        *,
        is_orphan: bool = False,
    ) -> Result | None:
        """Call the plugins' rollback. Raises ReconcileError if it is incomplete.

        Returns when to roll back again if one of its own writes may still take effect; None at the end.
        An incomplete one is reported, with the failure that follows it; that of an orphan only in the log. Transient
        failures are not reported while there are few: a lost reply is not, a lasting failure is, because the
        scheduler waits for the result.
        """
        ctx = self.reads.context(snapshot)
        state.rollback.begin()
        with noting(state.attempt.writes):
            result = await self.runner.run_rollback(ctx, why)
        if result.code is Code.OK:
            if (pending := await self._await_writes(snapshot, state)) is None:
                state.rollback.complete(result.message)
            return pending
        if is_orphan:
            ctx.log.warning("rollback is delayed", extra={"why": result.message})
        elif result.code is not Code.TRANSIENT or state.rollback.count_transient_failure():
            await self._report_incomplete(snapshot, state, result, fail)
            ctx.log.warning("rollback is not complete", extra={"why": result.message})
        pause = max(ROLLBACK_PAUSE, result.retry_after or ROLLBACK_PAUSE)
        raise ReconcileError(result.message, at_least=pause)

    def _withdraw_nomination(self, request: BindRequest, pod: Object | None) -> None:
        """Queue the end of the pod's nomination to the request's node, which an attempt without a result has left."""
        if pod is not None and not is_bound_as_asked(request, pod_view(pod)):
            self.writer.nominate(pod, Nomination(request.selected_node, is_withdrawn=True))

    async def _report_incomplete(
        self, snapshot: Snapshot, state: RequestState, rollback: Status, fail: Fail | None
    ) -> None:
        request = snapshot.request
        await self.writer.patch_status(request, rollback_incomplete_status(request, fail, rollback, self.clock.now()))
        # After a restart the status already reports it: the previous process has sent the event.
        if not state.rollback.is_reported and not request.is_rollback_incomplete:
            event = Event("Warning", names.EVENT_ROLLBACK_FAILED, f"rollback is not complete: {rollback.message}")
            self.writer.record_event(request, event, on_pod=snapshot.named_pod is not None)
        state.rollback.note_report()

    async def _report_failed(self, request: BindRequest, snapshot: Snapshot, state: RequestState, fail: Fail) -> None:
        pod = snapshot.named_pod
        rollback, now = state.rollback, self.clock.now()
        report = failure_report(request, fail, rollback.is_complete, pod, now, rollback.remains)
        await self.writer.write_report(request, report, pod)
        self.metrics.request_finished(fail.reason.value, fail.plugin)
        log.warning("request has failed", extra={"reason": fail.name, "plugin": fail.plugin, "why": fail.message})

    async def _close(self, request: BindRequest, state: RequestState) -> Result:
        await self.runner.drop_request(request.key, request.uid)
        state.finish(request.resource_version)
        return DONE

    async def _await_writes(self, snapshot: Snapshot, state: RequestState) -> Result | None:
        """Return when to continue if a write without a reply may still take effect; None if none can.

        Until then nothing is rolled back, and no failure is reported as final.
        The pod must have been read live.
        """
        left = await self.reads.writes_in_flight(snapshot, state.attempt)
        if left <= timedelta():
            return None
        why = "a write of the previous leader, or one without a reply, may still take effect; the rollback follows"
        return Result(left, pending=why)
