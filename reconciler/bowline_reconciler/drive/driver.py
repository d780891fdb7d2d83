"""Drives a request: asks ``decide.step`` for the next effect, executes it, and adds what it has learnt.

Each effect of an attempt or of an end is a few calls. Nothing here decides what follows. Without failures, no API
call precedes the Binding except the finalizer's and those of plugins. From its beginning an attempt is withdrawn by
the events of the caches (``requeue.WatchEvents``), which are not read once more before the Binding; the Binding's own
preconditions cover the rest.

**Deferred completions**: completing (post_bind, finalizer, Succeeded, event) takes more writes than the bind itself,
and the pod starts without it. So while other request keys are ready, a bound request is requeued with low priority;
that lane always has a share of the workers. Losing this state is safe: after a restart the pod is found on its node,
and the request is completed.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, assert_never

from bowline.api.gang import gang_of
from bowline.api.meta import ObjectKey, uid_of
from bowline.framework.binding.runner import Runner
from bowline.framework.config import Binding
from bowline.framework.interface.context import BindContext
from bowline.framework.interface.status import Cancelled, Done, Status, Transient, Waiting
from bowline.kube.writes import noting
from bowline.runtime.clock import Clock
from bowline.runtime.workers import DONE, REQUEUE, Priority, ReconcileError, Result
from bowline_reconciler.decide import actions, step
from bowline_reconciler.decide.outcome import classify_outcome
from bowline_reconciler.decide.report import sentence
from bowline_reconciler.decide.snapshot import Absent, PodView, Snapshot, Target, Times, is_bound_as_asked, pod_view
from bowline_reconciler.decide.transient import NO_FAILURES, classify
from bowline_reconciler.drive.gangs import Gangs
from bowline_reconciler.drive.in_flight import InFlightWrites
from bowline_reconciler.drive.reads import Reads
from bowline_reconciler.drive.reporter import Reporter
from bowline_reconciler.drive.requeue import Requeue
from bowline_reconciler.drive.state import Deferred, Progress, RequestState, RequestStates
from bowline_reconciler.drive.writer import Writer
from bowline_reconciler.observe import Observation
from bowline_reconciler.watch.bound_pods import SentBind
from bowline_reconciler.watch.informers import Informers

log = logging.getLogger(__name__)

ROLLBACK_PAUSE = timedelta(seconds=1)
# After a crash the next process needs one live read for each of them; 500 take a few seconds.
MAX_DEFERRED = 500
DEFER = Result(timedelta(), Priority.LOW)


@dataclass(slots=True)
class Work:
    """A request in one reconcile. ``context``: of its attempt; ``started_at``: when that began.

    ``read_at``: a pod that was read live was read after this, monotonic.
    """

    snapshot: Snapshot
    state: RequestState
    read_at: float
    context: BindContext | None = None
    started_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Driver:
    """Executes decisions. Methods raise the client's errors; repeating an effect after an error or a crash is safe.

    ``is_busy`` returns whether other keys are ready, ``jitter`` a random number in [0, 1).
    """

    reads: Reads
    states: RequestStates
    informers: Informers
    in_flight: InFlightWrites
    runner: Runner
    writer: Writer
    reporter: Reporter
    requeue: Requeue
    observation: Observation
    clock: Clock
    limits: Binding
    is_busy: Callable[[], bool]
    jitter: Callable[[], float]
    gangs: Gangs | None = None

    async def drive(
        self, snapshot: Snapshot, state: RequestState, decision: step.Decided, *, deferred: Deferred | None = None
    ) -> Result:
        """Execute one effect after another, until the request is closed or rests; returns when to continue.

        ``deferred``: the completion that goes on. Raises ReconcileError if an effect must be repeated.
        """
        since = state.stage.since if isinstance(state.stage, Progress) else None
        work, may_defer = Work(snapshot, state, self.clock.monotonic() if since is None else since), False
        if deferred is not None:
            work.context, work.started_at = deferred.context, deferred.started_at
        try:
            while True:
                effect: step.Following
                if isinstance(decision, actions.Attempt):
                    effect = await self._attempt(work, decision)
                    may_defer = self.is_busy() and self.states.deferred_count < MAX_DEFERRED
                else:
                    effect, may_defer = await self._end(work, decision, may_defer=may_defer), False
                match effect:
                    case actions.Complete() | actions.Fail() | actions.Attempt():
                        decision = effect
                    case step.Last.CLOSE:
                        if not isinstance(decision, step.Abandon):
                            await self.runner.forget(snapshot.request.key, state.of_plugins)
                            self.states.drop(snapshot.request.key)
                        return DONE
                    case step.Last.RECONSIDER if (failure := await self._reconsidered(work)) is not None:
                        decision = failure
                    case _:
                        return await self._rest(effect, work)
        except BaseException:
            state.attempt.running = None
            raise

    async def abandon(self, key: ObjectKey, state: RequestState) -> Result | None:
        """Undo what the request has left that no finalizer records; returns when to continue, None at the end."""
        late = state.begun_request if state.attempt.writes else None
        leftover = state.rollback.side_effects or late
        if leftover is not None:
            result = await self.drive(self.reads.from_cache(leftover, None), state, step.Abandon())
            if result is not DONE:
                return result
        state.gang.leave()
        if (nominated := state.wait.nominated) is not None:
            self.reporter.withdraw_nomination(await self.reads.with_pod(self.reads.from_cache(nominated, None)))
        await self.runner.forget(key, state.of_plugins)
        return None

    # --- what ends a reconcile ---

    async def _rest(self, effect: step.Rest, work: Work) -> Result:
        """Return when to continue. Raises ReconcileError if the reconcile has failed."""
        snapshot, state, request = work.snapshot, work.state, work.snapshot.request
        match effect:
            case actions.Wait():
                return await self.requeue.after_wait(snapshot, state, effect)
            case actions.RetryAt():
                return await self.requeue.after_attempt(snapshot, state, effect)
            case actions.RequeueAfter():
                is_pause = request.failed_attempts and not effect.why and state.attempt.retry_at is None
                return (
                    self.requeue.retry(state, effect.after) if is_pause else Result(effect.after, pending=effect.why)
                )
            case Transient():
                why = sentence(effect.message, effect.plugin)
                raise self.requeue.failure(request.key, state, why, effect.retry_after)
            case Cancelled():
                self.informers.request_cache.mark_stale((request.key,))
                raise self.requeue.failure(request.key, state, "the attempt was withdrawn")
            case actions.SetOwner():
                state.attempt.is_open = True  # another reconcile goes on with the request's present pod
                await self.writer.set_owner(request, effect.pod_uid)
                return REQUEUE
            case actions.Forget():
                # Nothing is left to do, unless another client has removed the finalizer too early.
                pending = await self.abandon(request.key, state)
                if pending is not None:
                    return pending
                self.states.drop(request.key)
                return DONE
            case step.Last.DEFER:
                self.states.defer(state, Deferred(work.context, work.started_at))
                return DEFER
            case step.Last.RECONSIDER:
                self.informers.request_cache.mark_stale((request.key,))
                return REQUEUE
            case _:
                assert_never(effect)

    async def _reconsidered(self, work: Work) -> actions.Fail | None:
        """Return the failure of a request whose pod is not on its node after the bind, or is gone, if it is one."""
        work.snapshot = await self.reads.with_live_pod(work.snapshot.request, work.state)
        if (bind := work.state.attempt.bind) is not None:
            bind.is_acknowledged = False
        return self.reads.failure(work.snapshot)

    # --- an end, and what is decided without an attempt ---

    async def _end(self, work: Work, decision: step.Decided, *, may_defer: bool) -> step.Following:
        """Execute effects; returns the first one that ends the reconcile or begins something else."""
        state, facts = work.state, self._facts(work, decision, may_defer=may_defer)
        while True:
            snapshot, request, news = work.snapshot, work.snapshot.request, dict[str, Any]()
            match effect := step.end_step(decision, facts):
                case step.AtEnd.READ_POD | step.AtEnd.READ_BOUND_POD:
                    bind = state.attempt.bind if effect is step.AtEnd.READ_BOUND_POD else None
                    is_awaited = bind is not None and bind.is_acknowledged
                    pod = await self.informers.bound_pods.pod_of(bind) if bind is not None and is_awaited else None
                    if pod is None:
                        await self._read_pod(work)
                    else:
                        work.snapshot = replace(snapshot, pod=pod_view(pod))
                    is_bound = is_bound_as_asked(request, work.snapshot.pod)
                    news = {"is_bound": is_bound, "is_pod_live": pod is None, "has_read_bound_pod": is_awaited}
                    if facts.has_late_writes:
                        news |= self.in_flight.facts(work.snapshot, state.attempt.writes, work.read_at)
                case step.AtEnd.RUN_POST_BIND:
                    ctx = work.context
                    if ctx is not None and isinstance(snapshot.pod, PodView):
                        ctx = replace(ctx, request=request, pod=snapshot.pod.raw, views={})
                    news = {"has_run_post_bind": True, "is_held": bool(self.runner.holders(request))}
                    await self.runner.run_post_bind(ctx or self.reads.context(snapshot, state))
                case step.Undo():
                    news = await self._undo(work, effect.decision)
                case actions.DropFinalizer():
                    remaining = await self.writer.drop_finalizer(request)
                    if remaining is None:
                        self.informers.request_cache.end(request.key, request)
                    news = {"request": remaining or request, "is_gone": remaining is None}
                case step.ReportEnd():
                    stored_request = await self.reporter.report(effect.decision, snapshot, state, work.started_at)
                    news = {"request": stored_request, "has_reported": True}
                case step.Conclude():
                    return await self._conclude(effect, work, decision)
                case _:
                    return effect
            facts = replace(facts, **news)
            if facts.request is not request:
                work.snapshot = replace(work.snapshot, request=facts.request)

    def _facts(self, work: Work, decision: step.Decided, *, may_defer: bool) -> step.Facts:
        """Return what is known when something else than an attempt begins, before any await.

        A failure that has begun is remembered, and no other pod of the gang relies on this one.
        """
        snapshot, state = work.snapshot, work.state
        state.attempt.is_open = False  # a call that fails from here on counts as no attempt
        is_undoing = isinstance(decision, actions.Fail | actions.Rollback | step.Abandon)
        is_pod_live = Target.POD in snapshot.live
        if is_undoing and state.gang.prepared_pods is not None:
            state.gang.leave()
        if isinstance(decision, actions.Fail):
            state.rollback.ending = decision
        if not isinstance(decision, actions.Complete):
            work.context, work.started_at = None, None
        late = self.in_flight.facts(snapshot, state.attempt.writes, work.read_at) if is_undoing else {}
        return step.Facts(
            snapshot.request,
            is_bound=is_pod_live and is_bound_as_asked(snapshot.request, snapshot.pod),
            is_pod_live=is_pod_live,
            has_side_effects=state.rollback.side_effects is not None,
            may_defer=may_defer,
            **late,
        )

    async def _read_pod(self, work: Work) -> None:
        """Read the pod live. What may still take effect is counted from before: the pod has what took effect."""
        work.read_at = self.clock.monotonic()
        work.snapshot = await self.reads.read_live(work.snapshot, Target.POD)

    async def _undo(self, work: Work, decision: actions.Fail | actions.Rollback | step.Abandon) -> dict[str, Any]:
        """Call the plugins' rollback. Raises ReconcileError if it is incomplete.

        While one of its own writes may still take effect, it is to be repeated. An incomplete one is reported, with
        the failure that follows it; that of an orphan only in the log. Transient failures are not reported while
        there are few: a lost reply is not, a lasting failure is, because the scheduler waits for the result.
        """
        attempt, rollback, snapshot = work.state.attempt, work.state.rollback, work.snapshot
        fail, is_orphan = decision if isinstance(decision, actions.Fail) else None, isinstance(decision, step.Abandon)
        why = decision.status if isinstance(decision, actions.Fail) else decision.why
        ctx = self.reads.context(snapshot, work.state)
        rollback.has_begun = True
        with noting(attempt.writes):
            result = await self.runner.run_rollback(ctx, why)
        if isinstance(result, Done):
            now = self.clock.monotonic()
            late = self.in_flight.facts(snapshot, attempt.writes, now) if attempt.writes else {}
            is_quiet = not late.get("quiet_in")
            if is_quiet:
                rollback.side_effects, rollback.is_complete, rollback.remains = None, True, result.message
            return {"has_undone": is_quiet, "has_side_effects": rollback.side_effects is not None, **late}
        if isinstance(result, Transient):
            self.requeue.extend_streak(work.state, result.retry_after)
        if is_orphan:
            log.warning("rollback is delayed", extra={"why": result.message})
        elif not isinstance(result, Transient) or not work.state.failures.is_quiet:
            await self.reporter.incomplete(snapshot, result, fail)
            log.warning("rollback is not complete", extra={"why": result.message})
        raise ReconcileError(result.message, at_least=max(ROLLBACK_PAUSE, result.retry_after or ROLLBACK_PAUSE))

    # --- an attempt ---

    async def _attempt(self, work: Work, decision: actions.Attempt) -> actions.OutcomeAction:
        """Execute the effects of an attempt; returns what its result means for the request."""
        state, attempt, facts = work.state, work.state.attempt, self._begun(work, decision)
        while True:
            request, news = work.snapshot.request, dict[str, Any]()
            match effect := step.attempt_step(facts):
                case step.InAttempt.RECORD:
                    stored_request = await self.writer.add_finalizer(request, facts.plugins)
                    news = {"request": stored_request, "stage": step.Stage.RECORDED}
                case step.InAttempt.PREPARE:
                    if request.has_finalizer:  # it records that side effects may exist from here on
                        state.rollback.side_effects, state.rollback.has_begun = request, False
                        state.rollback.is_complete = False
                    ctx = work.context = self.reads.context(work.snapshot, state)
                    with noting(attempt.writes):
                        status = await self.runner.run_pre_bind(ctx)
                    if not isinstance(status, Done) and state.gang.prepared_pods is not None:
                        state.gang.leave()
                    gang = gang_of(ctx.pod) if self.gangs is not None and ctx.pod is not None else None
                    news = {"stage": step.Stage.PREPARED, "status": status, "gang": gang}
                case step.InAttempt.GATHER:
                    assert self.gangs is not None and facts.gang is not None  # noqa: S101, PT018 - it is in one
                    status = await self.gangs.admit(request, facts.gang, state)
                    news = {"stage": step.Stage.GATHERED, "status": status}
                case step.InAttempt.POST:
                    news = await self._post(work)
                case step.InAttempt.READ_POD:
                    news = await self._look_at_pod(work)
                case step.Blame():
                    news["status"] = self._blame(work, effect.plugin)
                case step.Conclude():
                    return await self._conclude(effect, work, decision)
                case _:
                    assert_never(effect)
            if attempt.running is not None:
                news["is_withdrawn"] = attempt.running.cancelled.is_set()
            facts = replace(facts, **news)
            if facts.request is not request:
                work.snapshot = replace(work.snapshot, request=facts.request)

    async def _look_at_pod(self, work: Work) -> dict[str, Any]:
        """Read the pod that anybody may have bound; returns the new facts."""
        await self._read_pod(work)
        if is_bound_as_asked(work.snapshot.request, work.snapshot.pod):
            return {"is_pod_live": True, "is_bound": True}
        return {"is_pod_live": True, "end": self.reads.failure(work.snapshot)}

    def _begun(self, work: Work, decision: actions.Attempt) -> step.AttemptFacts:
        """Begin an attempt, before any await; returns what is known."""
        snapshot, state, attempt = work.snapshot, work.state, work.state.attempt
        request, pending = snapshot.request, attempt.pending_outcome
        if pending is not None and attempt.failed_before == request.failed_attempts:
            work.started_at = pending.started_at
            return step.AttemptFacts(request, uncounted=pending.status)
        node = None if isinstance(snapshot.node, Absent) or Target.NODE in snapshot.live else snapshot.node
        running = attempt.begin(request, uid_of(node.raw) if node is not None else None)
        if snapshot.live and not self.informers.still_wanted(request, running.node_uid):
            attempt.withdraw()  # it has changed during the live read
        is_known = state.rollback.side_effects is not None or not request.has_finalizer
        # What was read live was so before the attempt.
        work.snapshot, work.started_at = replace(snapshot, live=frozenset()), self.clock.now()
        return step.AttemptFacts(
            request,
            decision.effects,
            is_inherited=not is_known and self.in_flight.may_predate_term(request),
            is_withdrawn=running.cancelled.is_set(),
            has_lost_reply=attempt.writes.has_lost_binding,
        )

    async def _post(self, work: Work) -> dict[str, Any]:
        """Call the plugins' bind, past the point of no return; returns the new facts."""
        ctx, attempt, request = work.context, work.state.attempt, work.snapshot.request
        assert ctx is not None  # noqa: S101 - it is prepared
        # The Runner collects the content from here on, and no plugin replaces it.
        bind = SentBind(request.pod_uid, {"annotations": ctx.annotations, "labels": ctx.labels})
        attempt.past_point, attempt.bind = True, bind
        with noting(attempt.writes):
            status = await self.runner.run_bind(ctx)
        ctx.views.clear()  # the context is kept until the bind is completed, and post_bind receives the bound pod
        posts = ctx.posts
        if self.gangs is not None and ctx.pod is not None and posts.acknowledged:
            self.gangs.bound(ctx.pod)
        bind.is_acknowledged = isinstance(status, Done) and posts.acknowledged
        return {
            "stage": step.Stage.POSTED,
            "status": status,
            "is_acknowledged": posts.acknowledged,
            "is_rejected": posts.rejected,
            "has_lost_reply": attempt.writes.has_lost_binding,
        }

    def _blame(self, work: Work, plugin: str) -> Status:
        """Report the defect of a bind plugin. A call that it has sent may still take effect."""
        request, ctx = work.snapshot.request, work.context
        assert ctx is not None  # noqa: S101 - its bind was called
        work.state.attempt.writes.lose(self.clock.monotonic(), is_binding=True)
        why = f"answered OK, but pod {request.pod_key} is not on node {request.selected_node}"
        return self.runner.bound_nothing(ctx, plugin, why)

    async def _conclude(self, effect: step.Conclude, work: Work, decision: step.Decided) -> actions.OutcomeAction:
        """End the attempt, after deciding whether a transient failure counts; returns what its result means."""
        state, status, now = work.state, effect.status, self.clock.now()
        state.attempt.running, state.attempt.is_open = None, False  # its result is known
        if isinstance(decision, step.Conclude):
            work.snapshot = await self.reads.with_pod(work.snapshot)
        context = work.context = work.context or self.reads.context(work.snapshot, state)
        if effect.is_new:
            if status.may_be_transient:
                self.requeue.extend_streak(state, status.retry_after if isinstance(status, Transient) else None)
                status = classify(status, state.failures)
            elif isinstance(decision, actions.Attempt):
                state.failures = NO_FAILURES
            stage = state.stage
            self.observation.attempt_ended(context, status, stage.since if isinstance(stage, Progress) else None)
        started_at = work.started_at = work.started_at or now
        times = self.reads.times(work.snapshot.request, state) if isinstance(status, Waiting) else Times()
        outcome, jitter = actions.Outcome(status, started_at), self.jitter()
        return classify_outcome(work.snapshot.request, outcome, self.limits, jitter, times, now)
