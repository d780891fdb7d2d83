"""Equal event sources of several plugins are one watch with one cache; each plugin keeps its own callbacks."""

from collections.abc import Callable, Iterable
from random import Random
from typing import Any, cast

from prometheus_client import CollectorRegistry

from bowline.api.meta import Object, ObjectKey
from bowline.framework.binding.handle import EventSource
from bowline.framework.binding.lifecycle import PluginLifecycle, Watch
from bowline.framework.binding.plugin import BindingPlugin
from bowline.framework.config import Settings
from bowline.framework.plugin import PluginConfig
from bowline.kube.client import KubeClient
from bowline.kube.reflector import EventType
from bowline.kube.resources import CONFIGMAPS
from bowline.runtime.clock import SystemClock

MAP = {"metadata": {"namespace": "seats", "name": "one", "uid": "u", "resourceVersion": "1"}}
KEY = ObjectKey("seats", "one")


class NoClient:
    """What a reflector that never runs needs of a client."""

    clock = SystemClock()
    metrics = None
    random = Random(0)  # noqa: S311 - jitter


def trimmed(raw: dict[str, Any]) -> Object:
    return raw


def plugin_with(name: str, source: EventSource) -> BindingPlugin:
    class Watches(BindingPlugin):
        def event_sources(self) -> Iterable[EventSource]:
            return (source,)

    Watches.name = name
    return Watches(PluginConfig(), Settings())


def watches_of(*plugins: BindingPlugin, wake: Callable[[ObjectKey], None] = lambda _: None) -> dict[str, Watch]:
    client = cast(KubeClient, NoClient())
    lifecycle = PluginLifecycle(plugins, client, SystemClock(), CollectorRegistry())
    return lifecycle.watches(wake, lambda _, __: None)


def test_equal_sources_are_one_watch_whose_cache_both_read() -> None:
    stores: list[Any] = []
    source = EventSource(CONFIGMAPS, namespace="seats", attach=lambda reflector: stores.append(reflector.store))
    watches = watches_of(plugin_with("a", source), plugin_with("b", source))
    assert list(watches) == ["a,b/0"]
    assert watches["a,b/0"].reflector.selection.namespace == "seats"
    assert stores[0] is stores[1]


def test_sources_that_differ_are_watches_of_their_own() -> None:
    sources = [
        EventSource(CONFIGMAPS),
        EventSource(CONFIGMAPS, namespace="seats"),
        EventSource(CONFIGMAPS, label_selector="a=b"),
        EventSource(CONFIGMAPS, transform=trimmed),
    ]
    watches = watches_of(*(plugin_with(f"p{number}", source) for number, source in enumerate(sources)))
    assert list(watches) == ["p0/0", "p1/1", "p2/2", "p3/3"]


def test_a_change_calls_each_plugin_also_if_the_other_raises() -> None:
    woken: list[ObjectKey] = []
    changes: list[Object | None] = []

    def typo(*_: Any) -> Any:
        raise KeyError("typo")

    broken = EventSource(CONFIGMAPS, keys=typo, on_change=typo)
    sound = EventSource(
        CONFIGMAPS, keys=lambda _: [ObjectKey("default", "r")], on_change=lambda _, new: changes.append(new)
    )
    watch = watches_of(plugin_with("a", broken), plugin_with("b", sound), wake=woken.append)["a,b/0"]
    watch.reflector.listener.on_event(EventType.ADDED, KEY, None, MAP)
    assert woken == [ObjectKey("default", "r")]
    assert changes == [MAP]


def test_a_wait_ends_if_the_hint_of_one_plugin_allows_it() -> None:
    def hints(*answers: bool | None) -> Watch:
        def source(answer: bool | None) -> EventSource:
            return EventSource(CONFIGMAPS, queueing_hint=None if answer is None else lambda _, __: answer)

        plugins = [plugin_with(f"p{number}", source(answer)) for number, answer in enumerate(answers)]
        (watch,) = watches_of(*plugins).values()
        return watch

    request = ObjectKey("default", "r")
    assert not hints(False, False).may_end_wait(request, MAP)
    assert hints(False, True).may_end_wait(request, MAP)
    assert hints(False, None).may_end_wait(request, MAP)
