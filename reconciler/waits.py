"""Requests that wait for somebody else: no worker, no attempt used, and told about once it takes a while.

A wait that ends within a few seconds leaves no trace. A longer one is written into the request and evented once per
cause, so that ``kubectl describe`` answers "what is it waiting for" without a flood of events.
"""

from datetime import datetime, timedelta

from reconciler.blocks import waiting_block
from reconciler.decide import Wait
from reconciler.endings import Endings
from reconciler.memory import Memory
from reconciler.settle import QUIET_WAIT, Event, Waiting
from shared.api.bindrequest import BindRequest

# What no watch wakes is looked at this often.
POLL = timedelta(seconds=5)


def decided_wait(request: BindRequest, wait: Wait, now: datetime) -> Waiting:
    """Return the wait that the decision table asked for, in the form of an attempt's."""
    event = Event("Normal", "BindingWaiting", wait.why)
    return Waiting((wait.on,), wait.until, wait.why, waiting_block(request, wait.why, now), event)


async def tell_wait(
    ending: Endings, request: BindRequest, memory: Memory, waiting: Waiting, now: datetime
) -> timedelta:
    """Write and event the wait if it is no longer short and not told yet. Returns when to look again."""
    if memory.wait_began is None:
        memory.wait_began = now
    quiet_until = memory.wait_began + QUIET_WAIT
    if now < quiet_until:
        return min(quiet_until, waiting.until) - now
    if memory.wait_told != waiting.why:
        memory.wrote(request, await ending.writer.status(request, waiting.status))
        memory.wait_told = waiting.why
        ending.tell(request, waiting.event, on_pod=True)
    return min(POLL, max(waiting.until - now, timedelta(milliseconds=1)))
