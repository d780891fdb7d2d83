"""The controller: one work queue, a fixed number of workers, active only while this process is the leader.

Watches run on every replica, so that a new leader starts with synced caches; their events enqueue keys only on the
leader. An event handler only records and enqueues. Keys enqueued by watches have priority over keys requeued by a
timer: thousands of polling requests do not delay a new one. Namespaces take turns, so that one namespace's hanging or
failing requests do not delay another's.
"""

import asyncio
import logging
import random
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

from reconciler.binding.wait_index import WaitIndex
from reconciler.informers import Informers, Listed
from reconciler.observe.tracker import Observation
from reconciler.reconciler import Reconciler
from shared.api.meta import ObjectKey
from shared.kube.availability import Availability
from shared.kube.errors import KubeError
from shared.kube.resources import Resource
from shared.runtime.backoff import Backoff
from shared.runtime.clock import Clock
from shared.runtime.tasks import cancel_and_wait, wait_first, wait_until
from shared.runtime.workers import failure_of, run_worker, wait_failed
from shared.runtime.workqueue import WorkQueue

log = logging.getLogger(__name__)

# Past the point of no return an attempt has a POST and a patch left; the API server replies within a minute or never.
DRAIN = timedelta(seconds=25)
# One of this many workers may process low-priority keys: reports of waits, retries, polls.
LOW_PRIORITY_SHARE = 8
# Within this time after an outage all held requests are requeued; the number of workers limits the concurrency.
RELEASE_WITHIN = timedelta(seconds=1)


@dataclass(slots=True)
class Term:
    """One leadership term. ``over`` ends it; after that, ``drain`` remains for attempts past the point of no return.

    ``expired`` ends the drain early: the Lease is lost, and another process is about to lead.
    """

    over: asyncio.Event = field(default_factory=asyncio.Event)
    expired: asyncio.Event = field(default_factory=asyncio.Event)
    drain: timedelta = DRAIN


class Controller:
    """Reconciles the keys that the watches report. Call ``lead`` once per leadership term."""

    def __init__(self, workers: int, observation: Observation, availability: Availability, clock: Clock) -> None:
        self._workers = workers
        self._observation = observation
        self._metrics = metrics = observation.metrics
        self._availability = availability
        self._clock = clock
        # Keys to process when the API server is available again.
        self._held: set[ObjectKey] = set()
        self._queue: WorkQueue[ObjectKey] | None = None
        self._reconciler: Reconciler | None = None
        self._sleepers: WaitIndex | None = None
        metrics.queue_depth.set_function(lambda: self._queue.depth if self._queue else 0)
        metrics.queue_delayed.set_function(lambda: self._queue.delayed if self._queue else 0)
        metrics.queue_age.set_function(lambda: self._queue.oldest_age.total_seconds() if self._queue else 0)

    @property
    def queue(self) -> WorkQueue[ObjectKey] | None:
        """The queue while this process is the leader, for the debug pages."""
        return self._queue

    def in_line(self) -> int:
        """Return how many keys of normal priority are ready."""
        return self._queue.normal_depth if self._queue is not None else 0

    # --- event handlers ---

    def on_change(self, key: ObjectKey) -> None:
        """Enqueue a request after an event of it or its pod, unless that cannot require a reconcile."""
        if self._queue is not None and self._reconciler is not None and self._reconciler.note_change(key):
            self._queue.add(key)

    def on_request_gone(self, key: ObjectKey) -> None:
        """Enqueue a request that has left the watch, because it Succeeded or was deleted."""
        if self._queue is None or self._reconciler is None:
            return
        if self._reconciler.note_gone(key, in_line=self._queue.holds(key)):
            self._queue.add(key)

    def on_object(self, resource: Resource, key: ObjectKey) -> None:
        """Enqueue the requests that wait for a changed object."""
        if self._queue is not None and self._sleepers is not None:
            for request in self._sleepers.waiting_for(resource, key):
                self._queue.add(request)

    # --- leading ---

    async def lead(self, reconciler: Reconciler, stores: Informers, sleepers: WaitIndex, term: Term) -> None:
        """Run the workers until the term is over; then take no new keys, withdraw the attempts, and drain the rest.

        The watches must have been listed. Raises the error of a worker that failed.
        """
        since = self._clock.monotonic()
        listed = await self._listed(stores, term.over)
        if term.over.is_set():
            return
        queue: WorkQueue[ObjectKey] = WorkQueue(
            low_priority_limit=max(1, self._workers // LOW_PRIORITY_SHARE),
            group=lambda key: key.namespace,
            workers=self._workers,
        )
        reconciler.begin(since, listed)
        self._queue, self._reconciler, self._sleepers = queue, reconciler, sleepers
        for key in {*stores.unfinished(), *listed.stale}:
            queue.add(key)
        look = partial(self._look, reconciler)
        workers = [
            asyncio.create_task(run_worker(queue, look, self._on_error), name=f"worker {number}")
            for number in range(self._workers)
        ]
        log.info("working", extra={"workers": self._workers, "unfinished": queue.depth})
        recovery = partial(self._recovered, reconciler, queue)
        probing = asyncio.create_task(self._availability.run(stores.probe, recovery), name="availability")
        try:
            await wait_first(term.over.wait(), wait_failed([*workers, probing]))
        finally:
            queue.shut_down()
            await cancel_and_wait(probing)
            self._held.clear()
            self._queue = self._reconciler = self._sleepers = None
            reconciler.withdraw()
            drain_s = term.drain.total_seconds()
            await wait_first(asyncio.wait(workers), asyncio.sleep(drain_s), term.expired.wait())
            late = [worker for worker in workers if not worker.done()]
            for worker in late:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            await reconciler.end()
            log.info("stopped processing requests", extra={"abandoned": len(late)})
        for worker in workers:
            if (failure := failure_of(worker)) is not None:
                raise failure

    async def _listed(self, stores: Informers, over: asyncio.Event) -> Listed:
        """Compare the cache with the API server. Retries until the API server answers or the term is over."""
        backoff = Backoff(timedelta(seconds=0.2), timedelta(seconds=5))
        while not over.is_set():
            try:
                return await stores.compare()
            except KubeError as error:
                delay = backoff.next_delay(timedelta(seconds=0.1))
                log.warning("cannot start processing yet", extra={"error": str(error)})
                await wait_until(over, delay)
        return Listed()

    async def _look(self, reconciler: Reconciler, key: ObjectKey) -> timedelta | None:
        if not self._availability.available:
            self._held.add(key)
            return None
        with self._observation.passing(key):
            again = await reconciler.reconcile(key)
        return again.delay

    def _recovered(self, reconciler: Reconciler, queue: WorkQueue[ObjectKey]) -> None:
        """Requeue the held keys after a random delay: other processes notice the recovery at the same time."""
        reconciler.recovered()
        jitter = RELEASE_WITHIN.total_seconds() * random.random()  # noqa: S311 - spreads load
        asyncio.get_running_loop().call_later(jitter, self._release, queue)

    def _release(self, queue: WorkQueue[ObjectKey]) -> None:
        held, self._held = self._held, set()
        for key in held:
            queue.add(key)

    def _on_error(self, key: ObjectKey) -> None:
        """Log and count a defect of Bowline; the work queue requeues the key."""
        log.exception("reconcile failed", extra={"bindRequest": str(key)})
        self._metrics.pass_errors.inc()
