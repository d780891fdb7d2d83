"""Runs one attempt for a request and acts on its outcome: run, verify, classify, write.

``decide.outcome.settle`` classifies the outcome; this module executes the result in one ``match``. Before an action
that cannot be undone, the pod is read from the API server, not from the cache. Decision 104.
"""

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import assert_never

from reconciler.binding.complete import Completer, has_finalizer
from reconciler.binding.deferred import LATER, Bound, DeferredCompletions
from reconciler.binding.read import Snapshot, StateReader
from reconciler.binding.requeue import DONE, Result, TransientFailures
from reconciler.binding.run_attempt import run_attempt
from reconciler.binding.state import RequestState, Running, Unsaved
from reconciler.binding.timing import Timing
from reconciler.binding.wait_index import WaitIndex
from reconciler.binding.waits import Waits
from reconciler.decide.decide import Fail, Finish, WaitCause, is_bound_as_asked, wait_left
from reconciler.decide.observed import Absent, Target
from reconciler.decide.outcome import Limits, Outcome, RequeueNow, RetryAt, TransientFailure, Waiting, settle
from reconciler.decide.transient import classified, is_transient
from reconciler.informers import Informers
from reconciler.observe.passes import attempt_id
from reconciler.observe.tracker import Observation
from shared.api import names
from shared.api.bindrequest import BindRequest
from shared.framework.binding.context import BindContext, copied
from shared.framework.binding.runner import Runner
from shared.framework.config import Settings
from shared.framework.status import Code, Status
from shared.kube.client import KubeClient
from shared.runtime.clock import Clock
from shared.runtime.logging import with_fields

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Tools:
    """Dependencies of a reconcile. ``jitter`` returns a random number in [0, 1)."""

    client: KubeClient
    stores: Informers
    sleepers: WaitIndex
    afterwards: DeferredCompletions
    runner: Runner
    ending: Completer
    observation: Observation
    settings: Settings
    clock: Clock
    jitter: Callable[[], float] = random.random

    def limits(self) -> Limits:
        """Return the limits that outcomes depend on, with a fresh jitter value."""
        binding = self.settings.binding
        return Limits(
            binding.backoff_limit, binding.backoff.base, binding.backoff.max, binding.wait_timeout, self.jitter()
        )


