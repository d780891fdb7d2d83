"""The metrics of client, elector, reflector and recorder, against a real API server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta

import pytest
from prometheus_client import CollectorRegistry

from bowline.api.meta import ObjectKey
from bowline.kube.client import ClientOptions, KubeClient
from bowline.kube.config import ClusterAccess
from bowline.kube.errors import InfrastructureError, NotFound
from bowline.kube.lease import LeaderElector, LeaseTimings, LeaseVersions
from bowline.kube.metrics import KubeMetrics
from bowline.kube.resources import CONFIGMAPS
from bowline.localcluster.cluster import Cluster
from tests.kube.wire import Wire
from tests.waiting import LIMIT_S

QUICK = LeaseTimings(timedelta(seconds=6), timedelta(seconds=5), timedelta(seconds=0.2))


@dataclass(frozen=True, slots=True)
class Counted:
    """A client with its own metrics registry."""

    client: KubeClient
    registry: CollectorRegistry

    def value(self, name: str, **labels: str) -> float | None:
        """One sample; None if it does not exist."""
        return self.registry.get_sample_value(name, labels)

    def requests(self, verb: str, resource: str, code: str) -> float | None:
        """The number of requests of one kind with this result."""
        return self.value("bowline_kube_requests_total", verb=verb, resource=resource, code=code)


def options(registry: CollectorRegistry) -> ClientOptions:
    return ClientOptions(name="bowline-test", metrics=KubeMetrics(registry), timeout_s=30.0)


@pytest.fixture
async def counted(access: ClusterAccess) -> AsyncIterator[Counted]:
    """An administrator's client, counted."""
    registry = CollectorRegistry()
    async with KubeClient(access, options(registry)) as client:
        yield Counted(client, registry)


async def test_requests_are_counted_by_verb_resource_and_code(counted: Counted, namespace: str) -> None:
    await counted.client.create(CONFIGMAPS, namespace, {"metadata": {"name": "a"}})
    with suppress(NotFound):
        await counted.client.get(CONFIGMAPS, namespace, "b")
    assert counted.requests("create", "configmaps", "201") == 1
    assert counted.requests("create", "configmaps", "409") == 0
    assert counted.requests("get", "configmaps", "404") == 1
    assert counted.value("bowline_kube_request_seconds_count", verb="get", resource="configmaps") == 1


async def test_leadership_is_counted_as_acquired_and_released(counted: Counted, namespace: str) -> None:
    timings = LeaseTimings(timedelta(seconds=120), timedelta(seconds=100), timedelta(seconds=0.2))
    elector, stop = (
        LeaderElector(counted.client, ObjectKey(namespace, "lease"), "me", timings, LeaseVersions()),
        asyncio.Event(),
    )
    async with asyncio.timeout(LIMIT_S):
        running = asyncio.create_task(elector.run(stop))
        await elector.is_leader.wait()
        stop.set()
        await running
    assert changes(counted) == {"acquired": 1, "released": 1, "lost": 0}


async def test_a_lease_that_cannot_be_renewed_is_counted_as_lost(
    access: ClusterAccess, wire: Wire, namespace: str
) -> None:
    registry = CollectorRegistry()
    wired = replace(access, server=f"https://127.0.0.1:{wire.port}")
    async with KubeClient(wired, options(registry)) as client, asyncio.timeout(LIMIT_S):
        elector = LeaderElector(client, ObjectKey(namespace, "lease"), "me", QUICK, LeaseVersions())
        running = asyncio.create_task(elector.run(asyncio.Event()))
        await elector.is_leader.wait()
        await wire.cut()
        await running
        counted = Counted(client, registry)
        assert changes(counted) == {"acquired": 1, "released": 0, "lost": 1}


def changes(counted: Counted) -> dict[str, float | None]:
    kinds = ("acquired", "released", "lost")
    return {change: counted.value("bowline_leadership_total", change=change) for change in kinds}


async def test_requests_without_a_reply_are_counted(bare_cluster: Cluster, access: ClusterAccess) -> None:
    registry = CollectorRegistry()
    nowhere = replace(access, server="https://127.0.0.1:1")
    async with KubeClient(nowhere, options(registry)) as client:
        with suppress(InfrastructureError):
            await client.get(CONFIGMAPS, "default", "a")
        assert Counted(client, registry).requests("get", "configmaps", "unreachable") == 1
