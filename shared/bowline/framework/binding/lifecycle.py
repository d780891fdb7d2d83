"""Lifecycle of the plugins in the reconciler: setup with the process, queues and ``run`` with leadership, watches.

A plugin that cannot be set up prevents the process from working: the remaining plugins would bind pods without their
devices. What raises later, in a queue or in ``run``, is logged with the plugin's name, counted and continues after a
backoff: a plugin's own task would end unnoticed. An error of the API server, such as a denial by a quota, is logged
with its cause in one line, every other exception as a defect with its traceback.
"""

import asyncio
import logging
import math
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge

from bowline.api.meta import Object, ObjectKey, ObjectUID, key_of
from bowline.framework.binding.calls import PluginCall, permit_of
from bowline.framework.interface.binding_plugin import BindingPlugin
from bowline.framework.interface.builtin import BuiltinBindingPlugin
from bowline.framework.interface.handle import EventSource, Handle, Reconcile
from bowline.framework.interface.metrics import PluginMetrics
from bowline.framework.interface.plugin import Plugin, overriding
from bowline.kube.callbacks import Callback, Callbacks
from bowline.kube.calls import limited_to
from bowline.kube.client import KubeClient
from bowline.kube.errors import KubeError
from bowline.kube.reflector import EventType, Listener, Reflector
from bowline.kube.resources import Resource, Selection
from bowline.runtime.backoff import ItemBackoff
from bowline.runtime.clock import Clock
from bowline.runtime.tasks import LimitExceededError, raise_foreign_cancellation, turns_timeout
from bowline.runtime.workers import Result, failure_of, run_worker, wait_failed
from bowline.runtime.workqueue import RETRY_BACKOFF, WorkQueue

log = logging.getLogger(__name__)

# How long a term's work has to end: a write in progress has the client's timeout.
_STOP_S = 40.0
# A callback that takes less is one of many, for as many objects.
_LONG_S = 1.0
# How the name of a queue's task begins.
_WORKER = "worker "
# Keys of one queue that are reconciled at a time; slow ones do not count (see ``WorkQueue``).
WORKERS = 32
# The shortest pause of a ``run`` that has raised.
_PAUSE = timedelta(seconds=1)
# The shortest delay of a requeue: a queue without one would keep the event loop.
_SHORTEST = timedelta(milliseconds=100)


class PluginError(Exception):
    """A plugin cannot be set up, or does not end; the message names the plugin and the call."""


@dataclass(frozen=True, slots=True)
class Watch:
    """A plugin's watch. ``may_end_wait`` returns whether a cached object's state may end a request's wait for it."""

    reflector: Reflector
    may_end_wait: Callable[[ObjectKey, Object], bool]


class PluginWorker:
    """A plugin's own leader-only queue; keys added on a standby are dropped.

    It isolates its keys as the queue of requests does: a reconcile that hangs delays its own key only, and ends after
    a limit; those of one namespace leave room for every other.
    """

    def __init__(
        self,
        plugin: BindingPlugin,
        name: str,
        reconcile: Reconcile,
        failed: Callable[[], None],
        jitter: Callable[[], float],
    ) -> None:
        self.name, self.permit = name, permit_of(plugin)
        self._reconcile = reconcile
        self._limit_s = plugin.budgets.reconcile_s
        self._failed = failed
        self.queue: WorkQueue[ObjectKey] = WorkQueue(
            group=lambda key: key.namespace,
            workers=WORKERS,
            backoff=ItemBackoff(*RETRY_BACKOFF, random=jitter),
            is_open=False,
        )

    async def run(self) -> None:
        """Work as one of the queue's ``capacity`` workers, until the queue is shut down."""
        await run_worker(self.queue, self._process, self._on_error)

    async def _process(self, key: ObjectKey) -> Result:
        async with turns_timeout(self._limit_s):
            delay = await self._reconcile(key)
        return Result(None if delay is None else max(delay, _SHORTEST))

    def _on_error(self, key: ObjectKey) -> None:
        self._failed()
        _log_error({"worker": self.name, "key": str(key)})


