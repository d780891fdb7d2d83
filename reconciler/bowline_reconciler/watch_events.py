"""Handles the events of the watches: withdraws attempts, and enqueues the requests that an event can change.

A handler only records and enqueues; it reads nothing but the caches, and decides nothing about a request.
"""

from dataclasses import dataclass

from bowline.api.meta import ObjectKey, ResourceVersion
from bowline.kube.resources import Resource
from bowline.runtime.workqueue import WorkQueue
from bowline_reconciler.binding.requeue import Requeue
from bowline_reconciler.binding.state import RequestStates
from bowline_reconciler.informers import Informers


@dataclass(frozen=True, slots=True)
class WatchEvents:
    """The handlers; see ``informers.EventHandlers``. On a standby the queue is closed and takes no key."""

    queue: WorkQueue[ObjectKey]
    states: RequestStates
    informers: Informers
    requeue: Requeue

    def on_cached(self, key: ObjectKey) -> None:
        """Withdraw the attempt of a request if, by the caches, the request was withdrawn."""
        state, cached_request = self.states.get(key), self.informers.request(key)
        if state is None:
            return
        if cached_request is not None and cached_request.uid == state.uid:
            state.overlay.show(cached_request.resource_version)
        running = state.attempt.running
        if running is not None and not self.informers.still_wanted(running.request, running.node_uid):
            state.attempt.withdraw()

    def on_change(self, key: ObjectKey) -> None:
        """Enqueue a request after a change of it, its pod or its node, unless that cannot require a reconcile."""
        self.on_cached(key)
        if self.requeue.is_deferred(key):
            return  # bound by this process, and queued with low priority
        state, cached_request = self.states.get(key), self.informers.request(key)
        is_own = state is not None and cached_request is not None and cached_request.uid == state.uid
        # Events of the request's own completion: two follow every bind.
        if state is None or not state.is_finished or not is_own:
            self.queue.add(key, ends_rest=cached_request is not None and cached_request.deleting)

    def on_delete(self, key: ObjectKey) -> None:
        """Enqueue a request that has left the watch, because it Succeeded or was deleted: it may still exist.

        The state of a finished request is dropped, unless what left the watch precedes it, or the key is queued:
        without the state that reconcile would make a live read.
        """
        state = self.states.get(key)
        if state is None:
            self.queue.add(key)
            return
        state.attempt.withdraw()
        if not state.is_finished:
            self.queue.add(key, ends_rest=True)
        elif not self.queue.will_run_again(key):
            self.states.leave(key, self.informers.position)

    def on_object(self, resource: Resource, key: ObjectKey) -> None:
        """Enqueue the requests that wait for a changed object."""
        for request in self.requeue.waiters_of(resource, key):
            self.wake(request)

    def wake(self, key: ObjectKey) -> None:
        """Enqueue a request because what it waits for has changed: it does not rest."""
        self.queue.add(key, ends_rest=True)

    def on_list(self, version: ResourceVersion) -> None:
        """Drop the finished requests that the watch has skipped: no event of them follows a list of that version."""
        for key, _ in list(self.states.items()):
            if self.informers.request(key) is None:
                self.states.leave(key, version)
