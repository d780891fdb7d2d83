"""Runs one attempt for a request and acts on its outcome: preflight, pre_bind, bind, verify, classify, write.

Without failures, no API call precedes the Binding except the finalizer's and those of plugins. The caches are checked
once more, with no await between that check and the Binding; the Binding's own preconditions cover the rest.
``decide.outcome`` classifies the outcome; this module executes the result in one ``match``. Decision 104.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import assert_never

from reconciler.binding.complete import Completer
from reconciler.binding.deferred import DEFER, DeferredBind, DeferredCompletions
from reconciler.binding.pod_conditions import PodConditions
from reconciler.binding.read import StateReader
from reconciler.binding.requeue import Result, TransientFailures
from reconciler.binding.state import RequestState, Running
from reconciler.binding.timing import Timing
from reconciler.binding.waits import Waits
from reconciler.binding.writer import Writer
from reconciler.decide.decide import Complete, Fail, Wait
from reconciler.decide.observed import Snapshot, Target, Times, has_finalizer, is_bound_as_asked
from reconciler.decide.outcome import Outcome, RequeueNow, RetryAt, TransientFailure, classify_outcome
from reconciler.decide.transient import classify
from reconciler.informers import Informers
from reconciler.observe.tracker import Observation
from shared.api.bindrequest import BindRequest
from shared.framework.binding.context import BindContext
from shared.framework.binding.runner import WITHDRAWN, Runner
from shared.framework.config import Binding
from shared.framework.status import Code, Status
from shared.runtime.clock import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRunner:
    """Runs attempts. Methods raise the client's errors; repeating the reconcile after an error or a crash is safe.

    ``jitter`` returns a random number in [0, 1).
    """

    informers: Informers
    reader: StateReader
    runner: Runner
    writer: Writer
    conditions: PodConditions
    completer: Completer
    deferred: DeferredCompletions
    waits: Waits
    timing: Timing
    failures: TransientFailures
    observation: Observation
    limits: Binding
    clock: Clock
    jitter: Callable[[], float]

    async def run(self, snapshot: Snapshot, state: RequestState, *, has_side_effects: bool) -> Result:
        """Run an attempt and act on its outcome. If the previous outcome is not stored yet, only write that one.

        ``has_side_effects``: the attempt may leave side effects, so the finalizer is added first.
        """
        request = snapshot.request
        pending = state.attempt.pending_outcome
        if pending is not None and pending.failed_before == request.failed_attempts:
            # The failure must be counted before the next attempt starts.
            return await self._act(self.reader.context(snapshot), snapshot, state, pending.outcome)
        state.attempt.confirm()
        state.attempt.begin()
        started_at = self.clock.now()
        if has_side_effects:
            request = await self._hold(request, state)
            state.rollback.expect(request)
            snapshot = replace(snapshot, lookup=request)
        ctx = self.reader.context(snapshot)
        status, snapshot = await self._bind(ctx, snapshot, state)
        return await self._conclude(ctx, snapshot, state, Outcome(status, started_at))

    async def interrupt(self, snapshot: Snapshot, state: RequestState, why: str) -> Result:
        """Count an attempt that ended by an error of one of the reconciler's own calls."""
        outcome = Outcome(Status.retry(why), self.clock.now())
        return await self._conclude(self.reader.context(snapshot), snapshot, state, outcome)

    async def _conclude(self, ctx: BindContext, snapshot: Snapshot, state: RequestState, outcome: Outcome) -> Result:
        """Act on an attempt's result, after deciding whether a transient failure counts as the request's own."""
        status = outcome.status
        transient = status.may_be_transient
        if transient:
            status = classify(status, self.failures.note(snapshot.key, status.retry_after))
        self.observation.attempt_ended(ctx, status)
        result = await self._act(ctx, snapshot, state, replace(outcome, status=status))
        # Further transient failures extend the same streak.
        return replace(result, keeps_failures=True) if transient and result.requeue_after is not None else result

    async def _hold(self, request: BindRequest, state: RequestState) -> BindRequest:
        """Return the request with the finalizer added and, after a change of leader, fenced."""
        if not has_finalizer(request):
            return await self.writer.add_finalizer(request)
        if state.rollback.side_effects is None and self.completer.may_predate_term(request):
            # Fence the previous leader: a new resourceVersion makes any status write that it still has in flight fail
            # with a Conflict. Such a write would not describe what is prepared from here on.
            return await self.writer.fence(request)
        return request

    async def _bind(self, ctx: BindContext, snapshot: Snapshot, state: RequestState) -> tuple[Status, Snapshot]:
        """Run the attempt; return its status, OK only if the pod is on its node, and the snapshot after it."""
        request = snapshot.request
        node_uid = self.informers.node_uid(request.selected_node)
        running = Running(request, node_uid, ctx.cancelled, ctx.posts)
        state.attempt.run(running)
        try:
            status = await self._run_points(ctx, running)
        finally:
            state.attempt.stop()
            if running.past_point:
                state.rollback.prepare()
        snapshot = replace(snapshot, live=frozenset())  # read before the attempt
        is_ok = status.code is Code.OK
        is_unacknowledged = state.attempt.unacknowledged_at is not None
        may_be_unknown = (running.past_point and not ctx.posts.rejected) or is_unacknowledged
        if ctx.posts.acknowledged if is_ok else not may_be_unknown:
            return status, snapshot
        # The bind may have succeeded and only its reply been lost, in this attempt or in an earlier one. Or a bind
        # plugin has sent a Binding of its own.
        snapshot = await self.reader.read_live(snapshot, Target.POD)
        if is_bound_as_asked(request, snapshot.pod_view):
            return status if is_ok else Status.ok(), snapshot
        if not is_ok:
            return status, snapshot
        # A call that the plugin has sent may still take effect.
        state.attempt.doubt(self.clock.monotonic())
        why = f"bind answered OK, but pod {request.pod_key} is not on node {request.selected_node}"
        return Status.retry(why).from_plugin(status.plugin), snapshot

    async def _run_points(self, ctx: BindContext, running: Running) -> Status:
        """Call the plugins up to the Binding."""
        status = await self.runner.run_pre_bind(ctx)
        if status.code is not Code.OK:
            return status
        if ctx.cancelled.is_set() or not self.informers.still_wanted(running.request, running.node_uid):
            return WITHDRAWN
        running.pass_point()
        return await self.runner.run_bind(ctx)

    async def _act(self, ctx: BindContext, snapshot: Snapshot, state: RequestState, outcome: Outcome) -> Result:
        """Classify the attempt's outcome and execute the action. ``ctx``: the attempt's context, as for post_bind."""
        state.attempt.end()
        request = snapshot.request
        times = self.timing.times(request) if outcome.status.code is Code.WAIT else Times()
        action = classify_outcome(request, outcome, self.limits, self.jitter(), times, self.clock.now())
        match action:
            case Complete():
                if self.deferred.defer(request.key, DeferredBind(ctx, outcome.started_at)):
                    return DEFER
                return await self.completer.complete(ctx, state, outcome.started_at)
            case Fail():
                state.attempt.keep(outcome, request.failed_attempts)
                return await self.completer.fail(snapshot, state, action)
            case RetryAt():
                state.attempt.keep(outcome, request.failed_attempts)
                return await self._retry(snapshot, state, action)
            case Wait():
                # If the wait had expired but its failure could not be written, and the plugin waits again, nothing
                # has failed.
                state.attempt.confirm()
                return await self.waits.wait(request, state, action)
            case TransientFailure():
                return self.failures.requeue(request.key, action.why, action.after)
            case RequeueNow():
                state.overlay.invalidate()
                return self.failures.requeue(request.key, "the attempt was withdrawn")
            case _:
                assert_never(action)

    async def _retry(self, snapshot: Snapshot, state: RequestState, retry: RetryAt) -> Result:
        """Count and report the failed attempt; the next one follows after a pause."""
        request, pod = snapshot.request, snapshot.named_pod
        await self.writer.write_report(request, retry.report, on_pod=pod is not None)
        state.attempt.confirm()
        state.wait.end()
        self.timing.delay_retry(state, retry.pause)
        if pod is not None and retry.report.condition is not None:
            self.conditions.report(pod, retry.report.condition)
        return Result(retry.pause)