class Attempts:
    """Runs attempts. Methods raise the client's errors; repeating the reconcile after an error or a crash is safe."""

    def __init__(self, tools: Tools, lookout: StateReader, failures: TransientFailures, timing: Timing) -> None:
        self._tools = tools
        self._runner = tools.runner
        self._ending = tools.ending
        self._clock = tools.clock
        self._lookout = lookout
        self._failures = failures
        self.timing = timing
        self.waits = Waits(tools.ending, tools.sleepers, tools.jitter, tools.clock.monotonic)

    def context(self, sight: Snapshot, request: BindRequest) -> BindContext:
        """Return the context that plugins receive: deep copies of the request, the pod and the node."""
        attempt = attempt_id(request)
        timeout = self._tools.settings.binding.wait_timeout
        left = wait_left(timeout, self.timing.times(request))
        return BindContext(
            request=replace(request, raw=copied(request.raw)),
            # Copies: whatever a plugin writes into them, the cached objects stay unchanged.
            pod=None if isinstance(sight.pod, Absent) else copied(sight.pod),
            node=None if isinstance(sight.node, Absent) else copied(sight.node),
            attempt=request.failed_attempts + 1,
            attempt_id=attempt,
            annotations={names.PREPARED_FOR: request.uid},
            deadline=self._clock.now() + left,
            client=self._tools.client,
            log=with_fields(log, bindRequest=str(request.key), pod=str(request.pod_key), attempt=attempt),
        )

    async def attempt(self, sight: Snapshot, request: BindRequest, memory: RequestState) -> Result:
        """Run an attempt and act on its outcome. If the previous outcome is not stored yet, only write that one."""
        unsaved = memory.unsaved
        if unsaved is not None and unsaved.failed_before == request.failed_attempts:
            # The failure must be counted before the next attempt starts.
            return await self._settle(self.context(sight, request), sight, memory, unsaved.outcome)
        memory.unsaved = None
        memory.attempting = True
        started = self._clock.now()
        if self._runner.has_side_effects(request):
            sight.request = request = await self._held(request, memory)
            memory.effects = request
            memory.rolled_back = False
        c = self.context(sight, request)
        stores = self._tools.stores
        node_uid = stores.node_uid(request.selected_node)
        running = memory.running = Running(request, node_uid, c.cancelled, c.posts)
        try:
            status = await run_attempt(
                c, self._runner, running, lambda: stores.still_wanted(request, running.node_uid)
            )
        finally:
            memory.running = None
            memory.prepared = memory.prepared or running.past_point
            if c.posts.last_unknown is not None:
                memory.unknown_binding = c.posts.last_unknown
        if status.code is Code.OK and not c.posts.acknowledged:
            status = await self._verified(sight, request, memory, status)
        if status.code is not Code.OK and (running.past_point or memory.unknown_binding is not None):
            # The bind may have succeeded and only its reply been lost, in this attempt or in an earlier one.
            await self._lookout.look(sight, Target.POD)
            status = Status.ok() if is_bound_as_asked(request, sight.pod_view) else status
        return await self.ended(c, sight, memory, Outcome(status, started))

    async def ended(self, c: BindContext, sight: Snapshot, memory: RequestState, outcome: Outcome) -> Result:
        """Act on an attempt's result, after deciding whether a transient failure counts as the request's own."""
        status = outcome.status
        transient = is_transient(status)
        if transient:
            status = classified(status, self._failures.note(c.request.key, status.retry_after))
        self._tools.observation.attempt_ended(c, status)
        again = await self._settle(c, sight, memory, replace(outcome, status=status))
        # Mark it inconclusive, so that further transient failures extend the same streak.
        return replace(again, inconclusive=True) if transient and again.delay is not None else again

    async def _verified(self, sight: Snapshot, request: BindRequest, memory: RequestState, answer: Status) -> Status:
        """Return the OK of a bind plugin that sent its own Binding only if a live read shows the pod on its node."""
        await self._lookout.look(sight, Target.POD)
        if is_bound_as_asked(request, sight.pod_view):
            return answer
        # A call that the plugin has sent may still take effect.
        memory.unknown_binding = self._clock.monotonic()
        why = f"bind answered OK, but pod {request.pod_key} is not on node {request.selected_node}"
        return Status.retry(why).from_plugin(answer.plugin)

    async def _held(self, request: BindRequest, memory: RequestState) -> BindRequest:
        """Return the request with the finalizer added and, after a change of leader, fenced."""
        if not has_finalizer(request):
            held = await self._ending.writer.add_finalizer(request)
        elif memory.effects is None and self._ending.may_be_a_predecessors(request):
            # Fence the previous leader: a new resourceVersion makes any status write that it still has in flight fail
            # with a Conflict. Such a write would not describe what is prepared from here on.
            held = await self._ending.writer.take_over(request)
        else:
            return request
        memory.wrote(request, held)
        return held

    async def _settle(self, c: BindContext, sight: Snapshot, memory: RequestState, outcome: Outcome) -> Result:
        """Classify the attempt's outcome and execute the action. ``c``: the attempt's context, as for post_bind."""
        memory.attempting = False
        now, request = self._clock.now(), c.request
        wait = f"{WaitCause.PLUGIN.value} {outcome.status.plugin}"
        if outcome.status.code is Code.WAIT:
            self.timing.begin_wait(request, memory, wait)
        times, since = self.timing.times(request, wait), self.timing.waiting_since(memory)
        settlement = settle(request, outcome, self._tools.limits(), times, now, since)
        match settlement:
            case Finish():
                later = self._tools.afterwards.put_off(request.key, Bound(sight, outcome.started, c))
                return LATER if later else await self._finish(c, memory, outcome.started)
            case Fail():
                memory.unsaved = Unsaved(outcome, request.failed_attempts)
                return await self._fail(sight, request, memory, settlement)
            case RetryAt():
                memory.unsaved = Unsaved(outcome, request.failed_attempts)
                memory.wrote(request, await self._ending.writer.status(request, settlement.status))
                memory.retried()
                self.timing.delay_retry(memory, settlement.pause)
                self._ending.tell(request, settlement.event, on_pod=True)
                self._ending.report_failure(c, settlement.condition)
                return Result(settlement.pause)
            case Waiting():
                # If the wait had expired but its failure could not be written, and the plugin waits again, nothing
                # has failed.
                memory.unsaved = None
                return await self.waits.wait(request, memory, settlement)
            case TransientFailure():
                return self._failures.again(request.key, settlement.why, settlement.after)
            case RequeueNow():
                memory.ask_live = True
                return self._failures.again(request.key, "the attempt was withdrawn")
            case _:
                assert_never(settlement)

    async def finish_later(self, bound: Bound, request: BindRequest, memory: RequestState) -> Result:
        """Complete a request whose completion was deferred; ``request`` is its current version."""
        bound.sight.request = request
        self._tools.observation.decided(request, Finish())
        return await self._finish(bound.context.with_request(request), memory, bound.started)

    async def _finish(self, c: BindContext, memory: RequestState, started: datetime | None) -> Result:
        await self._ending.finish(c, memory, started)
        return DONE

    async def _fail(self, sight: Snapshot, request: BindRequest, memory: RequestState, fail: Fail) -> Result:
        if has_finalizer(request) or memory.unknown_binding is not None:
            # The snapshot is as old as the attempt, and Failed is final: read the pod live.
            await self._lookout.look(sight, Target.POD)
            if is_bound_as_asked(request, sight.pod_view):
                return await self._finish(self.context(sight, request), memory, None)
        unfinished = await self._ending.fail(self.context(sight, request), memory, fail)
        return DONE if unfinished is None else self._failures.unfinished(request.key, unfinished)
