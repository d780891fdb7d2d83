"""Setup and run of plugins, and their workers."""

import asyncio
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from bowline.api.meta import Object, ObjectKey
from bowline.framework.binding.lifecycle import PluginError, PluginLifecycle
from bowline.framework.config import Settings
from bowline.framework.interface.binding_plugin import BindingPlugin, Budgets
from bowline.framework.interface.builtin import BuiltinBindingPlugin
from bowline.framework.interface.handle import EventSource, Handle
from bowline.framework.interface.plugin import Plugin, PluginConfig
from bowline.kube.client import KubeClient
from bowline.kube.metrics import KubeMetrics
from bowline.kube.reflector import EventType
from bowline.kube.resources import CONFIGMAPS
from bowline.runtime.clock import Clock, SystemClock
from bowline.runtime.workqueue import WorkQueue
from bowline.testing.builders import configmap
from bowline.testing.clock import SteppedClock
from tests.unit.framework.recording import Calls, RecordingPlugin


def lifecycle_of(
    *plugins: Plugin, registry: CollectorRegistry | None = None, clock: Clock | None = None
) -> PluginLifecycle:
    """The lifecycle of these plugins; nothing here calls the API server."""
    time, metrics = clock or SystemClock(), KubeMetrics(CollectorRegistry())
    client = SimpleNamespace(random=Random(0), clock=time, metrics=metrics)  # noqa: S311 - jitter
    return PluginLifecycle(plugins, cast(KubeClient, client), time, registry or CollectorRegistry())


async def begin(lifecycle: PluginLifecycle) -> None:
    await lifecycle.setup()
    await lifecycle.start()


class TwoQueues(BindingPlugin):
    """Has two workers and a counter; each key is requeued after a minute, the reconciles of the key fault fail."""

    name = "two_queues"

    async def setup(self, handle: Handle) -> None:
        self.reconciled_keys: list[str] = []
        self.counter = handle.metrics.counter("passes_total", "Passes of its queues.")
        self.first = handle.worker("first", self._reconcile)
        self.second = handle.worker("second", self._reconcile)

    async def _reconcile(self, key: ObjectKey) -> timedelta | None:
        self.reconciled_keys.append(key.name)
        self.counter.inc()
        if key.name == "fault":
            raise ValueError("a fault")
        return timedelta(minutes=1)


async def start_lifecycle(registry: CollectorRegistry | None = None) -> tuple[PluginLifecycle, TwoQueues]:
    plugin = TwoQueues(PluginConfig(), Settings())
    lifecycle = lifecycle_of(plugin, registry=registry)
    await lifecycle.setup()
    plugin.first(ObjectKey("", "before the leader"))
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
    assert registry.get_sample_value("bowline_two_queues_passes_total") == len(plugin.reconciled_keys)
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


class Spinning(BindingPlugin):
    """Requeues its key at once, without an await."""

    name = "spinning"

    async def setup(self, handle: Handle) -> None:
        self.passes = 0
        self.add = handle.worker("own", self._reconcile)

    async def _reconcile(self, _: ObjectKey) -> timedelta | None:
        self.passes += 1
        return timedelta()


@pytest.mark.looptime
async def test_a_queue_that_requeues_at_once_does_not_keep_the_event_loop() -> None:
    plugin = Spinning(PluginConfig(), Settings())
    lifecycle = lifecycle_of(plugin)
    await begin(lifecycle)
    plugin.add(ObjectKey("", "any"))
    await asyncio.sleep(1)
    assert 2 < plugin.passes <= 11
    await lifecycle.stop()


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
async def test_keys_that_hang_delay_no_other_namespace_and_end_after_their_budget() -> None:
    plugin = Hanging(PluginConfig(), Settings())
    lifecycle = lifecycle_of(plugin)
    await begin(lifecycle)
    keys = [ObjectKey("tenant", f"hangs-{number}") for number in range(1000)]
    for _ in range(2):  # a key is processed once at a time, though it is added again
        for key in keys:
            plugin.add(key)
        await asyncio.sleep(15)
    in_progress = len(plugin.keys)
    assert plugin.calls == in_progress
    plugin.add(ObjectKey("other", "free"))
    await asyncio.sleep(0.1)
    assert plugin.calls == in_progress + 1
    await asyncio.sleep(10)
    assert plugin.calls > in_progress + 1
    await lifecycle.stop()


