"""A plugin's worker that fails is noticed by whoever leads, and does not keep others from being stopped."""

import asyncio
from datetime import timedelta
from typing import cast

import pytest
from prometheus_client import CollectorRegistry

from shared.api.meta import ObjectKey
from shared.framework.binding.handle import Handle
from shared.framework.binding.lifecycle import PluginLifecycle
from shared.framework.config import Settings
from shared.framework.plugin import Plugin, PluginConfig
from shared.kube.client import KubeClient
from shared.runtime.clock import SystemClock
from shared.runtime.workqueue import WorkQueue

NOBODY = cast(KubeClient, None)  # nothing here calls the API server


class TwoQueues(Plugin):
    """Has two workers; each key is wanted back after a minute, the one named ``fault`` cannot be looked at."""

    name = "two_queues"

    async def setup(self, handle: Handle) -> None:
        self.looks: list[str] = []
        self.first = handle.worker("first", self._look)
        self.second = handle.worker("second", self._look)

    async def _look(self, key: ObjectKey) -> timedelta | None:
        self.looks.append(key.name)
        if key.name == "fault":
            raise ValueError("a fault")
        return timedelta(minutes=1)


async def started() -> tuple[PluginLifecycle, TwoQueues]:
    plugin = TwoQueues(PluginConfig(), Settings())
    lifecycle = PluginLifecycle([plugin], NOBODY, Settings(), SystemClock(), CollectorRegistry())
    await lifecycle.setup()
    await lifecycle.start()
    return lifecycle, plugin


@pytest.mark.looptime
async def test_a_look_that_fails_is_repeated_and_is_no_failure_of_the_worker() -> None:
    lifecycle, plugin = await started()
    failure = asyncio.create_task(lifecycle.failure())
    plugin.first(ObjectKey("", "fault"))
    await asyncio.sleep(600)
    assert plugin.looks.count("fault") > 2
    assert not failure.done()
    failure.cancel()
    await lifecycle.stop()


@pytest.mark.looptime
async def test_a_worker_that_fails_is_noticed_and_raised_when_all_are_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lifecycle, plugin = await started()
    failure = asyncio.create_task(lifecycle.failure())
    plugin.second(ObjectKey("", "sound"))
    await asyncio.sleep(1)

    def broken(*_: object) -> None:
        raise AttributeError("the timer is none")

    with monkeypatch.context() as patched:
        patched.setattr(WorkQueue, "add_after", broken)
        plugin.first(ObjectKey("", "any"))
        async with asyncio.timeout(1):
            await failure
    with pytest.raises(AttributeError, match="the timer is none"):
        await lifecycle.stop()
    # Nobody works on after the stop, the one that was sound included.
    await asyncio.sleep(600)
    assert plugin.looks == ["sound", "any"]
