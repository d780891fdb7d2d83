"""Builds the reconciler's components from a client, plugins and settings.

Nothing runs here yet: ``app`` starts and stops the components in order; tests run them against a real API server.
"""

import asyncio
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reconciler.binding.attempt import Tools
from reconciler.binding.complete import Completer
from reconciler.binding.deferred import DeferredCompletions
from reconciler.binding.wait_index import WaitIndex
from reconciler.binding.writer import Writer
from reconciler.controller import Controller, new_queue
from reconciler.informers import Informers
from reconciler.observe.lag import WatchLag
from reconciler.observe.metrics import ReconcilerMetrics
from reconciler.observe.tracker import Observation
from reconciler.reconciler import Reconciler
from reconciler.shards import CLUSTER, Shards
from reconciler.ttl import TTLController
from shared.api.meta import ObjectKey
from shared.framework.binding.lifecycle import PluginLifecycle
from shared.framework.binding.runner import Runner
from shared.framework.config import Settings
from shared.framework.plugin import Plugin
from shared.kube.client import KubeClient
from shared.kube.events import EventRecorder
from shared.kube.reflector import Reflector
from shared.kube.resources import Resource


@dataclass(frozen=True, slots=True)
class Components:
    """The components of every replica. ``reflectors``: all watches by name, the plugins' as ``<plugin>/<number>``."""

    client: KubeClient
    informers: Informers
    reflectors: Mapping[str, Reflector]
    recorder: EventRecorder
    observation: Observation
    wait_index: WaitIndex
    reconciler: Reconciler
    controller: Controller
    plugins: PluginLifecycle
    ttl: TTLController
    shards: Shards
    metrics: ReconcilerMetrics

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
        return reflector.synced if name in self.informers.reflectors else reflector.known


async def build(
    client: KubeClient,
    plugins: Sequence[Plugin],
    settings: Settings,
    metrics: ReconcilerMetrics,
    shard: str = "",
    registry: str = CLUSTER,
) -> Components:
    """Set up the plugins and build all components. Raises PluginError, after tearing the plugins down."""
    clock, binding = client.clock, settings.binding
    lifecycle = PluginLifecycle(plugins, client, settings, clock, metrics.registry)

    # The reconciler needs the caches, and the caches' handlers need the controller, which is built last.
    def on_change(key: ObjectKey) -> None:
        controller.on_change(key)

    def on_object(resource: Resource, key: ObjectKey) -> None:
        controller.on_object(resource, key)

    try:
        await lifecycle.setup()
        plugin_reflectors = lifecycle.reflectors(on_change, on_object)
    except BaseException:
        await lifecycle.teardown()
        raise
    recorder = EventRecorder(client, socket.gethostname())
    observation = Observation(metrics, clock)
    runner = Runner(plugins, observation)
    informers = Informers(client, shard)
    stores = informers.by_resource
    for reflector in plugin_reflectors.values():
        stores.setdefault(reflector.selection.resource, []).append(reflector.store)
    wait_index = WaitIndex(stores)
    lag = WatchLag(lambda: informers.requests.version, clock.monotonic)
    metrics.watch_lag.set_function(lag.seconds)
    completer = Completer(
        runner, Writer(client, lag.wrote), recorder.record, metrics, binding.in_flight_timeout, binding.bound_events
    )
    queue = new_queue(binding.workers)
    deferred = DeferredCompletions(lambda: queue.normal_depth, binding.workers)
    reconciler = Reconciler(
        Tools(client, informers, wait_index, deferred, runner, completer, observation, settings, clock)
    )
    controller = informers.handler = Controller(
        queue, binding.workers, reconciler, informers, wait_index, observation, client.availability, clock
    )
    return Components(
        client,
        informers,
        {**informers.reflectors, **plugin_reflectors},
        recorder,
        observation,
        wait_index,
        reconciler,
        controller,
        lifecycle,
        TTLController(client, binding.ttl_after_succeeded, clock, shard),
        Shards(client, informers, metrics, shard, controller.on_change, registry),
        metrics,
    )
