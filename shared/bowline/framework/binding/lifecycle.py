"""Lifecycle of the plugins in the reconciler: setup and teardown, start and stop with leadership, watches and queues.

Plugins start in order and stop in reverse. Each process calls setup and teardown of each plugin once, each leadership
term start and stop once, in that order, even if the first of the two failed; the queues end before the first stop. A
plugin that cannot be set up or started prevents the process from working: the remaining plugins would bind pods
without their devices.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge

from bowline.api.meta import Object, ObjectKey, key_of
from bowline.framework.binding.builtin import BuiltinBindingPlugin
from bowline.framework.binding.declared import permit_of
from bowline.framework.binding.handle import EventSource, Handle, Reconcile
from bowline.framework.binding.metrics import PluginMetrics
from bowline.framework.binding.plugin import BindingPlugin
from bowline.framework.binding.worker import PluginWorker
from bowline.framework.plugin import Plugin
from bowline.kube.callbacks import Callback, Callbacks
from bowline.kube.client import KubeClient
from bowline.kube.permits import limited_to
from bowline.kube.reflector import EventType, Listener, Reflector, Transform
from bowline.kube.resources import Resource, Selection
from bowline.runtime.clock import Clock
from bowline.runtime.tasks import raise_foreign_cancellation
from bowline.runtime.workers import wait_failed

log = logging.getLogger(__name__)


class PluginError(Exception):
    """A plugin cannot be set up, started or stopped; the message names the plugin and the call."""


@dataclass(frozen=True, slots=True)
class Watch:
    """A plugin's watch. ``may_end_wait`` returns whether a cached object's state may end a request's wait for it."""

    reflector: Reflector
    may_end_wait: Callable[[ObjectKey, Object], bool]


