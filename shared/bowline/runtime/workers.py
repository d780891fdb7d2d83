"""Workers for one work queue: take a key, reconcile it, requeue it.

As in controller-runtime, a reconcile returns a ``Result`` or raises: a result says when the key is processed again,
an error requeues it with the queue's rate limit. A worker that fails must end the process: workers that end unnoticed
would leave a leader that passes its probes and does nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import TypeVar

from bowline.runtime.tasks import raise_foreign_cancellation
from bowline.runtime.workqueue import QueueShutDown, WorkQueue

K = TypeVar("K", bound=Hashable)

# The shortest delay after an error that is a defect.
_DEFECT_PAUSE = timedelta(seconds=1)


class Priority(Enum):
    """The priority of a key that is requeued immediately; one that is due later has low priority."""

    NORMAL = "normal"
    LOW = "low"


@dataclass(frozen=True, slots=True)
class Result:
    """Result of a reconcile: process the key again after ``requeue_after``; if None, only when an event adds it.

    ``rest``: for how long the key rests; see the queue. ``pending``: why it is not done, if nothing reports it.
    """

    requeue_after: timedelta | None = None
    priority: Priority = Priority.NORMAL
    rest: timedelta = timedelta()
    pending: str = ""


DONE = Result()
REQUEUE = Result(timedelta())


class ReconcileError(Exception):
    """A reconcile has failed for a reason that it has already reported.

    ``at_least``: the shortest delay; ``retry_after`` is the API server's Retry-After, ``rest`` the part of the delay
    that events do not end: see the queue.
    """

    def __init__(
        self,
        why: str,
        *,
        at_least: timedelta = timedelta(),
        retry_after: timedelta | None = None,
        rest: timedelta = timedelta(),
    ) -> None:
        super().__init__(why)
        self.at_least = at_least
        self.retry_after = retry_after
        self.rest = rest


async def run_worker(
    queue: WorkQueue[K], reconcile: Callable[[K], Awaitable[Result]], on_error: Callable[[K], None]
) -> None:
    """Process one key after another until the queue is shut down.

    If ``reconcile`` raises anything but ``ReconcileError``, that is a defect: ``on_error`` is called in the
    exception's handler, to report it. After either the key is requeued with the queue's rate limit.
    """
    while True:
        try:
            key = await queue.get()
        except QueueShutDown:
            return
        try:
            try:
                result = await raise_foreign_cancellation(reconcile(key))
                _requeue(queue, key, result)
                queue.forget(key)
            except ReconcileError as error:
                queue.add_rate_limited(key, at_least=error.at_least, retry_after=error.retry_after, rest=error.rest)
            except asyncio.CancelledError:
                raise
            except BaseException:  # noqa: BLE001 - ``on_error`` reports every exception
                on_error(key)
                queue.add_rate_limited(key, at_least=_DEFECT_PAUSE)
        finally:
            queue.done(key)


async def run_workers(
    queue: WorkQueue[K], reconcile: Callable[[K], Awaitable[Result]], on_error: Callable[[K], None]
) -> None:
    """Open the queue and process its keys, ``capacity`` at a time, until cancelled. Raises the error of a worker."""
    queue.open()
    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(queue.capacity):
                tasks.create_task(run_worker(queue, reconcile, on_error))
    finally:
        queue.shut_down()


def _requeue(queue: WorkQueue[K], key: K, result: Result) -> None:
    if result.requeue_after is None:
        return
    queue.rest(key, result.rest)
    if result.requeue_after > timedelta():
        queue.add_after(key, result.requeue_after)
    else:
        queue.add(key, low_priority=result.priority is Priority.LOW)


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
