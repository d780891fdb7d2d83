"""Time that the plugin does not use costs no attempt: a hanging API server, the queue for a connection."""

from contextlib import suppress

import pytest

from bowline.api import names
from bowline.framework.binding.context import BindContext
from bowline.framework.binding.plugin import Budgets
from bowline.framework.config import Binding
from bowline.framework.plugin_status import Status
from bowline.kube.client import ClientOptions
from bowline.kube.errors import AlreadyExists, NotFound
from bowline.kube.resources import CONFIGMAPS
from bowline.localcluster.cluster import Cluster
from bowline.testing.fault_proxy.faults import Delay, FaultGate, Hold
from bowline.testing.fault_proxy.rules import CallMatch, FaultRule
from tests.reconciler.stage import NO_FLIGHT, Scripted, Stage
from tests.waiting import until

NO_RETRY = Binding(backoff_limit=0, in_flight_timeout=NO_FLIGHT)


class Impatient(Scripted):
    """Has a budget of two seconds per call."""

    name = "impatient"
    budgets = Budgets(call_s=2, rollback_s=2)


async def asks(ctx: BindContext) -> Status:
    with suppress(NotFound):
        await ctx.client.get(CONFIGMAPS, ctx.request.key.namespace, "answer")
    return Status.ok()


@pytest.mark.parametrize("point", ["pre_bind", "rollback"])
async def test_a_hanging_api_server_uses_no_attempt_and_fails_no_rollback(
    stage: Stage, bare_cluster: Cluster, point: str
) -> None:
    async def fails(_: BindContext) -> Status:
        return Status.fatal("the device is broken")

    plugin = Impatient(effects=True, pre_bind=asks if point == "pre_bind" else fails)
    plugin.on_rollback = asks
    gate = FaultGate()
    async with stage.proxy_route(bare_cluster) as (proxy, access):
        proxy.add(FaultRule(Hold(gate), CallMatch(("get",), "configmaps", namespace=stage.namespace), nth=1))
        async with stage.working(plugin, binding=NO_RETRY, access=access):
            await stage.create_pod()
            await stage.request_bind()
            # It calls again although the first request is still held.
            await until(lambda: plugin.points("pod").count(point) >= 2)
            status = await stage.phase("pod", "Failed", "Succeeded")
    if point == "pre_bind":
        assert status["phase"] == "Succeeded"
        assert "failedAttempts" not in status
    else:
        assert status["failure"]["reason"] == "Rejected"
        assert "RollbackFailed" not in await stage.events()
    gate.open()


async def test_the_queue_for_a_connection_uses_no_attempt_however_long_it_is(
    stage: Stage, bare_cluster: Cluster
) -> None:
    async def writes(ctx: BindContext) -> Status:
        for number in range(3):
            body = {"metadata": {"name": f"{ctx.request.key.name}-{number}"}}
            with suppress(AlreadyExists):
                await ctx.client.create(CONFIGMAPS, ctx.request.key.namespace, body)
        return Status.ok()

    # Six pods share two connections: most waits longer in the queue than the budget of a call.
    options = ClientOptions(name=names.FIELD_MANAGER_RECONCILER, clock=stage.clock, connections=8)
    pods = [f"pod-{number}" for number in range(24)]
    async with stage.proxy_route(bare_cluster) as (proxy, access):
        proxy.add(FaultRule(Delay(0.5), CallMatch(("create",), "configmaps", namespace=stage.namespace)))
        async with stage.working(Impatient(pre_bind=writes), binding=NO_RETRY, options=options, access=access):
            for name in pods:
                await stage.create_pod(name)
                await stage.request_bind(name)
            ends = [await stage.phase(name, "Succeeded", "Failed") for name in pods]
    assert [end["phase"] for end in ends] == ["Succeeded"] * 24
