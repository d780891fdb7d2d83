"""From the decision to attempt to what has become of it: run, verify, settle, write.

The settlement is settle's; this module carries it out in one match. What cannot be taken back is done only after the
API server itself has said where the pod is.
"""

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import assert_never

from reconciler.binding.complete import Endings, has_finalizer
from reconciler.binding.deferred import LATER, Afterwards, Bound
from reconciler.binding.read import Lookout, Sight
from reconciler.binding.requeue import DONE, Again, TransientFailures
from reconciler.binding.run_attempt import run_attempt
from reconciler.binding.state import Memory, Running, Unsaved
from reconciler.binding.timing import Timing
from reconciler.binding.wait_index import Sleepers
from reconciler.binding.waits import Waits
from reconciler.decide.decide import Fail, Finish, WaitCause, is_bound_as_asked, wait_left
from reconciler.decide.observed import Absent, Target
from reconciler.decide.outcome import Infrastructure, Limits, LookAgain, Outcome, RetryAt, Waiting, settle
from reconciler.decide.transient import classified, is_transient
from reconciler.informers import Stores
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
    """What passes work with. ``jitter`` draws a number in [0, 1)."""

    client: KubeClient
    stores: Stores
    sleepers: Sleepers
    afterwards: Afterwards
    runner: Runner
    ending: Endings
    observation: Observation
    settings: Settings
    clock: Clock
    jitter: Callable[[], float] = random.random

    def limits(self) -> Limits:
        """Return what outcomes depend on, with a number drawn."""
        binding = self.settings.binding
        return Limits(
            binding.backoff_limit, binding.backoff.base, binding.backoff.max, binding.wait_timeout, self.jitter()
        )


