"""The client against the real API server."""

import asyncio

import pytest

from bowline.kube.calls import Call, limited_to
from bowline.kube.client import KubeClient
from bowline.kube.config import load_access
from bowline.kube.errors import (
    AlreadyExists,
    BadRequest,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    Unauthorized,
    UndeclaredWriteError,
    UnrecognizedReply,
)
from bowline.kube.resources import CONFIGMAPS, DEPLOYMENTS, PODS, SECRETS, Resource, Selection
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.kubeconfig import api_server
from bowline.testing.builders import configmap
from bowline.testing.fault_proxy.faults import FaultGate, Hold
from bowline.testing.fault_proxy.rules import CallMatch, FaultRule
from bowline.testing.fault_proxy.server import FaultProxy
from tests.kube.objects import pod
from tests.waiting import LIMIT_S


@pytest.mark.parametrize("resource", [DEPLOYMENTS, PODS], ids=["of a group", "of the core group"])
async def test_a_resource_is_served(client: KubeClient, resource: Resource) -> None:
    """What is not is in test_reflector.py."""
    assert await client.serves(resource)


async def test_rejected_requests_raise(client: KubeClient, namespace: str) -> None:
    await client.create(PODS, namespace, pod("a"))
    with pytest.raises(AlreadyExists):
        await client.create(PODS, namespace, pod("a"))
    with pytest.raises(Invalid) as invalid:
        await client.create(PODS, namespace, pod("A_"))
    assert [cause.field for cause in invalid.value.causes] == ["metadata.name"]
    with pytest.raises(Conflict):
        await client.patch(PODS, namespace, "a", {"metadata": {"resourceVersion": "1", "labels": {"x": "y"}}})
    with pytest.raises(Invalid) as uid_refusal:
        await client.patch(PODS, namespace, "a", {"metadata": {"uid": "another"}})
    assert {cause.field for cause in uid_refusal.value.causes} == {"metadata.uid"}
    with pytest.raises(Conflict):
        await client.delete(PODS, namespace, "a", uid="another")
    with pytest.raises(UnrecognizedReply, match="404 page not found"):
        await client.list(Resource("example.com", "v1", "things", "Thing"))
    with pytest.raises(BadRequest, match="field label not supported"):
        await client.list(PODS, field_selector="spec.image=x")


async def test_a_write_outside_the_permit_is_not_sent(client: KubeClient, namespace: str) -> None:
    def permit(call: Call) -> None:
        if call.key.name != "declared":
            raise UndeclaredWriteError(call.write)

    with limited_to(permit):
        await client.create(CONFIGMAPS, namespace, configmap("declared"))
        with pytest.raises(UndeclaredWriteError, match="create configmaps"):
            await client.create(CONFIGMAPS, namespace, configmap("other"))
        with pytest.raises(NotFound):
            await client.get(CONFIGMAPS, namespace, "other")
    await client.create(CONFIGMAPS, namespace, configmap("other"))


async def test_a_page_that_is_too_large_is_asked_for_with_fewer_objects(client: KubeClient, namespace: str) -> None:
    for number in range(12):
        await client.create(CONFIGMAPS, namespace, configmap(f"m{number:02}", x="x" * 900_000))
    pages = client.pages(Selection(CONFIGMAPS, namespace), page_size=12)
    names_of_pages = [[item["metadata"]["name"] for item in page["items"]] async for page in pages]
    assert [len(page) for page in names_of_pages] == [6, 2, 2, 2]
    assert [name for page in names_of_pages for name in page] == [f"m{number:02}" for number in range(12)]


async def test_lists_take_turns_and_one_that_hangs_delays_the_others_by_a_limit(
    proxy: FaultProxy, proxy_client: KubeClient, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bowline.kube.object_client._PAGE_TURN_S", LIMIT_S)
    gate = FaultGate()
    proxy.add(FaultRule(Hold(gate), CallMatch(("list",), "secrets")))
    hanging = asyncio.create_task(proxy_client.list_all(SECRETS, namespace))
    assert await asyncio.to_thread(gate.wait_reached, LIMIT_S)
    next_list = asyncio.create_task(proxy_client.list_all(CONFIGMAPS, namespace))
    await asyncio.wait({next_list}, timeout=0.3)
    assert [exchange.call.resource for exchange in proxy.exchanges() if exchange.call.verb == "list"] == []
    monkeypatch.setattr("bowline.kube.object_client._PAGE_TURN_S", 0.0)
    assert await proxy_client.list_all(CONFIGMAPS, namespace) == []
    assert not hanging.done()
    gate.open()
    await asyncio.gather(hanging, next_list)


async def test_a_watch_passes_an_object_of_a_megabyte(client: KubeClient, namespace: str) -> None:
    version = (await client.list(CONFIGMAPS, namespace))["metadata"]["resourceVersion"]
    opened: list[str] = []
    watch = client.watch(Selection(CONFIGMAPS, namespace), version, 30, on_open=lambda: opened.append("open"))
    await client.create(CONFIGMAPS, namespace, configmap("big", x="ü" * 500_000))
    async for event in watch:
        assert (event["type"], len(event["object"]["data"]["x"])) == ("ADDED", 500_000)
        break
    await watch.aclose()
    assert opened == ["open"]


async def test_a_rotated_token_is_picked_up_when_the_old_one_is_rejected(
    bare_cluster: Cluster, unprivileged: KubeClient, namespace: str
) -> None:
    path = bare_cluster.service_account_kubeconfig(namespace, "unprivileged")
    token_file = path.with_name(f"{path.name}.token")
    good = token_file.read_text()
    token_file.write_text("worthless")
    async with KubeClient(load_access(api_server(path))) as client:
        with pytest.raises(Unauthorized):
            await client.list(PODS, namespace)
    token_file.write_text("worthless")
    async with KubeClient(load_access(api_server(path))) as client:
        token_file.write_text(good)
        with pytest.raises(Forbidden, match='cannot list resource "pods"'):  # authenticated, without rights
            await client.list(PODS, namespace)
