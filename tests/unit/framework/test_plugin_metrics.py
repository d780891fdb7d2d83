"""A plugin's own series: their names, their values from the start, and rejected names."""

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from random import Random
from types import SimpleNamespace
from typing import cast

import pytest
from prometheus_client import CollectorRegistry

from bowline.api.meta import ObjectKey
from bowline.framework.binding.lifecycle import PluginLifecycle
from bowline.framework.config import Settings
from bowline.framework.interface.binding_plugin import BindingPlugin
from bowline.framework.interface.builtin import BuiltinBindingPlugin
from bowline.framework.interface.handle import Handle
from bowline.framework.interface.metrics import PluginMetrics
from bowline.framework.interface.plugin import PluginConfig
from bowline.kube.client import KubeClient
from bowline.runtime.clock import SystemClock

NO_CLIENT = cast(KubeClient, SimpleNamespace(random=Random(0)))  # noqa: S311 - jitter; nothing here calls the API server


def test_series_are_named_after_their_plugin_and_begin_at_zero() -> None:
    registry = CollectorRegistry()
    metrics = PluginMetrics("my-plugin", registry)
    metrics.counter("things_total", "Things.", how=("fast", "slow"))
    metrics.gauge("level", "A level.")
    metrics.histogram("wait_seconds", "A wait.", how=("fast",))
    named = [
        ("bowline_my_plugin_things_total", {"how": "fast"}),
        ("bowline_my_plugin_things_total", {"how": "slow"}),
        ("bowline_my_plugin_level", {}),
        ("bowline_my_plugin_wait_seconds_count", {"how": "fast"}),
    ]
    assert [registry.get_sample_value(name, labels) for name, labels in named] == [0.0] * 4


@pytest.mark.parametrize(
    ("kind", "name", "labels", "rule"),
    [
        pytest.param("counter", "things", {}, "digits and _ and ends with _total", id="a counter of another name"),
        pytest.param("histogram", "wait", {}, "digits and _ and ends with _seconds", id="a wait without its unit"),
        pytest.param("gauge", "Level-1", {}, "its name consists of small letters, digits and _", id="no name"),
        pytest.param("gauge", "level", {"node": ()}, "label node is declared with all", id="a label without values"),
        pytest.param("gauge", "level", {"node": "n1"}, "label node is declared with all", id="a text for a list"),
        pytest.param("counter", "taken_total", {}, "bowline_mine_taken_total is registered already", id="twice"),
    ],
)
def test_an_invalid_name_is_rejected_with_the_plugin_and_the_rule(
    kind: str, name: str, labels: dict[str, tuple[str, ...]], rule: str
) -> None:
    metrics = PluginMetrics("mine", CollectorRegistry())
    metrics.counter("taken_total", "The first.")
    with pytest.raises(ValueError, match="plugin mine: metric '") as caught:
        getattr(metrics, kind)(name, "A meaning.", **labels)
    assert rule in str(caught.value)


class Counting(BindingPlugin):
    """A third-party plugin: counts, and has a queue whose work it blocks."""

    name = "counting"

    async def setup(self, handle: Handle) -> None:
        self.counter = handle.metrics.counter("passes_total", "Passes of its queue.")
        self.began, self.go = asyncio.Event(), asyncio.Event()
        self.add = handle.worker("slow", self._pass)

    async def _pass(self, key: ObjectKey) -> timedelta | None:
        self.began.set()
        await self.go.wait()
        self.counter.inc()
        return None


async def test_a_plugin_counts_through_its_handle_and_its_queue_starts_with_the_leader() -> None:
    registry = CollectorRegistry()
    plugin = Counting(PluginConfig(), Settings())
    lifecycle = PluginLifecycle([plugin], NO_CLIENT, SystemClock(), registry)
    await lifecycle.setup()
    plugin.add(ObjectKey("", "before the leader"))
    await lifecycle.start()
    for name in ("a", "b", "c"):
        plugin.add(ObjectKey("", name))
    await plugin.began.wait()
    plugin.go.set()
    async with asyncio.timeout(30):
        while registry.get_sample_value("bowline_counting_passes_total") != 3:  # noqa: ASYNC110 - no event to wait for
            await asyncio.sleep(0)
    await lifecycle.stop()


class Remembering(BuiltinBindingPlugin):
    """A plugin that remembers requests; without any it cannot state how many."""

    name = "remembering"

    async def setup(self, handle: Handle) -> None:
        self.requests: dict[str, int] | None = {}

    def sizes(self) -> Mapping[str, int]:
        assert self.requests is not None
        return {"requests": len(self.requests)}


async def test_what_a_plugin_remembers_is_a_metric_also_if_it_cannot_be_stated(
    caplog: pytest.LogCaptureFixture,
) -> None:
    registry = CollectorRegistry()
    plugin, silent = Remembering(PluginConfig(), Settings()), Counting(PluginConfig(), Settings())
    lifecycle = PluginLifecycle([plugin, silent], NO_CLIENT, SystemClock(), registry)
    await lifecycle.setup()

    def size() -> float | None:
        return registry.get_sample_value("bowline_plugin_remembered", {"plugin": "remembering", "state": "requests"})

    assert (size(), lifecycle.sizes) == (0, {"remembering": {"requests": 0}})
    plugin.requests = {"a": 1, "b": 2}
    assert (size(), lifecycle.sizes) == (2, {"remembering": {"requests": 2}})
    plugin.requests = None
    assert (size(), lifecycle.sizes) == (0, {})
    assert {(record.plugin, record.point) for record in caplog.records} == {("remembering", "sizes")}  # type: ignore[attr-defined]
