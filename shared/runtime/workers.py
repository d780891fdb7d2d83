"""Workers over one queue of keys: take a key, look at it, put it back for when it is to be looked at again.

A look that fails is its worker's business; a worker that fails is not to be survived. Workers that end one by one and
unnoticed would leave a process that leads, answers its probes and does nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from datetime import timedelta
from typing import TypeVar

from shared.runtime.tasks import to_its_end
from shared.runtime.workqueue import QueueShutDown, WorkQueue

K = TypeVar("K", bound=Hashable)


async def work(
    queue: WorkQueue[K],
    reconcile: Callable[[K], Awaitable[timedelta | None]],
    on_error: Callable[[K], None],
) -> None:
    """Process one key after the other until the queue is shut down.

    ``reconcile`` returns when to process the key again, if at all. If it raises, ``on_error`` is called in the
    exception's handler, to report it, and the key is processed again, rate limited.
    """
    while True:
        try:
            key = await queue.get()
        except QueueShutDown:
            return
        try:
            try:
                again = await to_its_end(reconcile(key))
                if again is not None:
                    queue.add_after(key, again)
                queue.forget(key)
            except Exception:  # noqa: BLE001 - whatever it is, ``on_error`` reports it
                on_error(key)
                queue.add_rate_limited(key)
        finally:
            queue.done(key)


async def first_failure(workers: Sequence["asyncio.Task[None]"]) -> None:
    """Wait until one of the workers fails; for ever if none does. Their regular end is no failure."""
    left = set(workers)
    while left:
        ended, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
        if any(failure_of(worker) for worker in ended):
            return
    await asyncio.Event().wait()


def failure_of(worker: "asyncio.Task[None]") -> BaseException | None:
    """Return the exception that an ended worker failed with; None if it ended in order or was cancelled."""
    return None if worker.cancelled() else worker.exception()
