"""One pass over one request: look, decide, carry the decision out.

Level-triggered: a pass starts from a key and what is visible now, never from what an event said. The decisions are
decide's and settle's; this module only executes them, in one match, and says when to come back. The API server's own
trouble ends a pass without a trace: nothing is written about it and it costs the request nothing.
"""

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import assert_never

from reconciler.attempt import run_attempt
from reconciler.decide import (
    Attempt,
    Decision,
    DropFinalizer,
    Fail,
    Finish,
    Forget,
    Look,
    Pin,
    Requeue,
    RollBack,
    Target,
    Wait,
    wait_deadline,
)
from reconciler.endings import Endings, has_finalizer
from reconciler.memory import Memories, Memory, Running, Unsaved
from reconciler.observed import Absent, PodView, Policy
from reconciler.settle import (
    Infrastructure,
    Limits,
    LookAgain,
    Outcome,
    RetryAt,
    Waiting,
    settle,
)
from reconciler.sight import Lookout, Sight
from reconciler.stores import Stores
from reconciler.waits import decided_wait, tell_wait
from shared.api.bindrequest import BindRequest
from shared.api.meta import ObjectKey
from shared.framework.binding.context import BindContext
from shared.framework.binding.runner import Runner
from shared.framework.config import Settings
from shared.framework.status import Code, Status
from shared.kube.client import KubeClient
from shared.kube.errors import Conflict, InfrastructureError, KubeError
from shared.runtime.backoff import Backoff
from shared.runtime.clock import Clock
from shared.runtime.logging import with_fields

log = logging.getLogger(__name__)

# Backoff of the API server's own trouble: quick at first, for most of it is a moment's.
INFRA_BASE, INFRA_MAX = timedelta(milliseconds=200), timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class Again:
    """Come back after ``delay``; never, if None, until something changes."""

    delay: timedelta | None


DONE = Again(None)
AT_ONCE = Again(timedelta())


@dataclass(frozen=True, slots=True)
class Tools:
    """What passes work with. ``jitter`` draws a number in [0, 1)."""

    client: KubeClient
    stores: Stores
    runner: Runner
    ending: Endings
    settings: Settings
    clock: Clock
    jitter: Callable[[], float] = random.random


