"""Handles the events of the watches: withdraws attempts, and enqueues the requests that an event can change.

A handler only records and enqueues; it reads nothing but the caches, and decides nothing about a request.
"""

from dataclasses import dataclass

from bowline.api.meta import ObjectKey
from bowline.kube.resources import Resource
from bowline.runtime.workqueue import WorkQueue
from bowline_reconciler.decide.snapshot import is_finished
from bowline_reconciler.drive.driver import Driver
from bowline_reconciler.drive.requeue import WaitIndex
from bowline_reconciler.drive.state import RequestStates
from bowline_reconciler.watch.informers import Informers


@dataclass(frozen=True, slots=True)
class WatchEvents:
    """The handlers; see ``informers.EventHandlers``. On a standby the queue is closed and takes no key."""

    queue: WorkQueue[ObjectKey]
    states: RequestStates
    informers: Informers
    driver: Driver
    index: WaitIndex

    def on_cached(self, key: ObjectKey) -> None:
        """Withdraw the attempt of a request if, by the caches, the request was withdrawn."""
        state = self.states.get(key)
        running = state.attempt.running if state is not None else None
        if running is not None and not self.informers.still_wanted(running.request, running.node_uid):
            self.states.withdraw(key)

    def on_change(self, key: ObjectKey) -> None:
        """Enqueue a request after a change of it, its pod or its node, unless that cannot require a reconcile."""
        self.on_cached(key)
        if key in self.driver.deferred:
            return  # bound by this process, and queued with low priority
        request = self.informers.request(key)
        if request is None or not is_finished(request) or self.states.get(key) is not None:
            self.queue.add(key, ends_rest=request is not None and request.deleting)

    def on_delete(self, key: ObjectKey) -> None:
        """Enqueue a request that has left the watch, because it Succeeded or was deleted: it may still exist."""
        self.states.withdraw(key)
        self.queue.add(key, ends_rest=self.states.get(key) is not None)

    def on_object(self, resource: Resource, key: ObjectKey) -> None:
        """Enqueue the requests that wait for a changed object."""
        for request in self.index.waiters_of(resource, key):
            self.wake(request)

    def wake(self, key: ObjectKey) -> None:
        """Enqueue a request because what it waits for has changed: it does not rest."""
        self.queue.add(key, ends_rest=True)
