"""The controller: one work queue, a fixed number of workers, active only while this process is the leader.

Watches run on every replica, so that a new leader starts with synced caches; their events enqueue keys only on the
leader. Keys enqueued by watches have priority over keys requeued by a timer: thousands of polling requests do not
delay a new one. Namespaces take turns, and a reconcile that lasts gives its worker back, so that one namespace's
hanging or failing requests do not delay another's.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from bowline.api.meta import ObjectKey
from bowline.framework.binding.runner import Runner
from bowline.kube.availability import Availability
from bowline.kube.errors import KubeError
from bowline.runtime.backoff import Backoff, ItemBackoff
from bowline.runtime.tasks import cancel_and_wait, wait_first, wait_until
from bowline.runtime.workers import failure_of, run_worker, wait_failed
from bowline.runtime.workqueue import WorkQueue
from bowline_reconciler.drive.in_flight import InFlightWrites
from bowline_reconciler.drive.pod_conditions import PodConditions
from bowline_reconciler.drive.reconciler import Reconciler
from bowline_reconciler.drive.requeue import Requeue
from bowline_reconciler.drive.state import RequestStates
from bowline_reconciler.observe import ReconcilerMetrics
from bowline_reconciler.watch.informers import Informers, Listed
from bowline_reconciler.watch.request_cache import RequestCache

log = logging.getLogger(__name__)

# Past the point of no return an attempt has a POST and a patch left; the API server replies within a minute or never.
DRAIN = timedelta(seconds=25)
# One of this many workers may process low-priority keys: reports of waits, retries, polls.
LOW_PRIORITY_SHARE = 8
# The rate limit of a failing request: short at first, because most failures are over within a second.
BACKOFF = (timedelta(milliseconds=200), timedelta(seconds=30))


@dataclass(slots=True)
class Term:
    """One leadership term. ``end_event`` ends it; ``drain`` remains for attempts past the point of no return.

    ``expiry`` ends the drain early: the Lease is lost, and another process is about to lead.
    """

    end_event: asyncio.Event = field(default_factory=asyncio.Event)
    expiry: asyncio.Event = field(default_factory=asyncio.Event)
    drain: timedelta = DRAIN


def new_queue(workers: int, availability: Availability, jitter: Callable[[], float]) -> WorkQueue[ObjectKey]:
    """Return the queue of requests, for that many workers; closed until this process leads, paused in an outage.

    ``jitter`` returns a random number in [0, 1).
    """
    return WorkQueue(
        low_priority_limit=max(1, workers // LOW_PRIORITY_SHARE),
        group=lambda key: key.namespace,
        workers=workers,
        backoff=ItemBackoff(*BACKOFF, random=jitter),
        is_open=False,
        is_paused=lambda: not availability.available,
    )


@dataclass(frozen=True, slots=True)
class Memory:
    """What a process remembers, from the beginning of a leadership term to its end.

    Losing it is safe: a term starts from the API objects, as any other process would.
    """

    states: RequestStates
    requests: RequestCache
    in_flight: InFlightWrites
    requeue: Requeue
    conditions: PodConditions
    runner: Runner

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of the in-memory state, by kind; entries are dropped with their requests."""
        return {
            **self.states.sizes,
            "reportTurns": len(self.requeue.report_turns),
            "podConditions": len(self.conditions),
            **self.requests.sizes,
        }

    def start_term(self, stored: Listed) -> None:
        """Begin a leadership term. ``stored``: the requests, compared with the cached ones."""
        self.in_flight.start_term(stored)
        self.requests.mark_stale(stored.stale)

    def withdraw(self) -> None:
        """Withdraw every attempt: the term is over, and the next leader waits for the last POST's end."""
        for _, state in self.states.items():
            state.attempt.withdraw()

    async def end_term(self) -> None:
        """Drop all state: this process's next term starts from the API objects, as any other process would."""
        self.requests.end_term()
        for key, state in self.states.clear().items():
            await self.runner.forget(key, state.of_plugins)
        self.requeue.index.clear()
        self.requeue.report_turns.clear()


@dataclass(frozen=True, slots=True)
class Controller:
    """Reconciles the keys that the watches report. Call ``lead`` once per leadership term.

    ``jitter`` returns a random number in [0, 1).
    """

    queue: WorkQueue[ObjectKey]
    reconciler: Reconciler
    memory: Memory
    informers: Informers
    metrics: ReconcilerMetrics
    availability: Availability
    jitter: Callable[[], float]

    async def lead(self, term: Term) -> None:
        """Run the workers until the term ends; then take no new keys, withdraw the attempts, and drain the rest.

        The watches must have been listed. Raises the error of a worker that failed.
        """
        listing = await self._compare(term.end_event)
        if term.end_event.is_set():
            return
        self.memory.start_term(listing)
        self.queue.open()
        for key in {*self.informers.requests.store, *listing.stale}:
            self.queue.add(key)
        workers = [
            asyncio.create_task(
                run_worker(self.queue, self.reconciler.reconcile, self._on_error), name=f"worker {number}"
            )
            for number in range(self.queue.capacity)
        ]
        log.info("working", extra={"capacity": self.queue.capacity, "unfinished": self.queue.depth})
        probing = asyncio.create_task(
            self.availability.run(self.informers.probe, self._on_recovery), name="availability"
        )
        try:
            await wait_first(term.end_event.wait(), wait_failed([*workers, probing]))
        finally:
            self.queue.shut_down()
            await cancel_and_wait(probing)
            self.memory.withdraw()
            drain_s = term.drain.total_seconds()
            await wait_first(asyncio.wait(workers), asyncio.sleep(drain_s), term.expiry.wait())
            late = [worker for worker in workers if not worker.done()]
            for worker in late:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            await self.memory.end_term()
            log.info("stopped processing requests", extra={"abandoned": len(late)})
        for worker in workers:
            if (failure := failure_of(worker)) is not None:
                raise failure

    async def _compare(self, end_event: asyncio.Event) -> Listed:
        """Compare the cache with the API server. Retries until the API server answers or the term ends."""
        backoff = Backoff(timedelta(seconds=0.2), timedelta(seconds=5), self.jitter)
        while not end_event.is_set():
            try:
                return await self.informers.compare()
            except KubeError as error:
                delay = backoff.next_delay(timedelta(seconds=0.1))
                log.warning("cannot start processing yet", extra={"error": str(error)})
                await wait_until(end_event, delay)
        return Listed()

    def _on_recovery(self) -> None:
        self.memory.states.reset_failures()
        self.queue.forget_all()
        self.queue.resume()

    def _on_error(self, key: ObjectKey) -> None:
        """Log and count a defect of Bowline; the work queue requeues the key."""
        log.exception("reconcile failed", extra={"bindRequest": str(key)})
        self.metrics.reconcile_errors.inc()