class Noting(BindingPlugin):
    """Notes which of its calls the event loop executes."""

    name = "noting"
    lifecycle: PluginLifecycle
    clock = SteppedClock()

    async def setup(self, handle: Handle) -> None:
        self.calls: list[object] = []
        self.add = handle.worker("own", self._reconcile)

    def event_sources(self) -> Iterable[EventSource]:
        return (EventSource(CONFIGMAPS, on_change=self._change),)

    def _change(self, *_: object) -> None:
        self._note()
        self.clock.step(timedelta(seconds=2))
        self._note()

    async def run(self) -> None:
        self._note()

    async def _reconcile(self, _: ObjectKey) -> None:
        self._note()

    def _note(self) -> None:
        call = self.lifecycle.current(asyncio.get_running_loop())
        self.calls.append(call and (call.plugin, call.point, call.key))


@pytest.mark.looptime
async def test_what_the_event_loop_executes_beside_attempts_is_named_with_its_plugin() -> None:
    plugin = Noting(PluginConfig(), Settings())
    plugin.lifecycle = lifecycle_of(plugin, clock=plugin.clock)
    await begin(plugin.lifecycle)
    plugin.add(ObjectKey("", "any"))
    await asyncio.sleep(1)
    (watch,) = plugin.lifecycle.watches(lambda _: None, lambda *_: None).values()
    watch.reflector.listener.on_event(EventType.ADDED, ObjectKey("", "any"), None, {})
    plugin._note()
    assert plugin.calls == [
        ("noting", "run", None),
        ("noting", "own", None),
        None,  # a callback that is called for many objects is not what blocks
        ("noting", "on_change", None),
        None,
    ]
    await plugin.lifecycle.stop()


class Watching(BindingPlugin):
    """Watches what the test sets."""

    name = "watching"
    sources: tuple[EventSource, ...] = ()

    def event_sources(self) -> Iterable[EventSource]:
        return self.sources


def test_each_source_is_a_watch_of_its_own_whose_changes_wake_the_requests_of_both_versions() -> None:
    stores, woken = list[Any](), list[ObjectKey]()
    plugin = Watching(PluginConfig(), Settings())
    plugin.sources = (
        EventSource(
            CONFIGMAPS,
            keys=lambda raw: [ObjectKey("team", raw["pod"])],
            namespace="seats",
            attach=lambda reflector: stores.append(reflector.store),
        ),
        EventSource(CONFIGMAPS, label_selector="a=b"),
    )
    watches = lifecycle_of(plugin).watches(woken.append, lambda *_: None)
    selections = [watch.reflector.selection for watch in watches.values()]
    assert list(watches) == ["watching/0", "watching/1"]
    assert [(selection.namespace, selection.label_selector) for selection in selections] == [
        ("seats", ""),
        ("", "a=b"),
    ]
    first = watches["watching/0"].reflector
    assert stores == [first.store]
    first.listener.on_event(EventType.MODIFIED, ObjectKey("seats", "any"), {"pod": "a"}, {"pod": "b"})
    assert sorted(woken) == [ObjectKey("team", "a"), ObjectKey("team", "b")]


@pytest.mark.parametrize(
    ("hint", "may_end"),
    [(None, True), (lambda *_: False, False), (lambda _, seen: seen["data"]["step"] == "last", True)],
    ids=["none", "excludes it", "raises"],
)
def test_a_change_may_end_a_wait_unless_the_queueing_hint_excludes_it(
    hint: Callable[[ObjectKey, Object], bool] | None, may_end: bool
) -> None:
    plugin = Watching(PluginConfig(), Settings())
    plugin.sources = (EventSource(CONFIGMAPS, queueing_hint=hint),)
    watch = lifecycle_of(plugin).watches(lambda _: None, lambda *_: None)["watching/0"]
    assert watch.may_end_wait(ObjectKey("ns", "request"), configmap("data")) is may_end


