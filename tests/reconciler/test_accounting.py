"""Time that the plugin does not use costs no attempt: a hanging API server."""

from contextlib import suppress

import pytest

from bowline.framework.binding.context import BindContext
from bowline.framework.binding.plugin import Budgets
from bowline.framework.config import Binding
from bowline.framework.plugin_status import Status
from bowline.kube.config import ClusterAccess
from bowline.kube.errors import NotFound
from bowline.kube.resources import CONFIGMAPS
from bowline.testing.fault_proxy.faults import FaultGate, Hold
from bowline.testing.fault_proxy.rules import CallMatch, FaultRule
from bowline.testing.fault_proxy.server import FaultProxy
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
    stage: Stage, proxy_route: tuple[FaultProxy, ClusterAccess], point: str
) -> None:
    async def fails(_: BindContext) -> Status:
        return Status.fatal("the device is broken")

    plugin = Impatient(effects=True, pre_bind=asks if point == "pre_bind" else fails)
    plugin.on_rollback = asks
    gate = FaultGate()
    proxy, access = proxy_route
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
