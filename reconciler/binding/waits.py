"""Waiting requests: a wait uses no worker and no attempt, and is reported only if it lasts.

A wait of a few seconds leaves no trace. A longer one is written to the status and reported in one event per message,
so that ``kubectl describe`` shows what the request waits for, without a flood of events. ``wait_index`` maps objects
to waiting requests; this module reports waits and determines the latest time of the next reconcile.
"""

from collections.abc import Callable
from datetime import timedelta

from reconciler.binding.requeue import REQUEUE, Result
from reconciler.binding.state import RequestState
from reconciler.binding.timing import Timing
from reconciler.binding.wait_index import Registration, WaitIndex
from reconciler.binding.writer import Writer
from reconciler.decide.decide import Wait
from reconciler.decide.outcome import Event
from reconciler.decide.status import waiting_status
from shared.api import names
from shared.api.bindrequest import BindRequest
from shared.runtime.limiter import Limiter

# A shorter wait causes no write and no event.
REPORT_WAIT_AFTER = timedelta(seconds=5)
# Wait reports per second. Each is two writes without urgency; thousands of requests that begin to wait together must
# not delay those that can be bound.
REPORT_QPS = 20
# Objects that no watch shows are polled after POLL to twice that, randomly spread to avoid bursts.
POLL = timedelta(seconds=30)


class Waits:
    """Registers waiting requests and reports long waits. ``jitter`` returns a random number in [0, 1)."""

    def __init__(self, writer: Writer, index: WaitIndex, timing: Timing, jitter: Callable[[], float]) -> None:
        self._writer = writer
        self._index = index
        self._timing = timing
        self._jitter = jitter
        self._slots = Limiter(REPORT_QPS)

    async def wait(self, request: BindRequest, state: RequestState, wait: Wait) -> Result:
        """Register the request in the wait index; report the wait if it lasts. Returns when to reconcile again."""
        self._timing.begin_wait(request, state, wait.cause)
        own, now = state.wait, self._writer.clock.monotonic()
        if own.report_at is None:
            # Spread the first report over the time that reporting all waiters takes, so that they are not all
            # reconciled together.
            own.report_at = now + REPORT_WAIT_AFTER.total_seconds() + self._jitter() * len(self._index) / REPORT_QPS
        quiet_until = own.report_at
        if now >= quiet_until and own.reported != wait.why:
            if not own.slot_reserved:
                own.slot_reserved = True
                own.report_at = quiet_until = now + self._slots.reserve()
            if now >= quiet_until:
                await self._report(request, state, wait)
        # Last, with no await after it: a change from here on finds the request in the index.
        registration = self._index.register(request.key, wait.on, state.awaited_versions)
        if registration is Registration.STALE:
            return REQUEUE
        latest = wait.left
        if now < quiet_until:
            latest = min(latest, timedelta(seconds=quiet_until - now))
        if registration is Registration.NEEDS_POLL:
            latest = min(latest, POLL * (1 + self._jitter()))
        if wait.poll is not None:
            latest = min(latest, wait.poll)
        return Result(max(latest, timedelta(milliseconds=1)))

    async def _report(self, request: BindRequest, state: RequestState, wait: Wait) -> None:
        status = waiting_status(request, wait.why, self._timing.waiting_since(state), self._writer.clock.now())
        # Otherwise reported by the previous process, with its event.
        is_new = request.status.get("reason") != status["reason"]
        await self._writer.patch_status(request, status)
        state.wait.reported = wait.why
        if is_new:
            self._writer.record_event(request, Event("Normal", names.EVENT_WAITING, wait.why))
