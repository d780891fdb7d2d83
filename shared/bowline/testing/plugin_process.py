"""Plugins as a process of the reconciler runs them: set up, with synced watches, and queues.

There is no leader election: the process leads until it ends.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from prometheus_client import CollectorRegistry

from bowline.framework.binding.lifecycle import PluginError, PluginLifecycle, Watch
from bowline.framework.plugin import Plugin
from bowline.kube.client import KubeClient
from bowline.runtime.clock import SystemClock
from bowline.runtime.tasks import cancel_and_wait

# How long the first lists of the plugins' watches may take.
_SYNC_LIMIT_S = 30.0
_POLL_S = 0.01


@asynccontextmanager
async def running_plugins(
    plugins: Sequence[Plugin], client: KubeClient, denials: Callable[[], Sequence[str]]
) -> AsyncIterator[CollectorRegistry]:
    """Run the plugins until the block ends; yields their metrics.

    Raises PluginError if one cannot be started: a watch never syncs after one of the ``denials`` of its requests.
    """
    registry = CollectorRegistry()
    lifecycle = PluginLifecycle(plugins, client, SystemClock(), registry)
    async with AsyncExitStack() as ending:
        await lifecycle.setup()
        # Nothing wakes an attempt that waits: it is repeated soon.
        watches = lifecycle.watches(lambda _: None, lambda _, __: None).values()
        for watch in watches:
            watching = asyncio.create_task(watch.reflector.run(), name=f"watch {watch.reflector.selection}")
            ending.push_async_callback(cancel_and_wait, watching)
        async with asyncio.timeout(_SYNC_LIMIT_S):
            await _synced(watches, denials)
        ending.push_async_callback(lifecycle.stop)
        await lifecycle.start()
        yield registry


async def _synced(watches: Collection[Watch], denials: Callable[[], Sequence[str]]) -> None:
    while not all(watch.reflector.first_list_ended.is_set() for watch in watches):
        if texts := denials():
            raise PluginError("; ".join(texts))
        await asyncio.sleep(_POLL_S)


def background_errors(registry: CollectorRegistry) -> list[str]:
    """Return the plugins' queues that have raised."""
    samples = (sample for metric in registry.collect() for sample in metric.samples)
    return [
        f"{sample.labels['plugin']}/{sample.labels['task']}"
        for sample in samples
        if sample.name == "bowline_plugin_background_errors_total" and sample.value
    ]
