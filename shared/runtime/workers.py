"""Workers for one work queue: take a key, reconcile it, requeue it.

A reconcile that raises is reported and retried; a worker that fails must end the process. Workers that end unnoticed
one by one would leave a leader that passes its probes and does nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from datetime import timedelta
from typing import TypeVar

from shared.runtime.tasks import raise_foreign_cancellation
from shared.runtime.workqueue import QueueShutDown, WorkQueue

K = TypeVar("K", bound=Hashable)


async def run_worker(
    queue: WorkQueue[K],
    reconcile: Callable[[K], Awaitable[timedelta | None]],
    on_error: Callable[[K], None],
) -> None:
    """Process one key after another until the queue is shut down.

    ``reconcile`` returns the delay before the key is processed again, or None. If it raises, ``on_error`` is called
    in the exception's handler, to report it, and the key is requeued with a rate limit.
    """
    while True:
        try:
            key = await queue.get()
        except QueueShutDown:
            return
        try:
            try:
                again = await raise_foreign_cancellation(reconcile(key))
                if again is not None:
                    queue.add_after(key, again)
                queue.forget(key)
            except (Exception, SystemExit):  # noqa: BLE001 - ``on_error`` reports every exception
                on_error(key)
                queue.add_rate_limited(key)
        finally:
            queue.done(key)


async def wait_failed(workers: Sequence["asyncio.Task[None]"]) -> None:
    """Wait until one of the workers fails, indefinitely if none does. A regular end is not a failure."""
    left = set(workers)
    while left:
        finished_workers, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
        if any(failure_of(worker) for worker in finished_workers):
            return
    await asyncio.Event().wait()


def failure_of(worker: "asyncio.Task[None]") -> BaseException | None:
    """Return the exception of a failed worker; None if it ended regularly or was cancelled."""
    return None if worker.cancelled() else worker.exception()
