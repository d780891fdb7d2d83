"""Start and stop of plugins: once each per term, named when they fail, however the term ends."""

import asyncio
from typing import cast

import pytest
from prometheus_client import CollectorRegistry

from bowline.framework.binding.lifecycle import PluginLifecycle
from bowline.framework.binding.plugin import BindingPlugin, Budgets
from bowline.framework.config import Settings
from bowline.framework.plugin import PluginConfig
from bowline.kube.client import KubeClient
from bowline.runtime.clock import SystemClock

pytestmark = pytest.mark.looptime


class Recorded(BindingPlugin):
    """Records its calls; ``start_s`` and ``stop_s`` are their durations, negative for an exception."""

    budgets = Budgets(setup_s=10)
    calls: list[str] = []

    def __init__(self, name: str, start_s: float = 0, stop_s: float = 0) -> None:
        super().__init__(PluginConfig(), Settings())
        self.name = name  # type: ignore[misc]
        self._start_s, self._stop_s = start_s, stop_s

    async def start(self) -> None:
        await self._record_call("start", self._start_s)

    async def stop(self) -> None:
        await self._record_call("stop", self._stop_s)

    async def _record_call(self, point: str, seconds: float) -> None:
        self.calls.append(f"{point} {self.name}")
        if seconds < 0:
            raise RuntimeError("broken")
        await asyncio.sleep(seconds)


def lifecycle(*plugins: Recorded) -> PluginLifecycle:
    Recorded.calls = []
    no_client = cast(KubeClient, None)
    return PluginLifecycle(plugins, no_client, SystemClock(), CollectorRegistry())


async def test_a_cancelled_start_is_stopped_too() -> None:
    life = lifecycle(Recorded("a"), Recorded("b", 5), Recorded("c"))
    starting = asyncio.create_task(life.start())
    await asyncio.sleep(1)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await life.stop()
    assert Recorded.calls == ["start a", "start b", "stop b", "stop a"]


async def test_all_stops_together_end_before_the_lease_expires() -> None:
    life = lifecycle(Recorded("a", stop_s=9), Recorded("b", stop_s=9))
    await life.start()
    began = asyncio.get_running_loop().time()
    await life.stop(within_s=4)
    assert asyncio.get_running_loop().time() - began == pytest.approx(4)
