"""Plugins as a process of the reconciler runs them: set up, with synced watches, and queues.

There is no leader election: the process leads until it ends.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from prometheus_client import CollectorRegistry

from bowline.api.meta import ObjectID, ObjectKey, ObjectRef
from bowline.framework.binding.lifecycle import PluginError, PluginLifecycle, Watch
from bowline.framework.interface.binding_plugin import BindingPlugin
from bowline.framework.interface.plugin import Plugin, overriding
from bowline.kube.client import KubeClient
from bowline.runtime.clock import SystemClock
from bowline.runtime.tasks import cancel_and_wait

# How long the first lists of the plugins' watches may take.
_SYNC_LIMIT_S = 30.0
# How long a setup may take beyond its budget, and what a term has started beyond its end.
_LATE_S = 5.0
_POLL_S = 0.01
# What the reconciler itself watches.
_WATCHED = ("Pod", "Node")
_ERRORS = ("bowline_plugin_background_errors_total", "bowline_reflector_callback_errors_total")


@asynccontextmanager
async def running_plugins(
    plugins: Sequence[Plugin],
    client: KubeClient,
    registry: CollectorRegistry,
    denials: Callable[[], Sequence[str]],
) -> AsyncIterator[Callable[[ObjectKey, Sequence[ObjectRef]], bool]]:
    """Run the plugins until the block ends. Their metrics are in ``registry``.

    Yields whether an event has ended a request's wait for objects.

    Raises PluginError if one cannot be started, or does not end: a watch never syncs after one of the ``denials`` of
    its requests.
    """
    lifecycle = PluginLifecycle(plugins, client, SystemClock(), registry)
    async with AsyncExitStack() as ending:
        await _set_up(lifecycle, plugins)
        woken, shown = set[ObjectKey](), set[ObjectID]()
        # Nothing wakes an attempt that waits: it is repeated soon.
        watches = lifecycle.watches(
            woken.add, lambda resource, key: shown.add((resource.api_version, resource.kind, key))
        ).values()
        for watch in watches:
            watching = asyncio.create_task(watch.reflector.run(), name=f"watch {watch.reflector.selection}")
            ending.push_async_callback(cancel_and_wait, watching)
        async with asyncio.timeout(_SYNC_LIMIT_S):
            await _synced(watches, denials)
        ending.push_async_callback(lifecycle.stop, _LATE_S)
        await lifecycle.start()
        yield partial(_ends_wait, watches, woken, shown)


def _ends_wait(
    watches: Collection[Watch],
    woken: Collection[ObjectKey],
    shown: Collection[ObjectID],
    request: ObjectKey,
    refs: Sequence[ObjectRef],
) -> bool:
    """Whether an event source has woken the request, or shows one of the objects in a state that may end the wait."""
    if request in woken or any(ref.kind in _WATCHED for ref in refs):
        return True
    resources = [(watch, watch.reflector.selection.resource) for watch in watches]
    return any(
        (stored := watch.reflector.store.get(ref.key)) is None or watch.may_end_wait(request, stored)
        for watch, resource in resources
        for ref in refs
        if ref.id in shown and (ref.api_version, ref.kind) == (resource.api_version, resource.kind)
    )


async def _set_up(lifecycle: PluginLifecycle, plugins: Sequence[Plugin]) -> None:
    """Raises PluginError, also for a setup that ignores its cancellation."""
    binding_plugins = [plugin for plugin in plugins if isinstance(plugin, BindingPlugin)]
    with_setup = overriding(binding_plugins, BindingPlugin.setup)
    limit_s = sum(plugin.budgets.setup_s + _LATE_S for plugin in with_setup)
    setting_up = asyncio.create_task(lifecycle.setup(), name="setup")
    if limit_s and not (await asyncio.wait([setting_up], timeout=limit_s))[0]:
        raise PluginError("a setup ignores its cancellation; let CancelledError through")
    await setting_up


async def _synced(watches: Collection[Watch], denials: Callable[[], Sequence[str]]) -> None:
    while not all(watch.reflector.first_list_ended.is_set() for watch in watches):
        if texts := denials():
            raise PluginError("; ".join(texts))
        await asyncio.sleep(_POLL_S)
    for watch in watches:
        if not (watch.reflector.synced.is_set() or watch.reflector.selection.is_optional):
            remedy = "correct the resource, create its CRD in the fixture bowline_cluster, or set `optional`"
            raise PluginError(f"its event source reports nothing: {watch.reflector.last_error}; {remedy}")


def background_errors(registry: CollectorRegistry) -> list[str]:
    """Return the plugins' queues, tasks and callbacks that have raised."""
    samples = (sample for metric in registry.collect() for sample in metric.samples)
    return [
        f"{sample.labels['plugin']}/{sample.labels.get('task') or sample.labels['callback']}"
        for sample in samples
        if sample.name in _ERRORS and sample.value
    ]
