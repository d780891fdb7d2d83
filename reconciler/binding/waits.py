"""Waiting requests: a wait uses no worker and no attempt, and is reported only if it lasts.

A wait of a few seconds leaves no trace. A longer one is written to the status and reported in one event per cause, so
that ``kubectl describe`` shows what the request waits for, without a flood of events. ``wait_index`` maps objects to
waiting requests; this module reports waits and determines the latest time of the next reconcile.
"""

from collections.abc import Callable
from datetime import datetime, timedelta

from reconciler.binding.complete import Completer
from reconciler.binding.requeue import REQUEUE, Result
from reconciler.binding.state import RequestState
from reconciler.binding.wait_index import Sleep, WaitIndex
from reconciler.decide.decide import Wait
from reconciler.decide.outcome import QUIET_WAIT, Event, Waiting
from reconciler.decide.status import waiting_block
from shared.api.bindrequest import BindRequest
from shared.runtime.limiter import Limiter

# Wait reports per second. Each is two writes without urgency; thousands of requests that begin to wait together must
# not delay those that can be bound.
TOLD_QPS = 20
# Objects that no watch shows are polled after POLL to twice that, randomly spread to avoid bursts.
POLL = timedelta(seconds=30)


def decided_wait(request: BindRequest, wait: Wait, since: datetime, now: datetime) -> Waiting:
    """Return the decision table's wait in the form of an attempt's wait."""
    event = Event("Normal", "BindingWaiting", wait.why)
    return Waiting((wait.on,), wait.left, wait.why, waiting_block(request, wait.why, since, now), event)


class Waits:
    """Registers waiting requests and reports long waits."""

    def __init__(
        self, ending: Completer, sleepers: WaitIndex, jitter: Callable[[], float], monotonic: Callable[[], float]
    ) -> None:
        self._ending = ending
        self._monotonic = monotonic
        self._sleepers = sleepers
        self._jitter = jitter
        self._turns = Limiter(TOLD_QPS)

    async def wait(self, request: BindRequest, memory: RequestState, waiting: Waiting) -> Result:
        """Register the request in the wait index; report the wait once it exceeds QUIET_WAIT. Returns the delay."""
        now = self._monotonic()
        if memory.tell_at is None:
            # Spread the first report over the time that reporting all waiters takes, so that they are not all
            # reconciled together.
            memory.tell_at = now + QUIET_WAIT.total_seconds() + self._jitter() * len(self._sleepers) / TOLD_QPS
        quiet_until = memory.tell_at
        if now >= quiet_until and memory.wait_told != waiting.why:
            if not memory.has_turn:
                memory.has_turn = True
                memory.tell_at = quiet_until = now + self._turns.reserve()
            if now >= quiet_until:
                memory.has_turn = False
                await self._tell(request, memory, waiting)
        # Last, with no await after it: a change from here on finds the request in the index.
        sleep = self._sleepers.sleep(request.key, waiting.on, memory.slept_on)
        if sleep is Sleep.NOT:
            return REQUEUE
        latest = waiting.left
        if now < quiet_until:
            latest = min(latest, timedelta(seconds=quiet_until - now))
        if sleep is Sleep.WITH_A_CLOCK:
            latest = min(latest, POLL * (1 + self._jitter()))
        if waiting.poll is not None:
            latest = min(latest, waiting.poll)
        return Result(max(latest, timedelta(milliseconds=1)))

    async def _tell(self, request: BindRequest, memory: RequestState, waiting: Waiting) -> None:
        # Reported by the previous process, with its event.
        told_before = request.status.get("reason") == waiting.status["reason"]
        memory.wrote(request, await self._ending.writer.status(request, waiting.status))
        memory.wait_told = waiting.why
        if not told_before:
            self._ending.tell(request, waiting.event, on_pod=True)
