"""A full connection pool: a request that gets no connection is not sent, and its wait is charged to no caller."""

import asyncio

import pytest

from bowline.kube.accounting import TimeAccount, accounting
from bowline.kube.client import ClientOptions, KubeClient
from bowline.kube.config import ClusterAccess
from bowline.kube.errors import ConnectionFailed
from bowline.kube.resources import CONFIGMAPS
from bowline.testing.fault_proxy.faults import FaultGate, Hold
from bowline.testing.fault_proxy.rules import CallMatch, FaultRule
from bowline.testing.fault_proxy.server import FaultProxy
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
