"""Builds the reconciler's components from a client, plugins and settings.

Nothing runs here yet: ``app`` starts and stops the components in order; tests run them against a real API server.
"""

import asyncio
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from bowline.api import names
from bowline.api.meta import ObjectKey, ObjectRef
from bowline.framework.binding.calls import PluginCaller
from bowline.framework.binding.lifecycle import PluginLifecycle, Watch
from bowline.framework.binding.runner import Runner
from bowline.framework.config import Settings
from bowline.framework.interface.plugin import Plugin
from bowline.kube.client import KubeClient
from bowline.kube.events import EventNote, EventRecorder
from bowline.kube.reflector import Reflector
from bowline.runtime.workqueue import WorkQueue
from bowline_reconciler.drive.driver import Driver
from bowline_reconciler.drive.gangs import Gangs
from bowline_reconciler.drive.in_flight import InFlightWrites
from bowline_reconciler.drive.pod_conditions import PodConditions
from bowline_reconciler.drive.progress import ProgressReports, points_of
from bowline_reconciler.drive.reads import Reads
from bowline_reconciler.drive.reconciler import Reconciler
from bowline_reconciler.drive.reporter import Reporter
from bowline_reconciler.drive.requeue import Requeue, WaitIndex, WaitSource, WatchEvents
from bowline_reconciler.drive.state import RequestStates
from bowline_reconciler.drive.writer import Writer
from bowline_reconciler.observe import OWN, Observation
from bowline_reconciler.term.controller import Controller, Memory, new_queue
from bowline_reconciler.term.releases import Releases
from bowline_reconciler.term.ttl import TTLController
from bowline_reconciler.watch.informers import EventHandlers, Informers


@dataclass(frozen=True, slots=True)
class Components:
    """The components of every replica. ``reflectors``: all watches by name, the plugins' as ``<plugin>/<number>``."""

    settings: Settings
    client: KubeClient
    informers: Informers
    reflectors: Mapping[str, Reflector]
    recorder: EventRecorder
    observation: Observation
    queue: WorkQueue[ObjectKey]
    memory: Memory
    controller: Controller
    calls: PluginCaller
    progress: ProgressReports
    plugins: PluginLifecycle
    ttl: TTLController
    releases: Releases

    def unsynced(self) -> str | None:
        """Return which watch has not been listed yet, and why; a plugin's with the plugin's name. None if all have.

        A plugin's watch of a resource that the API server does not serve counts as listed: there is nothing to list.
        """
        for name, reflector in self.reflectors.items():
            if not self._synced(name).is_set():
                is_own = name in self.informers.reflectors
                what = name if is_own else f"plugin {name.partition('/')[0]}, watch of {reflector.selection}"
                return f"{what}: {reflector.last_error or 'not listed yet'}"
        return None

    async def wait_for_sync(self) -> None:
        """Wait until ``unsynced`` returns None."""
        for name in self.reflectors:
            await self._synced(name).wait()

    def _synced(self, name: str) -> asyncio.Event:
        reflector = self.reflectors[name]
        return reflector.synced if name in self.informers.reflectors else reflector.first_list_ended


async def build(
    client: KubeClient,
    plugins: Sequence[Plugin],
    settings: Settings,
    observation: Observation,
    *,
    uninstalling: bool = False,
) -> Components:
    """Set up the plugins and build all components. Raises PluginError.

    ``uninstalling``: every request is rolled back instead of attempted.
    """
    clock, binding, jitter = client.clock, settings.binding, client.random.random
    recorder = EventRecorder(client, socket.gethostname())
    client.unreadable.follow(lambda ref, why: recorder.record(_not_read(ref, why)))
    lifecycle = PluginLifecycle(plugins, client, clock, observation.metrics.registry)

    handlers = _late_handlers(lambda: events)
    await lifecycle.setup()
    watches = lifecycle.watches(handlers.on_change, handlers.on_object)
    informers = Informers(client, handlers, settings.scheduler_names)
    queue = new_queue(binding.workers, client.availability, jitter)
    wait_index = _wait_index(informers, watches.values())
    caller = PluginCaller(observation, clock.monotonic, observation.metrics.calls)
    runner = Runner(plugins, caller)
    states, requests = RequestStates(clock.monotonic), informers.request_cache
    client.ledger.limit = binding.in_flight_timeout
    conditions, in_flight = PodConditions(client), InFlightWrites(client.ledger)
    reads = Reads(client, informers, states, runner, settings, jitter, uninstalling=uninstalling)
    writer = Writer(client, recorder.record, requests.learn, conditions)
    reporter = Reporter(writer, observation.metrics, clock)
    requeue = Requeue(wait_index, reporter, observation, client.availability, clock, jitter)
    gangs = Gangs(client, states, queue) if settings.feature_gates.gang_binding else None
    services = (reads, states, informers, in_flight, runner, writer, reporter, requeue, observation)
    driver = Driver(*services, clock, binding, lambda: queue.is_busy, jitter, gangs)
    events = WatchEvents(queue, states, informers, wait_index)
    reconciler = Reconciler(requests, reads, states, driver, requeue, observation, clock)
    memory = Memory(states, requests, in_flight, requeue, conditions, runner)
    observation.metrics.count(
        lambda: points_of(states, caller.in_progress), lambda: states.waits(OWN), lambda: memory.sizes
    )
    observation.metrics.queue_depth.set_function(lambda: queue.depth)
    observation.metrics.oldest_request.set_function(lambda: informers.oldest_age().total_seconds())
    progress = ProgressReports(states, requests, reporter, requeue, client.availability, caller, clock)
    return Components(
        settings,
        client,
        informers,
        {**informers.reflectors, **{name: watch.reflector for name, watch in watches.items()}},
        recorder,
        observation,
        queue,
        memory,
        Controller(queue, reconciler, memory, informers, observation.metrics, client.availability, jitter),
        caller,
        progress,
        lifecycle,
        TTLController(client, binding.ttl_after_succeeded, clock),
        Releases(client, informers, reads, writer, runner, uninstalling=uninstalling),
    )


def _late_handlers(events: Callable[[], WatchEvents]) -> EventHandlers:
    """Return handlers that are built later: they need the caches, whose handlers these are."""
    return EventHandlers(
        on_cached=lambda key: events().on_cached(key),
        on_change=lambda key: events().on_change(key),
        on_delete=lambda key: events().on_delete(key),
        on_object=lambda resource, key: events().on_object(resource, key),
        sent_bind=lambda key: events().sent_bind(key),
    )


def _wait_index(informers: Informers, watches: Iterable[Watch]) -> WaitIndex:
    sources = {resource: [WaitSource(store)] for resource, store in informers.stores.items()}
    for watch in watches:
        source = WaitSource(watch.reflector.store, watch.may_end_wait)
        sources.setdefault(watch.reflector.selection.resource, []).append(source)
    return WaitIndex(sources)


def _not_read(ref: ObjectRef, why: str) -> EventNote:
    """Return the event about an object that is not decoded."""
    note = f"Bowline does not read this object: {why}; repair it, its managedFields too, or delete it"
    return EventNote(ref, names.EVENT_NOT_READ, note, "Warning", action="Reading")
