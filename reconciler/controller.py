"""The loop around passes: one queue of keys, a fixed number of workers, and only while this process leads.

Watches run on every replica, so that a new leader starts with warm stores; they enqueue only where somebody works.
A handler records and enqueues, nothing else.
"""

import asyncio
import logging
from datetime import timedelta

from reconciler.metrics import ReconcilerMetrics
from reconciler.reconciler import Reconciler
from reconciler.stores import Stores
from shared.api.meta import ObjectKey
from shared.runtime.backoff import Backoff
from shared.runtime.workqueue import QueueShutDown, WorkQueue

log = logging.getLogger(__name__)

# Past the point of no return an attempt has a POST and a patch to go; the API server answers within a minute or not.
DRAIN = timedelta(seconds=25)


class Controller:
    """Runs passes over the keys that the stores report. ``run`` once per leadership."""

    def __init__(self, workers: int, metrics: ReconcilerMetrics) -> None:
        self._workers = workers
        self._metrics = metrics
        self._queue: WorkQueue[ObjectKey] | None = None
        self._reconciler: Reconciler | None = None
        self._faults: Backoff[ObjectKey] = Backoff(timedelta(seconds=1), timedelta(minutes=5))
        metrics.queue_depth.set_function(lambda: self._queue.depth if self._queue else 0)
        metrics.queue_age.set_function(lambda: self._queue.oldest_age.total_seconds() if self._queue else 0)

    # --- told by the watches ---

    def on_change(self, key: ObjectKey) -> None:
        """Something about the request or its pod has changed."""
        if self._queue is not None and self._reconciler is not None:
            self._reconciler.note_change(key)
            self._queue.add(key)

    def on_request_gone(self, key: ObjectKey) -> None:
        """The request has left the watch: it has Succeeded or is deleted."""
        if self._reconciler is None or self._queue is None:
            return
        memory = self._reconciler.memories.get(key)
        if memory is not None and memory.done and memory.running is None:
            # Our own doing: nothing to look up.
            self._reconciler.memories.drop(key)
            self._queue.forget_delay(key)
        else:
            self._reconciler.note_change(key)
            self._queue.add(key)

    # --- leading ---

    async def lead(self, reconciler: Reconciler, stores: Stores, stop: asyncio.Event) -> None:
        """Work until ``stop``: then take nothing new, withdraw what is not past the point of no return, drain."""
        for reflector in stores.reflectors.values():
            await _either(reflector.synced, stop)
        if stop.is_set():
            return
        queue: WorkQueue[ObjectKey] = WorkQueue()
        self._queue, self._reconciler = queue, reconciler
        for key in stores.unfinished():
            queue.add(key)
        workers = [
            asyncio.create_task(self._work(queue, reconciler), name=f"worker {number}")
            for number in range(self._workers)
        ]
        log.info("working", extra={"workers": self._workers, "unfinished": queue.depth})
        try:
            await stop.wait()
        finally:
            queue.shut_down()
            self._queue = self._reconciler = None
            reconciler.cancel_running()
            _, late = await asyncio.wait(workers, timeout=DRAIN.total_seconds())
            for worker in late:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            log.info("stopped working", extra={"abandoned": len(late)})

    async def _work(self, queue: WorkQueue[ObjectKey], reconciler: Reconciler) -> None:
        while True:
            try:
                key = await queue.get()
            except QueueShutDown:
                return
            try:
                again = await reconciler.reconcile(key)
            except Exception:
                # A fault of Bowline: the request must not be lost, nor the worker.
                log.exception("pass failed", extra={"bindRequest": str(key)})
                self._metrics.pass_errors.inc()
                queue.add_after(key, self._faults.failed(key, timedelta(seconds=1)))
            else:
                self._faults.succeeded(key)
                if again.delay is not None:
                    queue.add_after(key, again.delay)
            finally:
                queue.done(key)


async def _either(first: asyncio.Event, second: asyncio.Event) -> None:
    """Wait for one of two events."""
    tasks = [asyncio.create_task(event.wait()) for event in (first, second)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
