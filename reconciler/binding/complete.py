"""How requests end: complete, fail, and roll back what was abandoned. One path each, whatever led to it.

The order within a path is the promise. Success: post_bind, then the finalizer, then Succeeded, then the event; a
request that reports Succeeded has nothing left to do. Failure: rollback, then the finalizer, then Failed and
RolledBack in one patch. **Failed means released**: nothing of ours holds a Failed request, so that its scheduler can
delete it and create another of the same name within the same cycle. While a rollback cannot complete, the request
stays Pending and reports that. A crash between the finalizer and Failed costs one more attempt, because nothing of
the failure is stored. The pod's PodBound condition follows the status and never delays it (``pod_conditions``).
"""

import logging
from collections.abc import Callable
from datetime import datetime, timedelta

from reconciler.binding.pod_conditions import PodConditions
from reconciler.binding.state import Memory
from reconciler.binding.writer import Writer
from reconciler.decide.decide import Fail, is_rollback_incomplete
from reconciler.decide.in_flight import Posts, settled_at
from reconciler.decide.observed import Absent, PodView, pod_view
from reconciler.decide.outcome import Event, PodBound, bound_condition, failure_event, success_event
from reconciler.decide.preparation import preparation
from reconciler.decide.status import blocked_block, failed_block, rolled_back_block, succeeded_block, unreleased_block
from reconciler.decide.transient import QUIET_FAILURES
from reconciler.observe.metrics import ReconcilerMetrics
from shared.api import names
from shared.api.bindrequest import BindRequest, Phase
from shared.api.meta import ObjectRef
from shared.framework.binding.context import BindContext
from shared.framework.binding.runner import Runner
from shared.framework.status import Code, Reason, Status
from shared.kube.events import EventNote
from shared.runtime.clock import Clock

log = logging.getLogger(__name__)

ROLLBACK_PAUSE = timedelta(seconds=1)
# API servers tell when something was created in whole seconds.
_A_MOMENT = timedelta(seconds=1)
# The pod runs, or belongs to another scheduler.
_NO_CONDITION = (Reason.BOUND_ELSEWHERE, Reason.NOT_OURS)


def has_finalizer(request: BindRequest) -> bool:
    """Return whether effects of the request may exist."""
    return names.FINALIZER in request.finalizers