class PluginLifecycle:
    """Sets plugins up, and runs their watches, queues and tasks. Registers metrics in ``registry``."""

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
            "Exceptions of a plugin's queues and of its run, which continue after a backoff.",
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
        self._tasks: list[asyncio.Task[None]] = []
        self._callbacks: list[Callbacks] = []

    async def setup(self) -> None:
        """Set every plugin up. Raises PluginError."""
        for plugin in self._plugins:
            handle = Handle(
                self._client,
                self._clock,
                partial(self._add_worker, plugin),
                PluginMetrics(plugin.name, self._registry),
            )
            await _set_up(plugin, handle)
            for state in _sizes(plugin):
                size = partial(_size, plugin, state)
                self._remembered.labels(plugin.name, state).set_function(size)

    @property
    def sizes(self) -> dict[str, Mapping[str, int]]:
        """The sizes of what each plugin remembers."""
        return {plugin.name: sizes for plugin in self._plugins if (sizes := _sizes(plugin))}

    def watches(
        self, wake: Callable[[ObjectKey], None], on_object: Callable[[Resource, ObjectKey], None]
    ) -> dict[str, Watch]:
        """Return a watch for every event source, by a unique name.

        Their events call ``on_object`` with the object, and ``wake`` with the requests that the source returns for
        it. Raises PluginError.
        """
        watches = {}
        sources = [(plugin.name, source) for plugin in self._plugins for source in _sources(plugin)]
        for number, (owner, source) in enumerate(sources):
            selection = Selection(
                source.resource,
                source.namespace,
                source.label_selector,
                source.field_selector,
                is_optional=source.optional,
            )
            callbacks = Callbacks(owner, selection.resource.plural, self._clock, self._client.metrics)
            listener = Listener(partial(_report, source, callbacks, wake, on_object))
            reflector = Reflector(self._client, selection, listener=listener, transform=source.transform, owner=owner)
            if source.attach is not None:
                source.attach(reflector)
            self._callbacks += [callbacks, reflector.callbacks]
            watches[f"{owner}/{number}"] = Watch(reflector, partial(_may_end_wait, source, callbacks))
        return watches

    async def start(self) -> None:
        """Begin a term: open the queues, and call ``run`` up to its first wait. Requires synced caches."""
        for worker in self._workers.values():
            worker.queue.open()
            name = f"{_WORKER}{worker.name}"
            with limited_to(worker.permit):
                self._tasks += [asyncio.create_task(worker.run(), name=name) for _ in range(worker.queue.capacity)]
        for plugin in overriding(self._plugins, BindingPlugin.run):
            name, failed = f"{plugin.name}/run", self._errors.labels(plugin.name, "run").inc
            with limited_to(permit_of(plugin)):
                running = _run_in_term(name, plugin.run, failed, self._jitter)
                self._tasks.append(asyncio.create_task(running, name=name))
        await asyncio.sleep(0)

    def cancel(self) -> None:
        """End the term's work; ``stop`` still must be called."""
        for worker in self._workers.values():
            worker.queue.shut_down()
        for task in self._tasks:
            if not task.cancelling():  # a second one would interrupt what it does at its end
                task.cancel()

    async def stop(self, limit_s: float = _STOP_S) -> None:
        """End the term. Raises PluginError for what does not end, and the error of a worker."""
        self.cancel()
        tasks, self._tasks = self._tasks, []
        stuck = (await asyncio.wait(tasks, timeout=limit_s))[1] if tasks else ()
        for task in tasks:
            if task not in stuck and (failure := failure_of(task)) is not None:
                raise failure
        if stuck:
            names = ", ".join(sorted({task.get_name() for task in stuck}))
            raise PluginError(f"{names}: does not end {limit_s:g} s after its cancellation")

    def current(self, loop: asyncio.AbstractEventLoop) -> PluginCall | None:
        """Return the callback, the queue or the ``run`` that the event loop is executing. From any thread."""
        for callbacks in self._callbacks:
            callback, since = callbacks.in_progress or ("", math.inf)
            if self._clock.monotonic() - since > _LONG_S:
                return _call_outside(callbacks.owner, callback)
        task = asyncio.current_task(loop)
        if task is None or task not in self._tasks:
            return None
        return _call_outside(*task.get_name().removeprefix(_WORKER).split("/", 1))

    async def failure(self) -> None:
        """Wait until a worker itself fails. What a plugin raises is retried and does not count."""
        await wait_failed(self._tasks)

    def _jitter(self) -> float:
        return self._client.random.random()

    def _add_worker(self, plugin: BindingPlugin, name: str, reconcile: Reconcile) -> Callable[[ObjectKey], None]:
        full = f"{plugin.name}/{name}"
        if full in self._workers:
            raise ValueError(f"plugin {plugin.name} registers worker {name!r} twice")
        failed = self._errors.labels(plugin.name, name).inc
        worker = self._workers[full] = PluginWorker(plugin, full, reconcile, failed, self._jitter)
        return worker.queue.add


