"""Events as the API server stores them."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from bowline.api.meta import ObjectKey, ObjectRef, ObjectUID
from bowline.kube.client import ClientOptions, KubeClient
from bowline.kube.config import ClusterAccess
from bowline.kube.events import EventNote, EventRecorder
from bowline.kube.metrics import KubeMetrics
from bowline.kube.resources import CONFIGMAPS, EVENTS, NAMESPACES
from bowline.testing.builders import configmap
from bowline.testing.fault_proxy.faults import LoseReply
from bowline.testing.fault_proxy.rules import CallMatch, FaultRule
from bowline.testing.fault_proxy.server import FaultProxy


def note(namespace: str, text: str = "Pod bound to node n1", name: str = "a") -> EventNote:
    return EventNote(ObjectRef("v1", "Pod", ObjectKey(namespace, name), ObjectUID("u")), "Bound", text)


@asynccontextmanager
async def running(client: KubeClient) -> AsyncIterator[EventRecorder]:
    recorder = EventRecorder(client, "test-host_1")
    async with asyncio.TaskGroup() as group:
        task = group.create_task(recorder.run())
        yield recorder
        await recorder.flush()
        task.cancel()


@pytest.fixture
async def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
async def counted(access: ClusterAccess, registry: CollectorRegistry) -> AsyncIterator[KubeClient]:
    """A client with its own metrics registry."""
    async with KubeClient(access, ClientOptions(metrics=KubeMetrics(registry))) as client:
        yield client


def outcomes(registry: CollectorRegistry) -> dict[str, float]:
    counts = {
        word: registry.get_sample_value("bowline_events_total", {"outcome": word})
        for word in ("written", "dropped", "failed")
    }
    return {word: value for word, value in counts.items() if value}


async def stored(client: KubeClient, namespace: str) -> list[dict[str, Any]]:
    return await client.list_all(EVENTS, namespace)


async def test_repeats_are_a_series_and_other_notes_are_not(client: KubeClient, namespace: str) -> None:
    async with running(client) as recorder:
        recorder.record(note(namespace))
        await recorder.flush()
        recorder.record(note(namespace))
        await recorder.flush()
        for _ in range(3):
            recorder.record(note(namespace))  # one PATCH for the three
        recorder.record(note(namespace, "another note"))
    series = [event.get("series") for event in await stored(client, namespace)]
    assert sorted(entry["count"] if entry else 1 for entry in series) == [1, 5]


async def test_an_event_whose_series_has_expired_is_created_again(client: KubeClient, namespace: str) -> None:
    async with running(client) as recorder:
        recorder.record(note(namespace))
        await recorder.flush()
        (event,) = await stored(client, namespace)
        await client.delete(EVENTS, namespace, event["metadata"]["name"])
        recorder.record(note(namespace))
    (event,) = await stored(client, namespace)
    assert "series" not in event


async def test_a_lost_reply_causes_no_second_event(
    proxy: FaultProxy, proxy_client: KubeClient, client: KubeClient, namespace: str
) -> None:
    proxy.add(FaultRule(LoseReply(), CallMatch(("create",), "events"), nth=1))
    async with running(proxy_client) as recorder:
        recorder.record(note(namespace))
    assert len(await stored(client, namespace)) == 1


async def test_events_of_a_deleted_namespace_are_dropped(
    counted: KubeClient, registry: CollectorRegistry, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    held = configmap("held")
    held["metadata"]["finalizers"] = ["example.com/hold"]
    await counted.create(CONFIGMAPS, namespace, held)
    await counted.delete(NAMESPACES, "", namespace)  # no controller here completes the deletion
    with caplog.at_level(logging.WARNING):
        async with running(counted) as recorder:
            recorder.record(note(namespace))
            recorder.record(note("no-such-namespace"))
    assert outcomes(registry) == {"failed": 2}
    assert caplog.records == []


async def test_a_missing_right_is_logged_once(
    unprivileged: KubeClient, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        async with running(unprivileged) as recorder:
            for number in range(5):
                recorder.record(note(namespace, name=f"pod-{number}"))
    (line,) = caplog.records
    assert 'cannot create resource "events"' in line.__dict__["error"]
