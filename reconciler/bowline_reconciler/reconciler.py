"""Reconciles one request: read, decide, execute the decision.

Level-triggered: a reconcile starts from a key and the current state, never from an event's content. ``decide`` and
``outcome`` make the decisions; this module only executes them, in two ``match`` statements, and returns when to
process the key again. A reconcile that fails because of the API server leaves no trace and costs the request nothing,
unless the failure proves to be the request's own (``decide.transient``).
"""

import logging
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TypeGuard, assert_never

from bowline.api.bindrequest import BindRequest, Phase
from bowline.api.meta import ObjectKey, ResourceVersion, is_older
from bowline.framework.binding.context import BindContext
from bowline.framework.plugin_status import Status
from bowline.kube.errors import InfrastructureError, KubeError
from bowline.runtime.workers import DONE, REQUEUE, ReconcileError, Result
from bowline_reconciler.binding.attempt import AttemptRunner
from bowline_reconciler.binding.complete import ROLLBACK_PAUSE, Completer
from bowline_reconciler.binding.gangs import Gangs
from bowline_reconciler.binding.requeue import DeferredBind, Requeue
from bowline_reconciler.binding.state import RequestState
from bowline_reconciler.binding.store import RequestStore
from bowline_reconciler.binding.writer import Writer
from bowline_reconciler.decide.actions import (
    Action,
    Attempt,
    Complete,
    DropFinalizer,
    Fail,
    Forget,
    RequeueAfter,
    RequeueNow,
    RetryAt,
    Rollback,
    SetOwner,
    TransientFailure,
    Wait,
)
from bowline_reconciler.decide.snapshot import Absent, Outcome, Snapshot, Target
from bowline_reconciler.observe.tracker import Observation

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reconciler:
    """Reconciles requests. One instance per process; different keys are reconciled concurrently."""

    store: RequestStore
    attempts: AttemptRunner
    completer: Completer
    requeue: Requeue
    writer: Writer
    observation: Observation

    @classmethod
    def assemble(
        cls,
        store: RequestStore,
        requeue: Requeue,
        writer: Writer,
        observation: Observation,
        gangs: Gangs | None = None,
    ) -> "Reconciler":
        """Return a reconciler with its binding cycle. ``gangs``: None binds each pod by itself."""
        runner, clock = store.runner, store.clock
        attempts = AttemptRunner(store, store.informers, runner, writer, clock, gangs)
        completer = Completer(store, runner, writer, observation.metrics, clock)
        return cls(store, attempts, completer, requeue, writer, observation)

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of the in-memory state, by kind; entries are dropped with their requests."""
        states = self.store.states
        return {
            "requests": len(states),
            "pluginStates": self.store.runner.remembered,
            "waitIndex": len(self.requeue.index),
            "reportTurns": self.requeue.report_turns,
            "deferredCompletions": self.requeue.deferred_count,
            "podConditions": len(self.writer.conditions),
            "transientFailures": sum(state.failures.streak is not None for _, state in states.items()),
            "stale": len(self.store.stale_keys),
            "failing": len(self.observation.failing_keys),
            "waiting": len(self.observation.waiting),
        }

    async def reconcile(self, key: ObjectKey) -> Result:
        """Reconcile a key once and return when to process it again.

        Raises ReconcileError if it is to be requeued with the queue's rate limit, and other errors only on defects of
        Bowline itself.
        """
        self.requeue.index.unregister(key)
        try:
            return await self._reconcile(key)
        except KubeError as error:
            return await self._on_error(key, error)
        finally:
            state = self.store.states.get(key)
            if state is None or state.is_finished:
                self.requeue.discard_turn(key)

    def reset_failures(self) -> None:
        """The API server is available again after an outage: reset the transient failures."""
        for _, state in self.store.states.items():
            state.failures.reset()

    # --- watch events ---

    def on_cached(self, key: ObjectKey) -> None:
        """Withdraw a running attempt if, by the caches, its request was withdrawn."""
        state, cached_request = self.store.states.get(key), self.store.informers.request(key)
        if state is not None:
            if cached_request is not None and cached_request.uid == state.uid:
                state.overlay.show(cached_request.resource_version)
            self.attempts.stop_if_withdrawn(state)

    def should_enqueue(self, key: ObjectKey) -> bool:
        """Return whether a change of the request or its pod can require a reconcile."""
        if self.requeue.is_deferred(key):
            return False  # bound by this process, and queued with low priority
        state, cached_request = self.store.states.get(key), self.store.informers.request(key)
        # Events of the request's own completion: two follow every bind.
        return state is None or not state.is_finished or cached_request is None or cached_request.uid != state.uid

    def on_delete(self, key: ObjectKey, is_queued: bool) -> bool:
        """Handle that a request has left the watch (it may still exist); return whether to enqueue it.

        The state of a finished request is dropped, unless the key is queued: without the state that reconcile would
        make a live read.
        """
        state = self.store.states.get(key)
        if state is None:
            return True
        state.attempt.withdraw()
        if state.is_finished and not is_queued:
            self.store.states.drop(key)
        return not state.is_finished

    def on_list(self, version: ResourceVersion) -> None:
        """Drop the finished requests that the watch has skipped: no event of them follows a list of that version."""
        for key, state in list(self.store.states.items()):
            final_version = state.overlay.final_version
            if final_version is None or is_older(version, final_version):
                continue
            if self.store.informers.request(key) is None:
                self.store.states.drop(key)

    # --- leadership ---

    def start_term(self, since: float, stale: Collection[ObjectKey], newest: datetime | None) -> None:
        """Begin a leadership term. See ``RequestStore.begin``."""
        self.store.start_term(since, stale, newest)
        self.writer.conditions.start()

    def withdraw(self) -> None:
        """Withdraw every attempt: the term is over, and the next leader waits for the last POST's end."""
        for _, state in self.store.states.items():
            state.attempt.withdraw()

    async def end_term(self) -> None:
        """Drop all state: this process's next term starts from the API objects, as any other process would."""
        await self.writer.conditions.stop()
        for key, uid in self.store.clear():
            await self.store.runner.drop_request(key, uid)
        self.requeue.clear()

    # --- one reconcile ---

    async def _reconcile(self, key: ObjectKey) -> Result:
        states = self.store.states
        cached_request, state = self.store.informers.request(key), states.get(key)
        if state is None and cached_request is not None:
            state = states.ensure(cached_request)
        own_state = state
        if state is not None and cached_request is not None and cached_request.uid != state.uid:
            # One of the two is the previous request of that name: the state, unless the cache is known to be behind.
            own_state = state if state.overlay.precedes(cached_request) else None
        if own_state is not None and own_state.is_finished:
            if cached_request is None:
                # It has left the watch; no further event follows.
                states.drop(key)
            return DONE
        latest, needs_live_read = cached_request, False
        if own_state is not None:
            own_state.overlay.observe(cached_request)
            latest, needs_live_read = own_state.overlay.latest(cached_request), own_state.overlay.needs_live_read
        bound = self.requeue.pop_deferred(key)
        if bound is not None and own_state is not None and is_resumable(latest):
            self.observation.on_decision(latest, Complete())
            ctx = replace(bound.context, request=latest)
            return await self.completer.complete(ctx, own_state, bound.started_at)
        snapshot, action = await self.store.read(key, latest, is_stale=needs_live_read)
        request = snapshot.lookup if isinstance(snapshot.lookup, BindRequest) else None
        if state is not None and (request is None or request.uid != state.uid):
            # A request that moved to another shard keeps its side effects: its finalizer hands them over.
            roll_back = snapshot.lookup is not Absent.ELSEWHERE
            pending = await self.completer.release_request(key, state, roll_back=roll_back)
            if pending is not None:
                return pending
            states.drop(key)
        if request is None:
            return DONE
        state = states.ensure(request)
        state.overlay.confirm()
        if Target.REQUEST in snapshot.live and cached_request is not None:
            state.overlay.replace(cached_request, request)
        self.observation.on_decision(request, action)
        return await self._execute(action, request, snapshot, state)

    async def _execute(self, action: Action, request: BindRequest, snapshot: Snapshot, state: RequestState) -> Result:
        begins = isinstance(action, Attempt | Fail | Rollback)
        if begins and request.pod_uid and not self.store.states.acquire_pod(request):
            return Result(ROLLBACK_PAUSE)  # another request has begun since the decision
        match action:
            case Attempt():
                return await self._attempt(snapshot, state, action.effects)
            case Complete():
                return await self.completer.complete(self.store.context(snapshot), state)
            case Fail():
                return await self.completer.fail(snapshot, state, action)
            case Rollback():
                return await self.completer.roll_back(snapshot, state, Status.fatal(action.why, action.reason))
            case DropFinalizer():
                return await self.completer.drop_finalizer(request, state)
            case SetOwner():
                state.attempt.start()
                await self.writer.set_owner(request, action.pod_uid)
                return REQUEUE
            case Wait():
                return await self.requeue.after_wait(request, state, action, snapshot.named_pod)
            case RequeueAfter():
                is_pause = request.failed_attempts and not action.why and state.attempt.retry_at is None
                return self.requeue.retry(state, action.after) if is_pause else Result(action.after)
            case Forget():
                return await self._forget(request, state)
            case _:
                assert_never(action)

    async def _forget(self, request: BindRequest, state: RequestState) -> Result:
        """Drop the state: nothing is left to do, unless another client has removed the finalizer too early."""
        pending = await self.completer.release_request(request.key, state, roll_back=True)
        if pending is not None:
            return pending
        state.finish(request.resource_version)
        self.store.states.release_pod(request.key, state)
        if self.store.informers.request(request.key) is None:
            self.store.states.drop(request.key)  # no watch will report its deletion
        return DONE

    # --- attempts ---

    async def _attempt(self, snapshot: Snapshot, state: RequestState, effects: frozenset[str]) -> Result:
        """Run an attempt and act on its outcome. If the previous outcome is not stored yet, only write that one."""
        pending = state.attempt.pending_outcome
        if pending is not None and pending.failed_before == snapshot.request.failed_attempts:
            # The failure must be counted before the next attempt starts.
            return await self._follow_up(self.store.context(snapshot), snapshot, state, pending.outcome)
        result = await self.attempts.run(snapshot, state, effects)
        if not result.outcome.status.may_be_transient:
            state.failures.reset()
        return await self._conclude(result.context, result.snapshot, state, result.outcome)

    async def _conclude(self, ctx: BindContext, snapshot: Snapshot, state: RequestState, outcome: Outcome) -> Result:
        """Act on an attempt's outcome, after deciding whether a transient failure counts as the request's own."""
        status = outcome.status
        if status.may_be_transient:
            self.requeue.extend_streak(state, status.retry_after)
            status = state.failures.classify(status)
        self.observation.attempt_ended(ctx, status)
        return await self._follow_up(ctx, snapshot, state, replace(outcome, status=status))

    async def _follow_up(self, ctx: BindContext, snapshot: Snapshot, state: RequestState, outcome: Outcome) -> Result:
        """Execute what follows from an attempt's outcome. ``ctx``: the attempt's context, as for post_bind."""
        state.attempt.finish()
        request = snapshot.request
        action = self.store.follow_up(request, outcome)
        match action:
            case Complete():
                deferred = self.requeue.defer(request.key, DeferredBind(ctx, outcome.started_at))
                return deferred or await self.completer.complete(ctx, state, outcome.started_at)
            case Fail():
                return await self.completer.fail(snapshot, state, action)
            case RetryAt():
                state.attempt.keep(outcome, request.failed_attempts)
                await self.writer.write_report(request, action.report, snapshot.named_pod)
                state.attempt.confirm()
                state.wait.finish()
                state.wait.nominate(request)
                return self.requeue.retry(state, action.pause)
            case Wait():
                # If the wait had expired but its failure could not be written, and the plugin waits again, nothing
                # has failed.
                state.attempt.confirm()
                return await self.requeue.after_wait(request, state, action, snapshot.named_pod)
            case TransientFailure():
                raise await self._failure(request.key, state, action.why, action.after)
            case RequeueNow():
                state.overlay.invalidate()
                raise await self._failure(request.key, state, "the attempt was withdrawn")
            case _:
                assert_never(action)

    # --- failures ---

    async def _on_error(self, key: ObjectKey, error: KubeError) -> Result:
        """Report the failure of a call if it is the request's own; otherwise raise ReconcileError."""
        why, state = str(error), self.store.states.get(key)
        retry_after = error.retry_after if isinstance(error, InfrastructureError) else None
        if state is not None and not state.is_finished:
            if not isinstance(error, InfrastructureError):
                # Another client wrote in between, or a policy denies the write: the next reconcile starts with a live
                # read.
                state.overlay.invalidate()
            self.requeue.extend_streak(state, retry_after)
            if state.failures.is_own:
                try:
                    result = await self._report(key, state, why)
                except KubeError as report_error:
                    log.debug("a failure is not reported", extra={"error": str(report_error)})
                else:
                    if result is not None:
                        return result
        raise await self._failure(key, state, why, retry_after) from error

    async def _report(self, key: ObjectKey, state: RequestState, why: str) -> Result | None:
        """Count a failed attempt if one was in progress; otherwise report only why the request is not complete."""
        was_attempting = state.attempt.finish()
        request = state.overlay.latest(self.store.informers.request(key))
        if request is None or request.uid != state.uid or request.deleting:
            return None
        if was_attempting:
            snapshot = await self.store.with_pod(self.store.from_cache(key, request))
            outcome = Outcome(Status.retry(why), self.store.clock.now())
            return await self._conclude(self.store.context(snapshot), snapshot, state, outcome)
        await self.completer.report_blocked(request, state, why)
        return None

    async def _failure(
        self, key: ObjectKey, state: RequestState | None, why: str, retry_after: timedelta | None = None
    ) -> ReconcileError:
        """Return the error that requeues a request whose reconcile has failed; failures that last are reported."""
        if state is not None and retry_after is None and self.requeue.may_notice(key, state):
            await self._notice(key, state, why)
        self.observation.on_transient_failure(key, why, is_quiet=state is None or state.failures.is_quiet)
        return self.requeue.error(why, state, retry_after)

    async def _notice(self, key: ObjectKey, state: RequestState, why: str) -> None:
        """Report a failure in status and event, without counting it."""
        request = state.overlay.latest(self.store.informers.request(key))
        if state.is_finished or request is None or request.uid != state.uid:
            return
        try:
            await self.completer.report_blocked(request, state, why)
        except KubeError as error:
            state.failures.notice(self.store.clock.monotonic())
            log.debug("a failure is not reported", extra={"error": str(error)})


def is_resumable(latest: BindRequest | None) -> TypeGuard[BindRequest]:
    """Return whether a deferred completion can continue; if not, an ordinary reconcile must decide."""
    return latest is not None and not latest.deleting and latest.phase is Phase.PENDING
