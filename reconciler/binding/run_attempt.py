"""One attempt: prepare, pass the point of no return, bind.

The happy path asks the API server nothing before the Binding: the stores are read once more without an await in
between, and the Binding's own checks do the rest.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from reconciler.binding.state import Running
from shared.framework.binding.context import BindContext
from shared.framework.binding.runner import Runner
from shared.framework.status import Code, Status
from shared.runtime.tasks import all_done

WITHDRAWN = Status(Code.CANCELLED, ("the request was withdrawn",))


async def run_attempt(c: BindContext, runner: Runner, running: Running, stands: Callable[[], bool]) -> Status:
    """Carry out one attempt. ``stands`` says, from the stores, whether the request is still to be carried out."""
    groups = runner.preflight(c)
    if isinstance(groups, Status):
        return groups
    if groups:
        status = await _cancellable(runner.run_pre_bind(c, groups), c.cancelled)
        if status.code is not Code.OK:
            return status
    if c.cancelled.is_set() or not stands():
        return WITHDRAWN
    running.past_point = True
    return await runner.run_bind(c)


async def _cancellable(pre_bind: Coroutine[Any, Any, Status], withdrawn: asyncio.Event) -> Status:
    """Run pre_bind, ended early when the attempt is withdrawn; what it has done by then is rolled back later.

    Returns, and raises a cancellation, only when pre_bind has ended: a write that it has begun must be visible to the
    rollback that follows.
    """
    preparing = asyncio.create_task(pre_bind, name="pre_bind")
    cancelled = asyncio.create_task(withdrawn.wait(), name="cancelled")
    try:
        await asyncio.wait({preparing, cancelled}, return_when=asyncio.FIRST_COMPLETED)
        return preparing.result() if preparing.done() else WITHDRAWN
    finally:
        preparing.cancel()
        cancelled.cancel()
        await all_done(preparing, cancelled)