class PluginLifecycle:
    """Sets plugins up, starts and stops them, and runs their watches and queues. Registers metrics in
    ``registry``.
    """

    def __init__(
        self,
        plugins: Sequence[Plugin],
        client: KubeClient,
        clock: Clock,
        registry: CollectorRegistry,
    ) -> None:
        self._plugins = tuple(plugin for plugin in plugins if isinstance(plugin, BindingPlugin))
        self._client = client
        self._clock = clock
        self._registry = registry
        self._errors = Counter(
            "bowline_plugin_background_errors_total",
            "Exceptions of a plugin's queues, which continue after a backoff.",
            ["plugin", "task"],
            registry=registry,
        )
        self._remembered = Gauge(
            "bowline_plugin_remembered",
            "Entries of what a plugin remembers of requests and objects.",
            ["plugin", "state"],
            registry=registry,
        )
        self._workers: dict[str, PluginWorker] = {}
        self._set_up: list[BindingPlugin] = []
        self._plugins_to_stop: list[BindingPlugin] = []

    async def setup(self) -> None:
        """Set every plugin up. Raises PluginError. ``teardown`` must follow in any case, before the process ends."""
        for plugin in self._plugins:
            self._set_up.append(plugin)
            handle = Handle(
                self._client,
                self._clock,
                partial(self._add_worker, plugin),
                PluginMetrics(plugin.name, self._registry),
            )
            await _call(plugin, "setup", partial(plugin.setup, handle), plugin.budgets.setup_s)
            for state in _sizes(plugin):
                size = partial(_size, plugin, state)
                self._remembered.labels(plugin.name, state).set_function(size)

    @property
    def sizes(self) -> dict[str, Mapping[str, int]]:
        """The sizes of what each plugin remembers."""
        return {plugin.name: sizes for plugin in self._set_up if (sizes := _sizes(plugin))}

    async def teardown(self) -> None:
        """Tear down, in reverse, every plugin whose setup was called. Failures are logged."""
        while self._set_up:
            plugin = self._set_up.pop()
            try:
                await _call(plugin, "teardown", plugin.teardown, plugin.budgets.setup_s)
            except PluginError:
                log.exception("plugin failed to tear down", extra={"plugin": plugin.name})

    def watches(
        self, wake: Callable[[ObjectKey], None], on_object: Callable[[Resource, ObjectKey], None]
    ) -> dict[str, Watch]:
        """Return a watch for every event source, by a unique name.

        Their events call ``on_object`` with the object, and ``wake`` with the requests that the source returns for
        it. Raises PluginError.
        """
        members: dict[tuple[Selection, Transform | None], list[tuple[str, EventSource]]] = {}
        for plugin in self._plugins:
            for source in _sources(plugin):
                selection = Selection(
                    source.resource,
                    source.namespace,
                    source.label_selector,
                    source.field_selector,
                    is_optional=source.optional,
                )
                members.setdefault((selection, source.transform), []).append((plugin.name, source))
        watches = {}
        for number, ((selection, transform), sharing) in enumerate(members.items()):
            owner = ",".join(dict.fromkeys(name for name, _ in sharing))
            observers = [
                _Observer(source, Callbacks(name, selection.resource.plural, self._clock, self._client.metrics))
                for name, source in sharing
            ]
            listener = Listener(partial(_report, observers, wake, on_object))
            reflector = Reflector(self._client, selection, listener=listener, transform=transform, owner=owner)
            for _, source in sharing:
                if source.attach is not None:
                    source.attach(reflector)
            watches[f"{owner}/{number}"] = Watch(reflector, partial(_may_end_wait, observers))
        return watches

    async def start(self) -> None:
        """Start the plugins' queues, then the plugins in order. Requires leadership and synced caches.

        May be cancelled when leadership ends. ``stop`` stops every plugin whose start was called, whether it has
        returned, raised or was cancelled. Raises PluginError.
        """
        for worker in self._workers.values():
            worker.start()
        for plugin in self._plugins:
            self._plugins_to_stop.append(plugin)
            await _call(plugin, "start", plugin.start, plugin.budgets.setup_s)
        log.info("plugins started", extra={"plugins": [plugin.name for plugin in self._plugins]})

    def cancel_workers(self) -> None:
        """Cancel the plugins' workers: another process is about to lead. ``stop`` still must be called."""
        for worker in self._workers.values():
            worker.cancel()

    async def stop(self, within_s: float = math.inf) -> None:
        """Stop the queues, then the started plugins in reverse. A plugin's failure is logged.

        ``within_s``: the time for all plugins together, when another process is about to lead. Raises the error of a
        worker that has failed.
        """
        ends_at = asyncio.get_running_loop().time() + within_s
        async with AsyncExitStack() as ending:
            ending.push_async_callback(self._stop_plugins, ends_at)
            for worker in self._workers.values():
                ending.push_async_callback(worker.stop)

    def _jitter(self) -> float:
        return self._client.random.random()

    async def _stop_plugins(self, ends_at: float) -> None:
        while self._plugins_to_stop:
            plugin = self._plugins_to_stop.pop()
            left_s = min(plugin.budgets.setup_s, max(0.0, ends_at - asyncio.get_running_loop().time()))
            try:
                await _call(plugin, "stop", plugin.stop, left_s)
            except PluginError:
                log.exception("plugin failed to stop", extra={"plugin": plugin.name})

    async def failure(self) -> None:
        """Wait until a worker task itself fails. Errors raised by a plugin's reconcile function are retried and do
        not count.
        """
        await wait_failed([task for worker in self._workers.values() for task in worker.tasks])

    def _add_worker(self, plugin: BindingPlugin, name: str, reconcile: Reconcile) -> Callable[[ObjectKey], None]:
        full = f"{plugin.name}/{name}"
        if full in self._workers:
            raise ValueError(f"plugin {plugin.name} registers worker {name!r} twice")
        failed = self._errors.labels(plugin.name, name).inc
        limit_s = plugin.budgets.reconcile_s
        worker = self._workers[full] = PluginWorker(full, reconcile, limit_s, failed, self._jitter, permit_of(plugin))
        return worker.queue.add