class Reconciler:
    """Passes over requests. One instance a process; passes of different keys run at the same time."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._runner = tools.runner
        self._ending = tools.ending
        self._clock = tools.clock
        self._binding = tools.settings.binding
        self._lookout = Lookout(
            tools.client,
            tools.stores,
            tools.runner,
            Policy(tools.settings.scheduler_names, tools.settings.binding.wait_timeout),
            tools.clock,
        )
        self._trouble: Backoff[ObjectKey] = Backoff(INFRA_BASE, INFRA_MAX)
        self.memories = Memories()

    async def reconcile(self, key: ObjectKey) -> Again:
        """Do one pass and return when to do the next. Raises only for faults of Bowline itself."""
        try:
            again = await self._pass(key)
        except InfrastructureError as error:
            return self._troubled(key, str(error), error.retry_after)
        except Conflict as error:
            # Somebody wrote in between: the next pass starts from what the API server itself says.
            self._ask_live(key)
            return self._troubled(key, str(error), None)
        except KubeError as error:
            log.warning("the API server refuses a call", extra={"bindRequest": str(key), "error": str(error)})
            self._ask_live(key)
            return self._troubled(key, str(error), None)
        if again is not AT_ONCE:
            self._trouble.succeeded(key)
        return again

    def note_change(self, key: ObjectKey) -> None:
        """Tell a running attempt, if need be, that it is withdrawn. Called by watches; only records."""
        memory = self.memories.get(key)
        if memory is None or memory.running is None or memory.running.past_point:
            return
        if not self._tools.stores.stands(memory.running.request):
            memory.running.cancelled.set()

    def cancel_running(self) -> None:
        """Withdraw every attempt that has not passed the point of no return: the process stops."""
        for memory in self.memories.values():
            if memory.running is not None and not memory.running.past_point:
                memory.running.cancelled.set()

    # --- one pass ---

    async def _pass(self, key: ObjectKey) -> Again:
        known = self.memories.get(key)
        stored = self._tools.stores.request(key)
        if known is not None and stored is not None and stored.uid != known.uid:
            known = None  # remade under its name: what is remembered is the predecessor's
        if known is not None and known.done:
            return DONE
        newest = known.newest(stored) if known is not None else stored
        sight, decision = await self._lookout.see(key, newest, ask_live=known is not None and known.ask_live)
        if not isinstance(sight.request, BindRequest):
            await self._forget(key)
            return DONE
        memory, predecessor = self.memories.of(sight.request)
        memory.ask_live = False
        if predecessor is not None:
            await self._runner.forget(key, predecessor)
        return await self._carry_out(decision, sight, sight.request, memory)

    async def _carry_out(self, decision: Decision, sight: Sight, request: BindRequest, memory: Memory) -> Again:
        now = self._clock.now()
        match decision:
            case Forget():
                memory.done = True
                await self._runner.forget(request.key, request.uid)
                return DONE
            case Finish():
                await self._ending.finish(self._context(sight, request), memory, None)
                return DONE
            case Fail():
                return self._after_rollback(
                    request.key, await self._ending.fail(self._context(sight, request), memory, decision)
                )
            case RollBack():
                return self._after_rollback(
                    request.key, await self._ending.roll_back(self._context(sight, request), memory, decision.why)
                )
            case DropFinalizer():
                await self._ending.drop_finalizer(request, memory)
                return DONE
            case Pin():
                memory.wrote(request, await self._ending.writer.pin(request, decision.pod_uid))
                return AT_ONCE
            case Wait():
                return Again(
                    await tell_wait(self._ending, request, memory, decided_wait(request, decision, now), now)
                )
            case Requeue():
                return Again(decision.at - now)
            case Attempt():
                return await self._attempt(sight, request, memory)
            case Look():
                raise AssertionError("a Look was carried out before")
            case _:
                assert_never(decision)

    async def _attempt(self, sight: Sight, request: BindRequest, memory: Memory) -> Again:
        unsaved = memory.unsaved
        if unsaved is not None and unsaved.failed_before == request.failed_attempts:
            # The last attempt's end is not written yet: it must count before the next one starts.
            return await self._settle(sight, request, memory, unsaved.outcome)
        memory.unsaved = None
        started = self._clock.now()
        if self._runner.leaves_effects(request) and not has_finalizer(request):
            before, request = request, await self._ending.writer.add_finalizer(request)
            memory.wrote(before, request)
            sight.request = request
        c = self._context(sight, request)
        memory.running = Running(request, c.cancelled)
        try:
            status = await run_attempt(c, self._runner, memory.running, lambda: self._tools.stores.stands(request))
            if memory.running.past_point and status.code is not Code.OK:
                status = await self._verified(sight, request, status)
        finally:
            memory.running = None
            memory.unknown_binding = c.posts.last_unknown or memory.unknown_binding
        self._ending.metrics.attempts.labels(outcome=status.code.value).inc()
        if status.code is not Code.OK:
            c.log.info("attempt ended", extra={"code": status.code.value, "why": status.message})
        return await self._settle(sight, request, memory, Outcome(status, started))

    async def _verified(self, sight: Sight, request: BindRequest, status: Status) -> Status:
        """Look at the pod itself before a failed bind is believed: the reply may be what failed, not the bind."""
        await self._lookout.look(sight, Target.POD)
        view = sight.pod_view
        bound = isinstance(view, PodView) and view.uid == request.pod_uid and view.node == request.selected_node
        return Status.ok() if bound else status

    async def _settle(self, sight: Sight, request: BindRequest, memory: Memory, outcome: Outcome) -> Again:
        now = self._clock.now()
        deadline = wait_deadline(request, self._binding.wait_timeout, self._tools.stores.requests.contact_since)
        settlement = settle(request, outcome, self._limits(), deadline, now)
        match settlement:
            case Finish():
                await self._ending.finish(self._context(sight, request), memory, outcome.started)
                return DONE
            case Fail():
                memory.unsaved = Unsaved(outcome, request.failed_attempts)
                return self._after_rollback(
                    request.key, await self._ending.fail(self._context(sight, request), memory, settlement)
                )
            case RetryAt():
                memory.unsaved = Unsaved(outcome, request.failed_attempts)
                await self._ending.tell_failure(self._context(sight, request), settlement.condition)
                memory.wrote(request, await self._ending.writer.status(request, settlement.status))
                memory.unsaved = None
                self._ending.tell(request, settlement.event, on_pod=True)
                return Again(settlement.at - now)
            case Waiting():
                return Again(await tell_wait(self._ending, request, memory, settlement, now))
            case Infrastructure():
                return self._troubled(request.key, settlement.why, settlement.after)
            case LookAgain():
                self._ask_live(request.key)
                return self._troubled(request.key, "the attempt was withdrawn", None)
            case _:
                assert_never(settlement)

    # --- helpers of a pass ---

    def _context(self, sight: Sight, request: BindRequest) -> BindContext:
        attempt = request.failed_attempts + 1
        attempt_id = f"{request.uid[:8]}-{attempt}"
        return BindContext(
            request=request,
            pod=None if isinstance(sight.pod, Absent) else sight.pod,
            node=None if isinstance(sight.node, Absent) else sight.node,
            attempt=attempt,
            attempt_id=attempt_id,
            deadline=wait_deadline(request, self._binding.wait_timeout, self._tools.stores.requests.contact_since),
            client=self._tools.client,
            log=with_fields(log, bindRequest=str(request.key), pod=str(request.pod_key), attempt=attempt_id),
        )

    def _limits(self) -> Limits:
        backoff = self._binding.backoff
        return Limits(self._binding.backoff_limit, backoff.base, backoff.max, self._tools.jitter())

    async def _forget(self, key: ObjectKey) -> None:
        uid = self.memories.drop(key)
        if uid is not None:
            await self._runner.forget(key, uid)

    def _ask_live(self, key: ObjectKey) -> None:
        memory = self.memories.get(key)
        if memory is not None:
            memory.ask_live = True

    def _after_rollback(self, key: ObjectKey, unfinished: timedelta | None) -> Again:
        if unfinished is None:
            return DONE
        return Again(max(unfinished, self._trouble.failed(key)))

    def _troubled(self, key: ObjectKey, why: str, at_least: timedelta | None) -> Again:
        delay = self._trouble.failed(key, at_least)
        level = logging.WARNING if self._trouble.failures(key) > 3 else logging.DEBUG
        fields = {"bindRequest": str(key), "why": why, "again_s": round(delay.total_seconds(), 3)}
        log.log(level, "trouble with the API server, trying again", extra=fields)
        return Again(max(delay, timedelta(milliseconds=1)))
