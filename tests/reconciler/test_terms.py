"""Leadership: warm standbys, what a new leader may trust, what a term leaves behind."""

import asyncio
from datetime import timedelta

import pytest

from bowline.framework.config import Binding
from bowline.framework.plugin_status import Status
from bowline.kube.config import ClusterAccess
from bowline.kube.resources import LEASES, NODES
from bowline.localcluster.nodes import node_object
from bowline.testing.fault_proxy.faults import FaultGate
from bowline.testing.fault_proxy.faults import Hold as OnTheWire
from bowline.testing.fault_proxy.rules import CallMatch, FaultRule
from bowline.testing.fault_proxy.server import FaultProxy
from tests.reconciler.stage import Hold, Scripted, Stage
from tests.waiting import LIMIT_S, until, until_awaited


async def holder_of(stage: Stage, lease: str = "reconciler") -> str:
    """Wait until the Lease is held; returns its holder."""

    async def held_by() -> str:
        leases = {item["metadata"]["name"]: item for item in await stage.client.list_all(LEASES, stage.namespace)}
        return str(((leases.get(lease) or {}).get("spec") or {}).get("holderIdentity") or "")

    return await until_awaited(held_by, bool)


async def test_a_standby_binds_as_soon_as_the_leader_has_released_the_lease(stage: Stage) -> None:
    """No retry is due for hours: only the watch of the Lease can have notified the standby."""
    first_plugin, second_plugin = Scripted(), Scripted()
    async with stage.working(first_plugin) as first:
        holder = await holder_of(stage)
        async with stage.working(second_plugin) as second:
            await until(lambda: all(r.synced.is_set() for r in second.parts.reflectors.values()))
            await stage.create_pod()
            await first.leave()
            await stage.request_bind()
            await stage.phase("pod", "Succeeded")
            assert await holder_of(stage) != holder
    assert (first_plugin.points("pod"), second_plugin.points("pod")) == ([], ["pre_bind", "post_bind"])


async def test_a_new_leader_reads_live_before_it_trusts_a_stale_cache(stage: Stage) -> None:
    """The standby's watch hangs; a request that is new in its cache has failed under the previous leader."""
    hold = Hold(Status.fatal("never"))
    two = Scripted()
    async with stage.working(Scripted(pre_bind=hold)) as first:
        await holder_of(stage)
        async with stage.working(two) as second:
            await stage.create_pod()
            await stage.request_bind()
            await until(lambda: second.seen(stage.namespace) is not None)
            await second.hang("bindrequests")
            hold.go.set()
            await stage.phase("pod", "Failed")
            await first.leave()
            # It has read the request live and found no work.
            await until(lambda: second.sizes["requests"] == 1)
            second.go_on("bindrequests")
            await stage.create_pod("fresh")
            await stage.request_bind("fresh")
            await stage.phase("fresh", "Succeeded")
    assert two.points("pod") == []
    assert "nodeName" not in (await stage.pod())["spec"]


@pytest.mark.usefixtures("no_drain")
async def test_a_terminal_failure_waits_for_the_binding_of_a_former_leader(
    stage: Stage, proxy_route: tuple[FaultProxy, ClusterAccess]
) -> None:
    """1. The leader posts the Binding and is killed. 2. The node is deleted. 3. Another one leads. 4. The POST lands.

    The request has no finalizer: nothing but the Binding can be in flight.
    """
    node = f"node-{stage.namespace}"
    await stage.client.create(NODES, "", node_object(node))
    gate = FaultGate()
    proxy, access = proxy_route
    proxy.add(
        FaultRule(
            OnTheWire(gate, outlives=True), CallMatch(("create",), "pods", "binding", namespace=stage.namespace)
        )
    )
    patient = Binding(in_flight_timeout=timedelta(minutes=1))
    async with stage.working(Scripted(), access=access, binding=patient) as former_leader:
        await stage.create_pod()
        await stage.request_bind(node=node)
        assert await asyncio.to_thread(gate.wait_reached, LIMIT_S)
        await former_leader.crash()
        await stage.client.delete(NODES, "", node)
        await stage.leave_lease("another")
        async with stage.working(Scripted(), lease="another", binding=patient) as successor:
            await until(lambda: successor.sizes["requests"] == 1 and not successor.parts.controller.queue.processing)
            assert (await stage.status()).get("phase", "Pending") == "Pending"
            gate.open()
            status = await stage.phase("pod", "Succeeded", "Failed")
    assert status["phase"] == "Succeeded", status
    assert (await stage.pod())["spec"]["nodeName"] == node
