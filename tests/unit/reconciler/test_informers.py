"""What a new leader learns of the stored requests before it acts, and by what an attempt ends."""

import asyncio
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bowline.api.bindrequest import decode_bind_request
from bowline.api.meta import ObjectKey
from bowline.kube.client import ClientOptions, KubeClient
from bowline.kube.config import ApiServer, load_access
from bowline.kube.reflector import EventType
from bowline.testing.builders import bind_request, pod, stored
from bowline.testing.clock import SteppedClock
from bowline_reconciler.watch.informers import EventHandlers, Informers, Listed

NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}


class TwoPages(KubeClient):
    """Lists two requests, each on a page of its own."""

    clock: SteppedClock

    def __init__(self) -> None:
        super().__init__(load_access(ApiServer("http://none")), ClientOptions(clock=SteppedClock()))

    async def pages(self, *args: Any, **options: Any) -> AsyncGenerator[dict[str, Any], None]:
        for name, minute in (("later", 2), ("earlier", 1)):
            yield {"items": [stored(bind_request(name), creationTimestamp=f"2026-01-01T00:0{minute}:00Z")]}


class OneBookmark(TwoPages):
    """Lists nothing, and sends a bookmark when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.go, self.sent = asyncio.Event(), asyncio.Event()

    async def pages(self, *args: Any, **options: Any) -> AsyncGenerator[dict[str, Any], None]:
        yield {"metadata": {"resourceVersion": "3"}, "items": []}

    async def watch(self, *args: Any, **options: Any) -> AsyncGenerator[dict[str, Any], None]:
        await self.go.wait()
        yield {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}}
        self.sent.set()
        await asyncio.Event().wait()


class IllNode(TwoPages):
    """Lists a node with a taint of its health, and shows no change."""

    async def pages(self, *args: Any, **options: Any) -> AsyncGenerator[dict[str, Any], None]:
        yield {"metadata": {"resourceVersion": "3"}, "items": [node("n1", [NOT_READY])]}

    async def watch(self, *args: Any, **options: Any) -> AsyncGenerator[dict[str, Any], None]:
        await asyncio.Event().wait()
        yield {}


def node(name: str, taints: list[dict[str, str]]) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": name, "resourceVersion": "2"}, "spec": {"taints": taints}}


def nothing(*_: object) -> None:
    """Do nothing."""


def informers() -> Informers:
    return Informers(TwoPages(), EventHandlers(nothing, nothing, nothing, nothing, nothing))


async def test_requests_that_the_cache_lacks_are_stale_and_those_until_the_newest_may_be_a_former_leaders() -> None:
    stale = {ObjectKey("default", "earlier"), ObjectKey("default", "later")}
    assert await informers().compare() == Listed(0.0, stale, datetime(2026, 1, 1, 0, 2, tzinfo=UTC))


async def test_a_request_that_the_watch_has_left_behind_is_kept_until_a_bookmark() -> None:
    client = OneBookmark()
    caches = Informers(client, EventHandlers(nothing, nothing, nothing, nothing, nothing))
    watching = asyncio.create_task(caches.requests.run())
    await caches.requests.synced.wait()
    request = decode_bind_request(stored(bind_request(), version="7"))
    caches.request_cache.confirm(request, None)
    assert request.key in caches.request_cache, "the watch may show it yet"
    client.go.set()
    await client.sent.wait()
    assert (request.key in caches.request_cache, caches.request_cache.sizes["ahead"]) == (False, 0)
    watching.cancel()


@pytest.mark.parametrize(("taints", "ill_for_s"), [([NOT_READY], 29), ([], 0)])
async def test_a_node_that_was_read_healthy_has_not_been_ill_since_before(
    taints: list[dict[str, str]], ill_for_s: int
) -> None:
    """A watch that lags behind, or breaks, skips a short recovery."""
    client = IllNode()
    caches = Informers(client, EventHandlers(nothing, nothing, nothing, nothing, nothing))
    watching = asyncio.create_task(caches.nodes.run())
    await caches.nodes.synced.wait()
    client.clock.step(timedelta(seconds=29))
    caches.offer_node(node("n1", taints))
    assert caches.node_ill_for("n1") == timedelta(seconds=ill_for_s)
    watching.cancel()


@pytest.mark.parametrize(
    ("metadata", "is_wanted"), [({}, True), ({"deletionTimestamp": "2026-01-01T00:00:00Z"}, False)]
)
def test_an_attempt_goes_on_until_its_request_is_deleted(metadata: dict[str, str], is_wanted: bool) -> None:
    caches, request = informers(), decode_bind_request(stored(bind_request()))
    event = stored(bind_request(), **metadata)
    caches.requests.listener.on_event(EventType.ADDED, request.key, None, event)
    assert caches.still_wanted(request, None) is is_wanted


def test_a_pod_is_packed_when_its_request_has_gone() -> None:
    caches, event = informers(), stored(bind_request())
    key = decode_bind_request(event).key
    caches.requests.listener.on_event(EventType.ADDED, key, None, event)
    named_pod = stored(pod(key.name, namespace=key.namespace))
    caches.pod_cache.put(key, named_pod)
    assert caches.pod(key) is named_pod
    caches.requests.listener.on_event(EventType.DELETED, key, event, None)
    assert caches.pod(key) is not named_pod
    assert caches.pod(key) == named_pod