def raises() -> None:
    raise KeyError("typo")


async def test_a_process_has_one_setup_and_each_term_one_run_which_is_cancelled_at_its_end() -> None:
    calls: Calls = []
    lifecycle = lifecycle_of(RecordingPlugin("a", calls), RecordingPlugin("b", calls))
    await lifecycle.setup()
    for _ in range(2):
        await lifecycle.start()
        calls.append("first attempt")  # a plugin is prepared for it up to its first wait
        lifecycle.cancel()
        await lifecycle.stop()
    term = ["a.run", "b.run", "first attempt", "a.end", "b.end"]
    assert calls == ["a.setup", "b.setup", *term, *term]


@pytest.mark.looptime
@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt, asyncio.CancelledError])
async def test_a_run_that_raises_is_counted_and_called_again_and_ends_nothing_else(
    error: type[BaseException],
) -> None:
    def fails() -> None:
        raise error

    calls: Calls = []
    registry = CollectorRegistry()
    broken, sound = RecordingPlugin("broken", calls, {"run": fails}), RecordingPlugin("sound", calls)
    lifecycle = lifecycle_of(broken, sound, registry=registry)
    await begin(lifecycle)
    failure = asyncio.create_task(lifecycle.failure())
    await asyncio.sleep(600)
    assert not failure.done()
    failure.cancel()
    await lifecycle.stop()
    count = registry.get_sample_value("bowline_plugin_background_errors_total", {"plugin": "broken", "task": "run"})
    assert count == calls.count("broken.run") > 2
    assert calls.count("sound.run") == calls.count("sound.end") == 1


@pytest.mark.looptime
async def test_a_run_that_ignores_its_cancellation_ends_the_process_by_name() -> None:
    class Ignoring(BindingPlugin):
        name = "ignoring"

        async def run(self) -> None:
            while True:
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(100)
                    return

    lifecycle = lifecycle_of(Ignoring(PluginConfig(), Settings()))
    await begin(lifecycle)
    await asyncio.sleep(1)
    with pytest.raises(PluginError, match="ignoring/run: does not end 40 s after its cancellation"):
        await lifecycle.stop()
    await asyncio.sleep(100)


@pytest.mark.parametrize(("act", "why"), [(raises, "KeyError: 'typo'"), (lambda: sys.exit(3), "SystemExit: 3")])
async def test_a_setup_that_fails_names_its_plugin_and_ends_the_start(act: Callable[[], None], why: str) -> None:
    calls: Calls = []
    lifecycle = lifecycle_of(RecordingPlugin("a", calls), RecordingPlugin("b", calls, {"setup": act}))
    with pytest.raises(PluginError, match=f"plugin b: setup raised {why}"):
        await lifecycle.setup()
    assert calls == ["a.setup", "b.setup"]


@pytest.mark.looptime
async def test_a_hanging_setup_ends_with_the_plugins_budget() -> None:
    class Hangs(BindingPlugin):
        name = "hangs"
        budgets = Budgets(setup_s=7)

        async def setup(self, handle: Handle) -> None:
            await asyncio.Event().wait()

    with pytest.raises(PluginError, match="plugin hangs: setup took longer than 7 s"):
        await lifecycle_of(Hangs(PluginConfig(), Settings())).setup()
    assert asyncio.get_running_loop().time() == pytest.approx(7, abs=0.1)


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
    plugin, silent = Remembering(PluginConfig(), Settings()), Watching(PluginConfig(), Settings())
    lifecycle = lifecycle_of(plugin, silent, registry=registry)
    await lifecycle.setup()

    def size() -> float | None:
        return registry.get_sample_value("bowline_plugin_remembered", {"plugin": "remembering", "state": "requests"})

    assert (size(), lifecycle.sizes) == (0, {"remembering": {"requests": 0}})
    plugin.requests = {"a": 1, "b": 2}
    assert (size(), lifecycle.sizes) == (2, {"remembering": {"requests": 2}})
    plugin.requests = None
    assert (size(), lifecycle.sizes) == (0, {})
    assert {(record.plugin, record.point) for record in caplog.records} == {("remembering", "sizes")}  # type: ignore[attr-defined]