def _sources(plugin: BindingPlugin) -> tuple[EventSource, ...]:
    """Return the plugin's event sources. Raises PluginError for an exception or an invalid result."""
    try:
        sources = tuple(plugin.event_sources())
    except BaseException as error:
        raise PluginError(f"plugin {plugin.name}: event_sources raised {type(error).__name__}: {error}") from error
    for source in sources:
        if not isinstance(source, EventSource):
            raise PluginError(f"plugin {plugin.name}: event_sources returned {source!r}, which is no EventSource")
    return sources


async def _call(plugin: BindingPlugin, point: str, method: Callable[[], Awaitable[None]], budget_s: float) -> None:
    """Make a lifecycle call of a plugin. Raises PluginError for an exception, and after ``budget_s`` seconds."""
    deadline = asyncio.timeout(budget_s)
    try:
        with limited_to(permit_of(plugin)):
            async with deadline:
                await raise_foreign_cancellation(method())
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        why = f"took longer than {budget_s:g} s" if deadline.expired() else f"raised {type(error).__name__}: {error}"
        raise PluginError(f"plugin {plugin.name}: {point} {why}") from error


@dataclass(frozen=True, slots=True)
class _Observer:
    """One plugin's part of a watch, and the guard of its callbacks."""

    source: EventSource
    callbacks: Callbacks


def _report(
    observers: Sequence[_Observer],
    wake: Callable[[ObjectKey], None],
    on_object: Callable[[Resource, ObjectKey], None],
    _: EventType,
    key: ObjectKey,
    old: Object | None,
    new: Object | None,
) -> None:
    """Handle a change of a watched object. A callback of a plugin that raises is skipped."""
    for observer in observers:
        on_change = observer.source.on_change
        if on_change is not None:
            observer.callbacks.guard(Callback.ON_CHANGE, key, partial(on_change, old, new), None)
    on_object(observers[0].source.resource, key)
    # Wake the requests of the old version too: they may be waiting for this object to stop referring to them.
    requests: set[ObjectKey] = set()
    for observer in observers:
        for version in (old, new):
            if version is not None:
                keys = partial(_keys, observer.source, version)
                requests |= observer.callbacks.guard(Callback.KEYS, key, keys, frozenset())
    for request in requests:
        wake(request)


def _sizes(plugin: BindingPlugin) -> Mapping[str, int]:
    """Return what the plugin states; nothing if it raises, which is logged."""
    try:
        sizes = plugin.sizes() if isinstance(plugin, BuiltinBindingPlugin) else {}
        return {state: int(size) for state, size in sizes.items()}
    except BaseException:
        log.exception("plugin raised", extra={"plugin": plugin.name, "point": "sizes"})
        return {}


def _size(plugin: BindingPlugin, state: str) -> int:
    return _sizes(plugin).get(state, 0)


def _may_end_wait(observers: Sequence[_Observer], request: ObjectKey, raw: Object) -> bool:
    """Return whether the object in this state may end the request's wait; True if a plugin has no hint, or it
    raises.
    """
    for observer in observers:
        hint = observer.source.queueing_hint
        if hint is None:
            return True
        if observer.callbacks.guard(Callback.QUEUEING_HINT, key_of(raw), partial(hint, request, raw), True):
            return True
    return False


def _keys(source: EventSource, raw: Object) -> frozenset[ObjectKey]:
    """Return the requests that an object concerns. Raises the plugin's exception, or TypeError for an invalid
    result.
    """
    keys = frozenset(source.keys(raw))
    wrong = next((key for key in keys if not isinstance(key, ObjectKey)), None)
    if wrong is not None:
        raise TypeError(f"keys of {source.resource} returned {wrong!r}, which is no ObjectKey")
    return keys