class Endings:
    """Carries out ends. Methods raise what the client raises; a pass that is repeated takes up where it stopped."""

    def __init__(
        self,
        runner: Runner,
        writer: Writer,
        record: Callable[[EventNote], None],
        metrics: ReconcilerMetrics,
        in_flight: timedelta,
        bound_events: bool = True,
    ) -> None:
        self.conditions = PodConditions(writer)
        self._runner = runner
        self.writer = writer
        self._record = record
        self.metrics = metrics
        self._in_flight = in_flight
        self._clock: Clock = writer.clock
        # When this process began to lead; set at each term's start.
        self.leading_since: datetime | None = None
        self._bound_events = bound_events

    async def finish(self, c: BindContext, memory: Memory, started: datetime | None) -> None:
        """Complete a request whose pod is on its node: everything else first, then the request's phase."""
        request = c.request
        await self._runner.run_post_bind(c)
        if has_finalizer(request):
            dropped = await self.writer.drop_finalizer(request)
            if dropped is None:
                await self._close(request, memory)
                return
            memory.wrote(request, dropped)
            request = dropped
        now = self._clock.now()
        prepared = preparation(request, memory.prepared, not memory.rolled_back, c.pod)
        block = succeeded_block(request, prepared, started, now)
        memory.wrote(request, await self.writer.status(request, block))
        if prepared.warning:
            self.tell(request, Event("Warning", "NotPrepared", prepared.warning), on_pod=True)
        elif self._bound_events:
            self.tell(request, success_event(request), on_pod=True)
        condition = bound_condition(request, c.pod) if c.pod is not None else None
        if c.pod is not None and condition is not None:
            self.conditions.report(c.pod, condition)
        self.metrics.finished.labels(reason=Phase.SUCCEEDED.value).inc()
        if request.created is not None:
            self.metrics.bind_seconds.observe(max(0.0, (now - request.created).total_seconds()))
        c.log.info("pod is bound", extra={"node": request.selected_node})
        await self._close(request, memory)

    async def fail(self, c: BindContext, memory: Memory, fail: Fail) -> timedelta | None:
        """Terminal failure: roll back, drop the finalizer, then report Failed.

        Returns when to continue a rollback that is not complete; None if nothing is left to do.
        """
        request = c.request
        pause = self._binding_in_flight(c, memory)
        if pause is not None:
            return pause
        if has_finalizer(request) or memory.effects is not None or is_rollback_incomplete(request):
            done = await self._runner.run_rollback(c, Status.fatal(fail.message, fail.reason))
            if done.code is not Code.OK:
                pause = _may_pass(memory, done)
                return pause if pause is not None else await self._report_incomplete(c, memory, done, fail)
            memory.effects = None
            memory.rolled_back = True
            memory.prepared = False
        dropped = await self.writer.drop_finalizer(request)
        if dropped is None:
            await self._close(request, memory)
            return None
        if dropped is not request:
            memory.wrote(request, dropped)
            request = dropped
        is_asked = self._is_asked_pod(c)
        pod_node = (c.pod or {}).get("spec", {}).get("nodeName", "") if is_asked else ""
        block = failed_block(request, fail, memory.rolled_back, pod_node, self._clock.now())
        memory.wrote(request, await self.writer.status(request, block))
        self.tell(request, failure_event(fail), on_pod=is_asked)
        if fail.reason not in _NO_CONDITION:
            self.report_failure(c, PodBound("False", fail.reason.value, fail.message))
        self.metrics.finished.labels(reason=fail.reason.value).inc()
        c.log.warning("request has failed for good", extra={"reason": fail.reason.value, "why": fail.message})
        await self._close(request, memory)
        return None

    async def undo(self, c: BindContext, memory: Memory, why: Status) -> timedelta | None:
        """Undo what a request left that is no longer there. Returns when to go on; None if nothing is left."""
        pause = self._binding_in_flight(c, memory)
        if pause is not None:
            return pause
        done = await self._runner.run_rollback(c, why)
        if done.code is Code.OK:
            memory.effects = None
            return None
        c.log.warning("rollback is not done yet", extra={"why": done.message})
        return _pause(done)

    async def roll_back(self, c: BindContext, memory: Memory, why: Status) -> timedelta | None:
        """Roll back an abandoned request. Returns when to continue; None if nothing is left."""
        pause = self._binding_in_flight(c, memory)
        if pause is not None:
            return pause
        request = c.request
        done = await self._runner.run_rollback(c, why)
        if done.code is not Code.OK:
            pause = _may_pass(memory, done)
            return pause if pause is not None else await self._report_incomplete(c, memory, done, None)
        if request.phase is Phase.FAILED:
            # Of a release before this one, or of another controller: ours drops the finalizer first.
            written = await self.writer.status(request, rolled_back_block(request, self._clock.now()))
            memory.wrote(request, written)
            request = written
        await self.drop_finalizer(request, memory)
        return None

    async def drop_finalizer(self, request: BindRequest, memory: Memory) -> None:
        """Nothing may be undone or nothing is left: let the request go."""
        dropped = await self.writer.drop_finalizer(request)
        if dropped is not None:
            memory.wrote(request, dropped)
        await self._close(request, memory)

    async def report_blocked(self, request: BindRequest, memory: Memory, why: str) -> None:
        """Report in status and event what keeps a request from its end, other than a failed attempt."""
        if why != memory.blocked:
            memory.blocked = why
            self.tell(request, Event("Warning", "BindingRetry", f"not complete yet: {why}"), on_pod=True)
        if request.phase is Phase.PENDING:
            memory.wrote(request, await self.writer.status(request, blocked_block(request, why, self._clock.now())))

    def report_failure(self, c: BindContext, condition: PodBound) -> None:
        """Report the failure in the pod's PodBound condition, if the pod is the one the request names."""
        if c.pod is not None and self._is_asked_pod(c) and not _says_already(c, condition):
            self.conditions.report(c.pod, condition)

    def tell(self, request: BindRequest, event: Event, on_pod: bool) -> None:
        """Queue an event; about the pod if it was seen to exist, else about the request itself."""
        about = ObjectRef(names.API_VERSION, names.KIND, request.key, request.uid)
        pod = ObjectRef("v1", "Pod", request.pod_key, request.pod_uid)
        self._record(
            EventNote(pod if on_pod else about, event.reason, event.note, event.type, about if on_pod else None)
        )

    async def _report_incomplete(
        self, c: BindContext, memory: Memory, done: Status, fail: Fail | None
    ) -> timedelta | None:
        """Report that the rollback is not complete; returns when to continue it. ``fail``: what follows it."""
        request = c.request
        block = unreleased_block(request, fail, done, self._clock.now())
        memory.wrote(request, await self.writer.status(request, block))
        # The process before this one may have sent the event.
        if not memory.rollback_told and not is_rollback_incomplete(request):
            note = f"rollback is not complete: {done.message}"
            self.tell(request, Event("Warning", "RollbackFailed", note), on_pod=self._is_asked_pod(c))
        memory.rollback_told = True
        c.log.warning("rollback is not complete", extra={"why": done.message})
        return _pause(done)

    async def _close(self, request: BindRequest, memory: Memory) -> None:
        memory.close()
        await self._runner.forget(request.key, request.uid)

    def may_be_a_predecessors(self, request: BindRequest) -> bool:
        """Return whether a leader that was overtaken may have begun with the request: a Lease runs out in seconds."""
        since = self.leading_since
        return since is not None and request.created is not None and request.created < since - _A_MOMENT

    def _binding_in_flight(self, c: BindContext, memory: Memory) -> timedelta | None:
        """Return how long a Binding may still take effect; nothing is undone or called final on doubt."""
        now = self._clock.now()
        if self.leading_since is not None and self.leading_since > now:
            self.leading_since = now  # the clock was set back
        if memory.unknown_binding is not None and memory.unknown_binding > now:
            memory.unknown_binding = now
        # Of a predecessor's Bindings only those matter whose rollback would take something away.
        since = self.leading_since if has_finalizer(c.request) else None
        pod = pod_view(c.pod) if c.pod is not None else Absent.GONE
        settled = settled_at(c.request, pod, Posts(memory.unknown_binding, since, self._in_flight))
        left = settled - now if settled is not None else timedelta()
        return left if left > timedelta() else None

    @staticmethod
    def _is_asked_pod(c: BindContext) -> bool:
        view: PodView | None = pod_view(c.pod) if c.pod is not None else None
        return view is not None and view.uid == c.request.pod_uid


def _pause(done: Status) -> timedelta:
    return max(ROLLBACK_PAUSE, done.retry_after or ROLLBACK_PAUSE)


def _may_pass(memory: Memory, done: Status) -> timedelta | None:
    """Return when to try a rollback again of which nothing is to be told yet; None if there is.

    A lost reply is no news; trouble that stays is, for somebody waits for the verdict.
    """
    if done.code is not Code.INFRA or memory.rollback_troubles >= QUIET_FAILURES:
        return None
    memory.rollback_troubles += 1
    return _pause(done)


def _says_already(c: BindContext, condition: PodBound) -> bool:
    return any(
        stored.get("type") == names.CONDITION_POD_BOUND
        and stored.get("status") == condition.status
        and stored.get("reason") == condition.reason
        and stored.get("message") == condition.message
        for stored in ((c.pod or {}).get("status") or {}).get("conditions") or ()
    )
