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
    look: Callable[[K], Awaitable[timedelta | None]],
    on_fault: Callable[[K], timedelta],
) -> None:
    """Look at one key after the other until the queue is shut down.

    ``look`` returns when to look again, if at all. If it raises, ``on_fault`` is called in the exception's handler,
    to tell of it and to say when to try again.
    """
    while True:
        try:
            key = await queue.get()
        except QueueShutDown:
            return
        try:
            try:
                again = await to_its_end(look(key))
                if again is not None:
                    queue.add_after(key, again)
            except Exception:  # noqa: BLE001 - whatever it is, ``on_fault`` tells of it
                queue.add_after(key, on_fault(key))
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
