"""One attempt: preflight and pre_bind, the point of no return, bind.

Without failures, no API call precedes the Binding except those of plugins. The caches are checked once more, with no
await between that check and the Binding; the Binding's own preconditions cover the rest.
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
    """Run one attempt and return its status. The callback returns whether, by the caches, it may continue."""
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
    """Run pre_bind and cancel it if the attempt is withdrawn; its side effects are rolled back later.

    Returns, and raises a cancellation, only after pre_bind has ended: the rollback that follows must see all its
    writes.
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
