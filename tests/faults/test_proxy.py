"""The fault proxy in front of the real API server: what its client receives, and what the API server has done."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from bowline.kube.client import ClientOptions, KubeClient
from bowline.kube.config import load_access
from bowline.kube.errors import (
    Conflict,
    Expired,
    InfrastructureError,
    NoResponse,
    ServerError,
    TooManyRequests,
)
from bowline.kube.resources import CONFIGMAPS, Selection
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.kubeconfig import api_server
from bowline.testing.fault_proxy.faults import (
    AfterReply,
    CutWatch,
    Delay,
    DropBefore,
    ExpireWatch,
    Fault,
    FaultAnswer,
    FaultGate,
    Hold,
    LoseReply,
    RepeatEvents,
    Reset,
    StallWatch,
    SwapEvents,
)
from bowline.testing.fault_proxy.rules import CallMatch, FaultRule
from bowline.testing.fault_proxy.server import FaultProxy
from tests.live import LiveCluster
from tests.waiting import LIMIT_S, until

CREATES = CallMatch(("create",), "configmaps")
WATCHES = CallMatch(("watch",), "configmaps")


@pytest.fixture(scope="module")
def account(cluster: Cluster) -> Path:
    """A ServiceAccount with all rights on ConfigMaps."""
    name = f"proxied-{uuid.uuid4().hex[:8]}"
    cluster.kubectl("create", "serviceaccount", name, "--namespace=default")
    cluster.kubectl("create", "clusterrolebinding", name, "--clusterrole=edit", f"--serviceaccount=default:{name}")
    LiveCluster(cluster, "default").until_allowed(f"system:serviceaccount:default:{name}", "create", "configmaps")
    return cluster.service_account_kubeconfig("default", name)


@pytest.fixture
def proxy(cluster: Cluster) -> Iterator[FaultProxy]:
    with FaultProxy(cluster.server, cluster.ca_pem) as proxy:
        yield proxy


@pytest.fixture
def silence_s() -> float:
    """For how long a watch may be silent."""
    return LIMIT_S


@pytest.fixture
async def client(proxy: FaultProxy, account: Path, tmp_path: Path, silence_s: float) -> AsyncIterator[KubeClient]:
    access = await load_access(api_server(proxy.kubeconfig(account, tmp_path / "kubeconfig")))
    async with KubeClient(access, ClientOptions(name="proxied", watch_silence_s=silence_s)) as client:
        yield client


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    name = f"proxy-{uuid.uuid4().hex[:8]}"
    cluster.make_namespace(name)
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")


def config_map(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name}}


def stored(cluster: Cluster, namespace: str) -> set[str]:
    items = cluster.api.get(f"/api/v1/namespaces/{namespace}/configmaps")["items"]
    return {item["metadata"]["name"] for item in items}


async def names_in(client: KubeClient, namespace: str) -> list[str]:
    return [item["metadata"]["name"] for item in await client.list_all(CONFIGMAPS, namespace)]


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


async def test_nothing_is_changed_without_a_rule(client: KubeClient, proxy: FaultProxy, namespace: str) -> None:
    stored_map = await client.create(CONFIGMAPS, namespace, config_map("x"))
    assert await client.get(CONFIGMAPS, namespace, "x") == stored_map
    with pytest.raises(Conflict):
        await client.create(CONFIGMAPS, namespace, config_map("x"))
    mine = [e for e in proxy.exchanges() if e.call.namespace == namespace]
    assert [(e.call.kind, e.call.name, e.outcome) for e in mine] == [
        ("create configmaps", "x", "201"),
        ("get configmaps", "x", "200"),
        ("create configmaps", "x", "409"),
    ]


@pytest.mark.parametrize(
    ("fault", "error", "outcome"),
    [
        pytest.param(DropBefore(), NoResponse, "not forwarded (DropBefore)", id="dropped before it arrived"),
        pytest.param(Reset(), NoResponse, "not forwarded (Reset)", id="reset before it arrived"),
        pytest.param(LoseReply(), NoResponse, "201, reply lost", id="executed, reply lost"),
        pytest.param(FaultAnswer(409), Conflict, "not forwarded (FaultAnswer)", id="409 instead"),
        pytest.param(FaultAnswer(410), Expired, "not forwarded (FaultAnswer)", id="410 instead"),
        pytest.param(FaultAnswer(429, 7), TooManyRequests, "not forwarded (FaultAnswer)", id="429 instead"),
        pytest.param(FaultAnswer(500), ServerError, "not forwarded (FaultAnswer)", id="500 instead"),
        pytest.param(FaultAnswer(503), ServerError, "not forwarded (FaultAnswer)", id="503 instead"),
    ],
)
async def test_faults_change_the_reply_and_the_execution_as_stated(
    client: KubeClient, proxy: FaultProxy, namespace: str, fault: Fault, error: type[Exception], outcome: str
) -> None:
    # The connection is already open, as in a running process.
    assert await names_in(client, namespace) == []
    proxy.add(FaultRule(fault, CREATES, nth=1))
    with pytest.raises(error) as error_info:
        await client.create(CONFIGMAPS, namespace, config_map("x"))
    assert proxy.exchanges()[-1].outcome == outcome
    if isinstance(error_info.value, TooManyRequests):
        assert error_info.value.retry_after is not None
        assert error_info.value.retry_after.total_seconds() == 7
    await client.create(CONFIGMAPS, namespace, config_map("y"))
    assert await names_in(client, namespace) == (["x", "y"] if isinstance(fault, LoseReply) else ["y"])


async def get_it(client: KubeClient, namespace: str) -> object:
    return await client.get(CONFIGMAPS, namespace, "x")


async def replace_it(client: KubeClient, namespace: str) -> object:
    return await client.update(CONFIGMAPS, namespace, "x", {**config_map("x"), "data": {"new": "yes"}})


async def delete_it(client: KubeClient, namespace: str) -> object:
    return await client.delete(CONFIGMAPS, namespace, "x")


@pytest.mark.parametrize(("verb", "call"), [("get", get_it), ("update", replace_it), ("delete", delete_it)])
async def test_a_lost_reply_is_detected_and_not_replaced(
    client: KubeClient,
    proxy: FaultProxy,
    namespace: str,
    verb: str,
    call: Callable[[KubeClient, str], Awaitable[object]],
) -> None:
    """HTTP libraries repeat these verbs by themselves; then a caller would see only the second reply."""
    await client.create(CONFIGMAPS, namespace, config_map("x"))
    proxy.add(FaultRule(LoseReply(), CallMatch((verb,), "configmaps"), nth=1))
    with pytest.raises(NoResponse):
        await call(client, namespace)
    mine = [e.outcome for e in proxy.exchanges() if e.call.kind == f"{verb} configmaps"]
    assert mine == ["200, reply lost"]


async def test_a_held_request_arrives_when_the_gate_opens(
    client: KubeClient, proxy: FaultProxy, cluster: Cluster, namespace: str
) -> None:
    gate = FaultGate()
    proxy.add(FaultRule(Hold(gate), CREATES))
    async with asyncio.TaskGroup() as group:
        group.create_task(client.create(CONFIGMAPS, namespace, config_map("x")))
        assert await asyncio.to_thread(gate.wait_reached, LIMIT_S)
        assert "x" not in stored(cluster, namespace)
        gate.open()
    assert "x" in stored(cluster, namespace)


async def test_a_held_request_is_dropped_if_its_sender_dies(
    client: KubeClient, proxy: FaultProxy, cluster: Cluster, namespace: str
) -> None:
    gate = FaultGate()
    proxy.add(FaultRule(Hold(gate), CREATES))
    sending = asyncio.create_task(client.create(CONFIGMAPS, namespace, config_map("x")))
    assert await asyncio.to_thread(gate.wait_reached, LIMIT_S)
    sending.cancel()
    await asyncio.wait({sending})
    while not any(e.fault == "Hold" for e in proxy.exchanges()):  # noqa: ASYNC110 - noticed on another thread
        await asyncio.sleep(0.01)
    gate.open()
    await client.list(CONFIGMAPS, namespace)
    assert "x" not in stored(cluster, namespace)


async def test_a_sent_request_arrives_though_its_sender_has_ended(
    client: KubeClient, proxy: FaultProxy, cluster: Cluster, namespace: str
) -> None:
    gate = FaultGate()
    proxy.add(FaultRule(Hold(gate, outlives=True), CREATES))
    sending = asyncio.create_task(client.create(CONFIGMAPS, namespace, config_map("x")))
    assert await asyncio.to_thread(gate.wait_reached, LIMIT_S)
    sending.cancel()
    await asyncio.wait({sending})
    await client.list(CONFIGMAPS, namespace)
    assert "x" not in stored(cluster, namespace)
    gate.open()
    async with asyncio.timeout(LIMIT_S):
        while not any(e.fault == "Hold" for e in proxy.exchanges()):  # noqa: ASYNC110 - on another thread
            await asyncio.sleep(0.01)
    assert "x" in stored(cluster, namespace)
    assert [e.outcome for e in proxy.exchanges() if e.fault == "Hold"] == ["201, reply lost"]


async def test_a_sent_request_arrives_after_its_connection_has_ended(
    client: KubeClient, proxy: FaultProxy, cluster: Cluster, namespace: str
) -> None:
    gate, lost = FaultGate(), FaultGate()
    proxy.add(FaultRule(Hold(gate, outlives=True, lost=lost), CREATES))
    sending = asyncio.create_task(client.create(CONFIGMAPS, namespace, config_map("x")))
    assert await asyncio.to_thread(gate.wait_reached, LIMIT_S)
    assert not sending.done()
    lost.open()
    with pytest.raises(NoResponse):
        await sending
    assert "x" not in stored(cluster, namespace)
    gate.open()
    await until(lambda: [e.outcome for e in proxy.exchanges() if e.fault == "Hold"] == ["201, reply lost"])
    assert "x" in stored(cluster, namespace)


async def test_a_delayed_request_arrives(
    client: KubeClient, proxy: FaultProxy, cluster: Cluster, namespace: str
) -> None:
    proxy.add(FaultRule(Delay(0.05), CREATES))
    await client.create(CONFIGMAPS, namespace, config_map("x"))
    assert "x" in stored(cluster, namespace)


async def test_a_request_is_inspected_before_it_is_forwarded(
    client: KubeClient, proxy: FaultProxy, cluster: Cluster, namespace: str
) -> None:
    creates: list[tuple[str, set[str]]] = []
    proxy.inspect(CREATES, lambda call: creates.append((call.name, stored(cluster, call.namespace))))
    proxy.clear()
    for name in ("x", "y"):
        await client.create(CONFIGMAPS, namespace, config_map(name))
    await client.list(CONFIGMAPS, namespace)
    assert creates == [("x", set()), ("y", {"x"})]


async def test_a_callback_runs_at_its_point(
    client: KubeClient, proxy: FaultProxy, cluster: Cluster, namespace: str
) -> None:
    names_at: dict[str, set[str]] = {}

    def note(word: str) -> Any:
        return lambda: names_at.update({word: stored(cluster, namespace)})

    proxy.add(
        FaultRule(DropBefore(note("before")), CREATES, nth=1),
        FaultRule(LoseReply(note("lost")), CREATES, nth=2),
        FaultRule(AfterReply(note("after")), CREATES, nth=3),
    )
    for name in ("x", "y"):
        with pytest.raises(NoResponse):
            await client.create(CONFIGMAPS, namespace, config_map(name))
    await client.create(CONFIGMAPS, namespace, config_map("z"))
    await client.list(CONFIGMAPS, namespace)
    assert names_at == {"before": set(), "lost": {"y"}, "after": {"y", "z"}}


@pytest.mark.parametrize(
    ("fault", "expectation", "swap_s"),
    [
        pytest.param(RepeatEvents(2), ["a", "b", "b", "c"], LIMIT_S, id="duplicated"),
        pytest.param(SwapEvents(2), ["a", "c", "b"], LIMIT_S, id="reordered"),
        pytest.param(SwapEvents(3), ["a", "b", "c"], 0.2, id="reordered, but none follows"),
    ],
)
async def test_events_are_disturbed(
    client: KubeClient,
    proxy: FaultProxy,
    cluster: Cluster,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    fault: Fault,
    expectation: list[str],
    swap_s: float,
) -> None:
    # How long the event that is swapped waits for the next one.
    monkeypatch.setattr("bowline.testing.fault_proxy.exchange._SWAP_S", swap_s)
    proxy.add(FaultRule(fault, WATCHES))
    assert await watch_names(client, namespace, cluster, len(expectation)) == expectation


@pytest.mark.parametrize(
    ("fault", "error", "silence_s"),
    [
        pytest.param(CutWatch(1), NoResponse, LIMIT_S, id="broken off in the middle of a line"),
        pytest.param(StallWatch(1), NoResponse, 3, id="silent until the client's timeout"),
        pytest.param(ExpireWatch(1), Expired, LIMIT_S, id="expired during the watch"),
        pytest.param(FaultAnswer(503), ServerError, LIMIT_S, id="not opened at all"),
    ],
)
async def test_watches_end_badly(
    client: KubeClient, proxy: FaultProxy, cluster: Cluster, namespace: str, fault: Fault, error: type[Exception]
) -> None:
    proxy.add(FaultRule(fault, WATCHES, nth=1))
    if isinstance(fault, FaultAnswer):
        with pytest.raises(error):
            async for _ in client.watch(Selection(CONFIGMAPS, namespace), "0", 60):
                pass
    else:
        with pytest.RaisesGroup(error):
            await watch_names(client, namespace, cluster, 9)


async def test_an_unavailable_api_server_is_a_failed_connection(
    cluster: Cluster, account: Path, tmp_path: Path
) -> None:
    # A port without a listener: the proxy's own after its end.
    with FaultProxy(cluster.server, cluster.ca_pem) as stopped_proxy:
        address = stopped_proxy.url
    with FaultProxy(address, cluster.ca_pem) as proxy:
        access = await load_access(api_server(proxy.kubeconfig(account, tmp_path / "kubeconfig")))
        async with KubeClient(access) as client:
            with pytest.raises(InfrastructureError):
                await client.list(CONFIGMAPS, "default")
        assert [e.outcome for e in proxy.exchanges()] == ["not answered"]


def test_the_api_server_checks_the_credentials(cluster: Cluster, proxy: FaultProxy, tmp_path: Path) -> None:
    stranger = tmp_path / "stranger"
    stranger.write_text(
        "clusters: [{name: c, cluster: {server: x}}]\nusers: [{name: u, user: {token: nonsense}}]\n"
        "contexts: [{name: c, context: {cluster: c, user: u}}]\ncurrent-context: c\n"
    )
    kubeconfig = proxy.kubeconfig(stranger, tmp_path / "kubeconfig")
    result = cluster.kubectl("get", "configmaps", kubeconfig=kubeconfig, check=False)
    assert "Unauthorized" in result.stderr or "logged in" in result.stderr


def test_a_client_certificate_cannot_pass(cluster: Cluster, proxy: FaultProxy, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="client certificate"):
        proxy.kubeconfig(cluster.layout.kubeconfig("kwok"), tmp_path / "kubeconfig")


def test_a_proxy_that_cannot_start_reports_the_reason() -> None:
    with pytest.raises(Exception, match=r"(?i)pem|cert|ssl"), FaultProxy("https://127.0.0.1:1", b"no certificate"):
        pass