async def _run_in_term(
    name: str,
    run: Callable[[], Awaitable[None]],
    failed: Callable[[], None],
    jitter: Callable[[], float],
) -> None:
    """Call a plugin's ``run`` until it returns."""
    backoff: ItemBackoff[str] = ItemBackoff(*RETRY_BACKOFF, random=jitter)
    while True:
        try:
            return await raise_foreign_cancellation(run())
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException:  # noqa: BLE001 - anything else would end the work of all others
            failed()
            _log_error({"worker": name})
        await asyncio.sleep(backoff.next_delay(name, _PAUSE).total_seconds())


def _log_error(fields: Mapping[str, str]) -> None:
    error = sys.exception()
    if isinstance(error, KubeError):
        log.warning("a plugin's call fails, its worker retries", extra={**fields, "error": str(error)})
    else:
        log.exception("plugin worker failed", extra=fields)


def _call_outside(plugin: str, point: str) -> PluginCall:
    """Return a call that belongs to no request."""
    return PluginCall(plugin, point, None, ObjectUID(""), 0.0)


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


async def _set_up(plugin: BindingPlugin, handle: Handle) -> None:
    """Raises PluginError for an exception, and after the plugin's budget."""
    try:
        with limited_to(permit_of(plugin)):
            async with turns_timeout(plugin.budgets.setup_s):
                await raise_foreign_cancellation(plugin.setup(handle))
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        why = str(error) if isinstance(error, LimitExceededError) else f"raised {type(error).__name__}: {error}"
        raise PluginError(f"plugin {plugin.name}: setup {why}") from error


def _report(
    source: EventSource,
    callbacks: Callbacks,
    wake: Callable[[ObjectKey], None],
    on_object: Callable[[Resource, ObjectKey], None],
    _: EventType,
    key: ObjectKey,
    old: Object | None,
    new: Object | None,
) -> None:
    """Handle a change of a watched object. A callback of a plugin that raises is skipped."""
    if source.on_change is not None:
        callbacks.guard(Callback.ON_CHANGE, key, partial(source.on_change, old, new), None)
    on_object(source.resource, key)
    # Wake the requests of the old version too: they may be waiting for this object to stop referring to them.
    requests: set[ObjectKey] = set()
    for version in (old, new):
        if version is not None:
            requests |= callbacks.guard(Callback.KEYS, key, partial(_keys, source, version), frozenset())
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


def _may_end_wait(source: EventSource, callbacks: Callbacks, request: ObjectKey, raw: Object) -> bool:
    """Return whether the object in this state may end the request's wait; True without a hint, or if it raises."""
    hint = source.queueing_hint
    return hint is None or callbacks.guard(Callback.QUEUEING_HINT, key_of(raw), partial(hint, request, raw), True)


def _keys(source: EventSource, raw: Object) -> frozenset[ObjectKey]:
    """Return the requests that an object concerns. Raises the plugin's exception, or TypeError for an invalid
    result.
    """
    keys = frozenset(source.keys(raw))
    wrong = next((key for key in keys if not isinstance(key, ObjectKey)), None)
    if wrong is not None:
        raise TypeError(f"keys of {source.resource} returned {wrong!r}, which is no ObjectKey")
    return keys