class Attempts:
    """Carries attempts out. Raises what the client raises; a pass that is repeated takes up where it stopped."""

    def __init__(self, tools: Tools, lookout: Lookout, failures: TransientFailures, timing: Timing) -> None:
        self._tools = tools
        self._runner = tools.runner
        self._ending = tools.ending
        self._clock = tools.clock
        self._lookout = lookout
        self._failures = failures
        self.timing = timing
        self.waits = Waits(tools.ending, tools.sleepers, tools.jitter, tools.clock.monotonic)

    def context(self, sight: Sight, request: BindRequest) -> BindContext:
        """Return what plugins are given of a request and its surroundings."""
        attempt = attempt_id(request)
        timeout = self._tools.settings.binding.wait_timeout
        left = wait_left(timeout, self.timing.times(request))
        return BindContext(
            request=replace(request, raw=copied(request.raw)),
            # The cache's own objects stay as they are, whatever a plugin writes into these.
            pod=None if isinstance(sight.pod, Absent) else copied(sight.pod),
            node=None if isinstance(sight.node, Absent) else copied(sight.node),
            attempt=request.failed_attempts + 1,
            attempt_id=attempt,
            annotations={names.PREPARED_FOR: request.uid},
            deadline=self._clock.now() + left,
            client=self._tools.client,
            log=with_fields(log, bindRequest=str(request.key), pod=str(request.pod_key), attempt=attempt),
        )

    async def attempt(self, sight: Sight, request: BindRequest, memory: Memory) -> Again:
        """Make an attempt and settle it; first of all the last one, if that is not written yet."""
        unsaved = memory.unsaved
        if unsaved is not None and unsaved.failed_before == request.failed_attempts:
            # It must count before the next one starts.
            return await self._settle(self.context(sight, request), sight, memory, unsaved.outcome)
        memory.unsaved = None
        memory.attempting = True
        started = self._clock.now()
        if self._runner.leaves_effects(request):
            sight.request = request = await self._held(request, memory)
            memory.effects = request
            memory.rolled_back = False
        c = self.context(sight, request)
        stores = self._tools.stores
        node_uid = stores.node_uid(request.selected_node)
        running = memory.running = Running(request, node_uid, c.cancelled, c.posts)
        try:
            status = await run_attempt(c, self._runner, running, lambda: stores.stands(request, running.node_uid))
        finally:
            memory.running = None
            memory.prepared = memory.prepared or running.past_point
            memory.unknown_binding = c.posts.last_unknown or memory.unknown_binding
        if status.code is Code.OK and not c.posts.acknowledged:
            status = await self._verified(sight, request, memory, status)
        if status.code is not Code.OK and (running.past_point or memory.unknown_binding is not None):
            # The reply may be what failed, not the bind: now, or some attempts ago.
            await self._lookout.look(sight, Target.POD)
            status = Status.ok() if is_bound_as_asked(request, sight.pod_view) else status
        return await self.ended(c, sight, memory, Outcome(status, started))

    async def ended(self, c: BindContext, sight: Sight, memory: Memory, outcome: Outcome) -> Again:
        """Carry out what an attempt's result means, once it is known whether a transient one is the request's own."""
        status = outcome.status
        transient = is_transient(status)
        if transient:
            status = classified(status, self._failures.note(c.request.key, status.retry_after))
        self._tools.observation.attempt_ended(c, status)
        again = await self._settle(c, sight, memory, replace(outcome, status=status))
        # Further ones of the request's own are counted as well.
        return replace(again, inconclusive=True) if transient and again.delay is not None else again

    async def _verified(self, sight: Sight, request: BindRequest, memory: Memory, answer: Status) -> Status:
        """Return a bind plugin's OK if the pod is bound; one that binds its own way is not believed without a GET."""
        await self._lookout.look(sight, Target.POD)
        if is_bound_as_asked(request, sight.pod_view):
            return answer
        # What the plugin has sent may still take effect.
        memory.unknown_binding = self._clock.now()
        why = f"bind answered OK, but pod {request.pod_key} is not on node {request.selected_node}"
        return Status.retry(why).from_plugin(answer.plugin)

    async def _held(self, request: BindRequest, memory: Memory) -> BindRequest:
        """Return the request held by our finalizer, and this leader's alone."""
        if not has_finalizer(request):
            held = await self._ending.writer.add_finalizer(request)
        elif memory.effects is None and self._ending.may_be_a_predecessors(request):
            # A verdict of its that is still on its way would not be true of what is prepared from here on.
            held = await self._ending.writer.take_over(request)
        else:
            return request
        memory.wrote(request, held)
        return held

    async def _settle(self, c: BindContext, sight: Sight, memory: Memory, outcome: Outcome) -> Again:
        """Carry out what an attempt's end means. ``c`` is the attempt's own, up to its post_bind."""
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
                return Again(settlement.pause)
            case Waiting():
                # A wait whose end could not be written, and that goes on after the outage: nothing has ended.
                memory.unsaved = None
                return await self.waits.wait(request, memory, settlement)
            case Infrastructure():
                return self._failures.again(request.key, settlement.why, settlement.after)
            case LookAgain():
                memory.ask_live = True
                return self._failures.again(request.key, "the attempt was withdrawn")
            case _:
                assert_never(settlement)

    async def finish_later(self, bound: Bound, request: BindRequest, memory: Memory) -> Again:
        """Finish what was put off; ``request`` as it is now."""
        bound.sight.request = request
        self._tools.observation.decided(request, Finish())
        return await self._finish(bound.context.with_request(request), memory, bound.started)

    async def _finish(self, c: BindContext, memory: Memory, started: datetime | None) -> Again:
        await self._ending.finish(c, memory, started)
        return DONE

    async def _fail(self, sight: Sight, request: BindRequest, memory: Memory, fail: Fail) -> Again:
        if has_finalizer(request) or memory.unknown_binding is not None:
            # What was seen when the attempt began is old by now, and a verdict cannot be taken back.
            await self._lookout.look(sight, Target.POD)
            if is_bound_as_asked(request, sight.pod_view):
                return await self._finish(self.context(sight, request), memory, None)
        unfinished = await self._ending.fail(self.context(sight, request), memory, fail)
        return DONE if unfinished is None else self._failures.unfinished(request.key, unfinished)
