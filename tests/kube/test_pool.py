"""A full connection pool: a request that gets no connection is not sent, and its wait is charged to no caller."""

import asyncio
from collections.abc import Callable

import pytest

from bowline.api.meta import ObjectKey, uid_of
from bowline.kube.accounting import TimeAccount, accounting
from bowline.kube.binding import BindOutcome, post_binding
from bowline.kube.client import ClientOptions, KubeClient
from bowline.kube.config import ClusterAccess
from bowline.kube.errors import ConnectionFailed
from bowline.kube.resources import CONFIGMAPS, PODS
from bowline.testing.builders import configmap
from bowline.testing.fault_proxy.faults import FaultAnswer, FaultGate, Hold
from bowline.testing.fault_proxy.rules import CallMatch, FaultRule
from bowline.testing.fault_proxy.server import FaultProxy
from tests.kube.objects import pod
from tests.waiting import until


async def test_a_request_without_a_connection_is_not_sent_and_uses_no_api_time(
    proxy: FaultProxy, proxied: ClusterAccess, namespace: str
) -> None:
    options = ClientOptions(connections=2, connect_timeout_s=3)
    async with KubeClient(proxied, options) as client:
        gate = FaultGate()
        for nth in (1, 2):
            proxy.add(FaultRule(Hold(gate), CallMatch(("create",), "configmaps"), nth=nth))

        async def create(name: str) -> None:
            await client.create(CONFIGMAPS, namespace, {"metadata": {"name": name}})

        holding = [asyncio.create_task(create(f"held-{number}")) for number in range(2)]
        await until(lambda: gate.wait_reached(0))
        account = TimeAccount(asyncio.get_running_loop().time)
        with accounting(account), pytest.raises(ConnectionFailed, match="all 2 connections") as caught:
            await create("queued")
        assert not caught.value.may_have_been_applied
        assert account.api_s == 0
        assert account.caller_s < 3
        gate.open()
        await asyncio.gather(*holding)
        # Both connections are idle again.
        await asyncio.gather(create("later-0"), create("later-1"))
        config_maps = await client.list_all(CONFIGMAPS, namespace)
    names = {item["metadata"]["name"] for item in config_maps}
    assert {"held-0", "held-1", "later-0", "later-1"} <= names
    assert "queued" not in names


class QueueAccount(TimeAccount):
    """Knows whether a request has been queued."""

    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__(now)
        self.is_queued = asyncio.Event()

    def enter_queue(self) -> None:
        super().enter_queue()
        self.is_queued.set()


async def test_a_binding_that_is_stopped_in_the_queue_is_not_sent_again(
    proxy: FaultProxy, proxied: ClusterAccess, namespace: str
) -> None:
    async with KubeClient(proxied, ClientOptions(connections=1)) as client:
        uid = uid_of(await client.create(PODS, namespace, pod("a")))
        proxy.add(FaultRule(FaultAnswer(503, retry_after_s=1), CallMatch(("create",), "pods", "binding"), nth=1))
        gate, stopping = FaultGate(), asyncio.Event()
        proxy.add(FaultRule(Hold(gate), CallMatch(("create",), "configmaps")))
        binding = post_binding(client, ObjectKey(namespace, "a"), uid, "n1", {}, stopping=stopping)
        account = QueueAccount(asyncio.get_running_loop().time)
        with accounting(account):
            posting = asyncio.create_task(binding)
        await until(lambda: any(entry.fault == "FaultAnswer" for entry in proxy.exchanges()))
        holding = asyncio.create_task(client.create(CONFIGMAPS, namespace, configmap("held")))
        await until(lambda: gate.wait_reached(0))
        await account.is_queued.wait()  # the second POST, behind it
        stopping.set()
        gate.open()
        await holding
        assert (await posting).outcome is BindOutcome.UNKNOWN
        # The connection is free again.
        assert "nodeName" not in (await client.get(PODS, namespace, "a"))["spec"]
