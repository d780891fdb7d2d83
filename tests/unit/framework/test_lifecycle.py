"""Setup and teardown, start and stop of plugins, and their workers."""

import asyncio
import sys
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import cast

import pytest
from prometheus_client import CollectorRegistry

from bowline.api.meta import ObjectKey
from bowline.framework.binding.handle import Handle
from bowline.framework.binding.lifecycle import PluginError, PluginLifecycle
from bowline.framework.binding.plugin import BindingPlugin, Budgets
from bowline.framework.config import Settings
from bowline.framework.plugin import Plugin, PluginConfig
from bowline.kube.client import KubeClient
from bowline.runtime.clock import SystemClock
from bowline.runtime.workqueue import WorkQueue
from tests.unit.framework.recording import Calls, RecordingPlugin

NO_CLIENT = cast(KubeClient, SimpleNamespace(random=Random(0)))  # noqa: S311 - jitter; nothing here calls the API server


class TwoQueues(BindingPlugin):
    """Has two workers; each key is requeued after a minute, the reconciles of the key fault fail."""

    name = "two_queues"

    async def setup(self, handle: Handle) -> None:
        self.reconciled_keys: list[str] = []
        self.first = handle.worker("first", self._reconcile)
        self.second = handle.worker("second", self._reconcile)

    async def _reconcile(self, key: ObjectKey) -> timedelta | None:
        self.reconciled_keys.append(key.name)
        if key.name == "fault":
            raise ValueError("a fault")
        return timedelta(minutes=1)


async def start_lifecycle(registry: CollectorRegistry | None = None) -> tuple[PluginLifecycle, TwoQueues]:
    plugin = TwoQueues(PluginConfig(), Settings())
    lifecycle = PluginLifecycle([plugin], NO_CLIENT, SystemClock(), registry or CollectorRegistry())
    await lifecycle.setup()
    await lifecycle.start()
    return lifecycle, plugin


@pytest.mark.looptime
async def test_a_failed_pass_is_counted_and_repeated_and_is_no_failure_of_the_worker() -> None:
    registry = CollectorRegistry()
    lifecycle, plugin = await start_lifecycle(registry)
    errors = partial(registry.get_sample_value, "bowline_plugin_background_errors_total")
    labels = {"plugin": "two_queues", "task": "first"}
    assert errors(labels) == 0
    failure = asyncio.create_task(lifecycle.failure())
    plugin.first(ObjectKey("", "fault"))
    await asyncio.sleep(600)
    assert errors(labels) == plugin.reconciled_keys.count("fault") > 2
    assert not failure.done()
    failure.cancel()
    await lifecycle.stop()


@pytest.mark.looptime
async def test_a_worker_that_fails_is_noticed_and_raised_when_all_are_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lifecycle, plugin = await start_lifecycle()
    failure = asyncio.create_task(lifecycle.failure())
    plugin.second(ObjectKey("", "sound"))
    await asyncio.sleep(1)

    def broken(*_: object) -> None:
        raise AttributeError("the timer is none")

    with monkeypatch.context() as patch:
        patch.setattr(WorkQueue, "add_after", broken)
        plugin.first(ObjectKey("", "any"))
        async with asyncio.timeout(1):
            await failure
    with pytest.raises(AttributeError, match="the timer is none"):
        await lifecycle.stop()
    # No worker continues after the stop, the sound one included.
    await asyncio.sleep(600)
    assert plugin.reconciled_keys == ["sound", "any"]


class Hanging(BindingPlugin):
    """Its reconciles hang, except those of keys named free."""

    name = "hanging"
    budgets = Budgets(reconcile_s=35)

    async def setup(self, handle: Handle) -> None:
        self.calls, self.keys = 0, set[ObjectKey]()
        self.add = handle.worker("own", self._reconcile)

    async def _reconcile(self, key: ObjectKey) -> timedelta | None:
        self.calls += 1
        self.keys.add(key)
        if key.name != "free":
            await asyncio.Event().wait()
        return None


@pytest.mark.looptime
@pytest.mark.parametrize(
    ("hanging", "namespace"),
    [
        pytest.param(1, "tenant", id="another key of the namespace"),
        pytest.param(1000, "other", id="another namespace, whatever hangs in the first"),
    ],
)
async def test_a_key_that_hangs_delays_no_other_and_ends_after_its_budget(hanging: int, namespace: str) -> None:
    plugin = Hanging(PluginConfig(), Settings())
    lifecycle = lifecycle_of(plugin)
    await begin(lifecycle)
    keys = [ObjectKey("tenant", f"hangs-{number}") for number in range(hanging)]
    for _ in range(2):  # a key is processed once at a time, though it is added again
        for key in keys:
            plugin.add(key)
        await asyncio.sleep(15)
    in_progress = len(plugin.keys)
    assert plugin.calls == in_progress
    plugin.add(ObjectKey(namespace, "free"))
    await asyncio.sleep(0.1)
    assert plugin.calls == in_progress + 1
    await asyncio.sleep(10)
    assert plugin.calls > in_progress + 1
    await lifecycle.stop()


