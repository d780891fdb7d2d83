"""Requests that wait for somebody else: no worker, no attempt used, and told about once it takes a while.

A wait that ends within a few seconds leaves no trace. A longer one is written into the request and evented once per
cause, so that ``kubectl describe`` answers "what is it waiting for" without a flood of events. Who is woken by what
is in ``sleepers``; here is what the wait costs and when its end is looked for at the latest.
"""

from collections.abc import Callable
from datetime import datetime, timedelta

from reconciler.binding.complete import Endings
from reconciler.binding.requeue import AT_ONCE, Again
from reconciler.binding.state import Memory
from reconciler.binding.wait_index import Sleep, Sleepers
from reconciler.decide.decide import Wait
from reconciler.decide.outcome import QUIET_WAIT, Event, Waiting
from reconciler.decide.status import waiting_block
from shared.api.bindrequest import BindRequest
from shared.runtime.limiter import Limiter

# Waits told about a second: two writes each, that nobody waits for. Thousands of requests that begin to wait together
# must not hold up those that can be bound.
TOLD_QPS = 20
# What no watch shows is looked at again after POLL to twice that, spread so that a crowd does not come at once.
POLL = timedelta(seconds=30)


def decided_wait(request: BindRequest, wait: Wait, since: datetime, now: datetime) -> Waiting:
    """Return the wait that the decision table asked for, in the form of an attempt's."""
    event = Event("Normal", "BindingWaiting", wait.why)
    return Waiting((wait.on,), wait.left, wait.why, waiting_block(request, wait.why, since, now), event)


class Waits:
    """Puts requests to sleep, and tells of it what there is to tell."""

    def __init__(
        self, ending: Endings, sleepers: Sleepers, jitter: Callable[[], float], monotonic: Callable[[], float]
    ) -> None:
        self._ending = ending
        self._monotonic = monotonic
        self._sleepers = sleepers
        self._jitter = jitter
        self._turns = Limiter(TOLD_QPS)

    async def wait(self, request: BindRequest, memory: Memory, waiting: Waiting) -> Again:
        """Have the request woken when something changes; write and event the wait if it is no longer short."""
        now = self._monotonic()
        if memory.tell_at is None:
            # Thousands must not be looked at in the same moment either, only to find whose turn it is.
            memory.tell_at = now + QUIET_WAIT.total_seconds() + self._jitter() * len(self._sleepers) / TOLD_QPS
        quiet_until = memory.tell_at
        if now >= quiet_until and memory.wait_told != waiting.why:
            if not memory.has_turn:
                memory.has_turn = True
                memory.tell_at = quiet_until = now + self._turns.reserve()
            if now >= quiet_until:
                memory.has_turn = False
                await self._tell(request, memory, waiting)
        # Last, with no await to follow: what changes from here on finds the request in the index.
        sleep = self._sleepers.sleep(request.key, waiting.on, memory.slept_on)
        if sleep is Sleep.NOT:
            return AT_ONCE
        latest = waiting.left
        if now < quiet_until:
            latest = min(latest, timedelta(seconds=quiet_until - now))
        if sleep is Sleep.WITH_A_CLOCK:
            latest = min(latest, POLL * (1 + self._jitter()))
        if waiting.poll is not None:
            latest = min(latest, waiting.poll)
        return Again(max(latest, timedelta(milliseconds=1)))

    async def _tell(self, request: BindRequest, memory: Memory, waiting: Waiting) -> None:
        # Written by the process before this one: its event was sent then.
        told_before = request.status.get("reason") == waiting.status["reason"]
        memory.wrote(request, await self._ending.writer.status(request, waiting.status))
        memory.wait_told = waiting.why
        if not told_before:
            self._ending.tell(request, waiting.event, on_pod=True)
