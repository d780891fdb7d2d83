"""Builds the reconciler's components from a client, plugins and settings.

Nothing runs here yet: ``app`` starts and stops the components in order; tests run them against a real API server.
"""

import socket
from collections.abc import Sequence
from dataclasses import dataclass

from reconciler.binding.attempt import Tools
from reconciler.binding.complete import Completer
from reconciler.binding.deferred import DeferredCompletions
from reconciler.binding.wait_index import WaitIndex
from reconciler.binding.writer import Writer
from reconciler.controller import Controller
from reconciler.informers import Informers
from reconciler.leader import Work
from reconciler.observe.lag import WatchLag
from reconciler.observe.metrics import ReconcilerMetrics
from reconciler.observe.tracker import Observation
from reconciler.reconciler import Reconciler
from reconciler.shards import CLUSTER, Shards
from reconciler.ttl import TTLController
from shared.framework.binding.lifecycle import PluginLifecycle
from shared.framework.binding.runner import Runner
from shared.framework.config import Settings
from shared.framework.plugin import Plugin
from shared.kube.client import KubeClient
from shared.kube.events import EventRecorder
from shared.kube.reflector import Reflector


@dataclass(frozen=True, slots=True)
class Components:
    """The components of every replica, and the leader's work."""

    stores: Informers
    reflectors: dict[str, Reflector]
    recorder: EventRecorder
    runner: Runner
    observation: Observation
    work: Work


async def assemble(
    client: KubeClient,
    plugins: Sequence[Plugin],
    settings: Settings,
    metrics: ReconcilerMetrics,
    shard: str = "",
    registry: str = CLUSTER,
) -> Components:
    """Set up the plugins and build all components. Raises PluginError, after tearing the plugins down."""
    lifecycle = PluginLifecycle(plugins, client, settings, client.clock, metrics.registry)
    try:
        await lifecycle.setup()
        return _assembled(client, plugins, lifecycle, settings, metrics, shard, registry)
    except BaseException:
        await lifecycle.teardown()
        raise


def _assembled(
    client: KubeClient,
    plugins: Sequence[Plugin],
    lifecycle: PluginLifecycle,
    settings: Settings,
    metrics: ReconcilerMetrics,
    shard: str,
    registry: str,
) -> Components:
    clock = client.clock
    recorder = EventRecorder(client, socket.gethostname())
    observation = Observation(metrics, clock)
    controller = Controller(settings.binding.workers, observation, client.availability, clock)
    stores = Informers(client, controller, shard)
    others = lifecycle.reflectors(controller.on_change, controller.on_object)
    watched = stores.by_resource
    for reflector in others.values():
        watched.setdefault(reflector.selection.resource, []).append(reflector.store)
    sleepers = WaitIndex(watched)
    runner = Runner(plugins, observation)
    lag = WatchLag(lambda: stores.requests.version, clock.monotonic)
    metrics.watch_lag.set_function(lag.seconds)
    binding = settings.binding
    ending = Completer(
        runner, Writer(client, lag.wrote), recorder.record, metrics, binding.in_flight_timeout, binding.bound_events
    )
    afterwards = DeferredCompletions(controller.in_line, binding.workers)
    tools = Tools(client, stores, sleepers, afterwards, runner, ending, observation, settings, clock)
    reconciler = Reconciler(tools)
    sweep = TTLController(client, binding.ttl_after_succeeded, clock, shard)
    shards = Shards(client, stores, metrics, shard, controller.on_change, registry)
    reflectors = {**stores.reflectors, **others}
    work = Work(client, reflectors, controller, reconciler, lifecycle, stores, sleepers, sweep, metrics, shards)
    return Components(stores, reflectors, recorder, runner, observation, work)