def lifecycle_of(*plugins: Plugin) -> PluginLifecycle:
    return PluginLifecycle(plugins, NO_CLIENT, SystemClock(), CollectorRegistry())


async def begin(lifecycle: PluginLifecycle) -> None:
    await lifecycle.setup()
    await lifecycle.start()


def raises() -> None:
    raise KeyError("typo")


async def test_a_process_has_one_setup_and_teardown_and_each_term_a_start_and_stop() -> None:
    calls: Calls = []
    lifecycle = lifecycle_of(RecordingPlugin("a", calls), RecordingPlugin("b", calls))
    await lifecycle.setup()
    for _ in range(2):
        await lifecycle.start()
        await lifecycle.stop()
    await lifecycle.teardown()
    await lifecycle.teardown()
    term = ["a.start", "b.start", "b.stop", "a.stop"]
    assert calls == ["a.setup", "b.setup", *term, *term, "b.teardown", "a.teardown"]


@pytest.mark.parametrize(
    ("point", "expectation"),
    [
        pytest.param("setup", ["a.setup", "b.setup", "b.teardown", "a.teardown"], id="setup"),
        pytest.param("start", [*("a.setup", "b.setup", "c.setup"), *("a.start", "b.start", "b.stop", "a.stop"),
            *("c.teardown", "b.teardown", "a.teardown")], id="start"),
    ],
)  # fmt: skip
async def test_a_plugin_whose_start_failed_is_stopped(point: str, expectation: Calls) -> None:
    calls: Calls = []
    lifecycle = lifecycle_of(
        RecordingPlugin("a", calls), RecordingPlugin("b", calls, {point: raises}), RecordingPlugin("c", calls)
    )
    with pytest.raises(PluginError, match=f"plugin b: {point} raised KeyError: 'typo'"):
        await begin(lifecycle)
    await lifecycle.stop()
    await lifecycle.teardown()
    assert calls == expectation


@pytest.mark.parametrize("point", ["stop", "teardown"])
async def test_a_failing_stop_does_not_prevent_the_stops_of_other_plugins(point: str) -> None:
    calls: Calls = []
    lifecycle = lifecycle_of(RecordingPlugin("a", calls), RecordingPlugin("b", calls, {point: raises}))
    await lifecycle.setup()
    await lifecycle.start()
    await lifecycle.stop()
    await lifecycle.teardown()
    assert calls[-4:] == ["b.stop", "a.stop", "b.teardown", "a.teardown"]


@pytest.mark.looptime
@pytest.mark.parametrize("point", ["setup", "start"])
async def test_a_hanging_start_ends_with_the_plugins_budget(point: str) -> None:
    async def hangs(*_: object) -> None:
        await asyncio.Event().wait()

    kind = type("Hangs", (BindingPlugin,), {"name": "hangs", point: hangs, "budgets": Budgets(setup_s=7)})
    lifecycle = lifecycle_of(kind(PluginConfig(), Settings()))
    with pytest.raises(PluginError, match=f"plugin hangs: {point} took longer than 7 s"):
        await begin(lifecycle)
    assert asyncio.get_running_loop().time() == pytest.approx(7, abs=0.1)


async def test_a_plugin_that_exits_at_setup_is_named() -> None:
    def exits() -> None:
        sys.exit(3)

    lifecycle = lifecycle_of(RecordingPlugin("author", [], {"setup": exits}))
    with pytest.raises(PluginError, match="plugin author: setup raised SystemExit: 3"):
        await lifecycle.setup()


@pytest.mark.parametrize(
    ("act", "why"),
    [
        pytest.param(lambda _: raises(), "event_sources raised KeyError", id="raises"),
        pytest.param(lambda _: None, "event_sources raised TypeError", id="nothing"),
        pytest.param(lambda _: ["pods"], "event_sources returned 'pods', which is no EventSource", id="a name"),
    ],
)
def test_event_sources_that_fail_name_plugin_and_point(act: Callable[[object], object], why: str) -> None:
    kind = type("Author", (BindingPlugin,), {"name": "author", "event_sources": act})
    with pytest.raises(PluginError, match=f"plugin author: {why}"):
        lifecycle_of(kind(PluginConfig(), Settings())).watches(lambda _: None, lambda *_: None)


async def test_a_name_of_a_worker_is_not_free_for_another() -> None:
    class Twice(BindingPlugin):
        name = "twice"

        async def setup(self, handle: Handle) -> None:
            async def nothing(*_: object) -> None:
                """Do nothing."""

            handle.worker("same", nothing)
            handle.worker("same", nothing)

    with pytest.raises(PluginError, match="registers worker 'same' twice"):
        await lifecycle_of(Twice(PluginConfig(), Settings())).setup()
