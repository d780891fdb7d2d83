"""The fault proxy in front of the real API server: what its client receives, and what the API server has done."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from bowline.kube.client import ClientOptions, KubeClient
from bowline.kube.config import ClusterAccess
from bowline.kube.errors import Conflict, Expired, NoResponse, TooManyRequests
from bowline.kube.resources import CONFIGMAPS, Selection
from bowline.localcluster.cluster import Cluster
from bowline.testing.fault_proxy.faults import (
    CutWatch,
    DropBefore,
    FailWatch,
    Fault,
    FaultAnswer,
    FaultGate,
    Hold,
    LoseReply,
    StallWatch,
)
from bowline.testing.fault_proxy.rules import CallMatch, FaultRule
from bowline.testing.fault_proxy.server import FaultProxy
from tests.waiting import LIMIT_S, until

CREATES = CallMatch(("create",), "configmaps")
WATCHES = CallMatch(("watch",), "configmaps")


@pytest.fixture
def silence_s() -> float:
    """For how long a watch may be silent."""
    return LIMIT_S


@pytest.fixture
async def client(proxied: ClusterAccess, silence_s: float) -> AsyncIterator[KubeClient]:
    """A client behind the proxy."""
    async with KubeClient(proxied, ClientOptions(name="proxied", watch_silence_s=silence_s)) as client:
        yield client


def config_map(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name}}


def stored(cluster: Cluster, namespace: str) -> set[str]:
    """The test's ConfigMaps, read without the proxy."""
    items = cluster.api.get(f"/api/v1/namespaces/{namespace}/configmaps")["items"]
    return {item["metadata"]["name"] for item in items}


async def watch_names(client: KubeClient, namespace: str, cluster: Cluster, count: int) -> list[str]:
    """Open a watch, create three objects without the proxy, return the names of the first events."""
    version = (await client.list(CONFIGMAPS, namespace))["metadata"]["resourceVersion"]
    is_open = asyncio.Event()
    names_in_order = []
    watch = client.watch(Selection(CONFIGMAPS, namespace), version, 60, on_open=is_open.set)

    async def create() -> None:
        await is_open.wait()
        for name in ("a", "b", "c"):
            await asyncio.to_thread(cluster.api.post, f"/api/v1/namespaces/{namespace}/configmaps", config_map(name))

    async with asyncio.TaskGroup() as group, aclosing(watch):
        group.create_task(create())
        async for event in watch:
            names_in_order.append(event["object"]["metadata"]["name"])
            if len(names_in_order) == count:
                break
    return names_in_order


@pytest.mark.parametrize(
    ("fault", "error", "outcome"),
    [
        pytest.param(DropBefore(), NoResponse, "not forwarded (DropBefore)", id="dropped before it arrived"),
        pytest.param(LoseReply(), NoResponse, "201, reply lost", id="executed, reply lost"),
        pytest.param(FaultAnswer(409), Conflict, "not forwarded (FaultAnswer)", id="409 instead"),
        pytest.param(FaultAnswer(429, 7), TooManyRequests, "not forwarded (FaultAnswer)", id="429 instead"),
    ],
)
async def test_faults_change_the_reply_and_the_execution_as_stated(
    client: KubeClient,
    proxy: FaultProxy,
    bare_cluster: Cluster,
    namespace: str,
    *,
    fault: Fault,
    error: type[Exception],
    outcome: str,
) -> None:
    # The connection is already open, as in a running process.
    await client.list(CONFIGMAPS, namespace)
    proxy.add(FaultRule(fault, CREATES, nth=1))
    with pytest.raises(error) as error_info:
        await client.create(CONFIGMAPS, namespace, config_map("x"))
    assert proxy.exchanges()[-1].outcome == outcome
    if isinstance(error_info.value, TooManyRequests):
        assert error_info.value.retry_after is not None
        assert error_info.value.retry_after.total_seconds() == 7
    await client.create(CONFIGMAPS, namespace, config_map("y"))
    assert stored(bare_cluster, namespace) == ({"x", "y"} if isinstance(fault, LoseReply) else {"y"})


@pytest.mark.parametrize("outlives", [False, True], ids=["dropped with its sender", "executed after its sender"])
async def test_a_held_request_whose_sender_has_ended(
    client: KubeClient, proxy: FaultProxy, bare_cluster: Cluster, namespace: str, outlives: bool
) -> None:
    gate = FaultGate()
    proxy.add(FaultRule(Hold(gate, outlives=outlives), CREATES))
    sending = asyncio.create_task(client.create(CONFIGMAPS, namespace, config_map("x")))
    assert await asyncio.to_thread(gate.wait_reached, LIMIT_S)
    sending.cancel()
    await asyncio.wait({sending})
    assert "x" not in stored(bare_cluster, namespace)
    if not outlives:
        await until(lambda: any(e.fault == "Hold" for e in proxy.exchanges()))
    gate.open()
    await until(lambda: any(e.fault == "Hold" for e in proxy.exchanges()))
    assert ("x" in stored(bare_cluster, namespace)) is outlives


@pytest.mark.parametrize(
    ("fault", "error", "silence_s"),
    [
        pytest.param(CutWatch(1), NoResponse, LIMIT_S, id="broken off in the middle of a line"),
        pytest.param(StallWatch(1), NoResponse, 3, id="silent until the client's timeout"),
        pytest.param(FailWatch(1, code=410), Expired, LIMIT_S, id="expired during the watch"),
    ],
)
async def test_watches_end_badly(
    client: KubeClient, proxy: FaultProxy, bare_cluster: Cluster, namespace: str, fault: Fault, error: type[Exception]
) -> None:
    proxy.add(FaultRule(fault, WATCHES, nth=1))
    with pytest.RaisesGroup(error):
        await watch_names(client, namespace, bare_cluster, 9)
