"""A write without a reply may be executed later: until it cannot, nothing is undone; its pod has no other request.

On a real API server: the proxy holds the write, also after its client has given up, until the test opens the gate.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from bowline.api import names
from bowline.framework.binding.context import BindContext
from bowline.framework.config import Binding
from bowline.framework.plugin_status import Status
from bowline.kube.client import ClientOptions
from bowline.kube.config import ClusterAccess
from bowline.kube.errors import AlreadyExists, NotFound
from bowline.kube.resources import BINDREQUESTS, CONFIGMAPS
from bowline.testing.builders import configmap
from bowline.testing.fault_proxy.faults import FaultGate, Hold
from bowline.testing.fault_proxy.rules import CallMatch, FaultRule
from bowline.testing.fault_proxy.server import FaultProxy
from tests.reconciler.stage import Scripted, Stage, Working
from tests.waiting import until

# The API server's own limit: longer than a test, so that only the test's clock passes it.
LIMIT = timedelta(seconds=600)
BINDING = Binding(in_flight_timeout=LIMIT)
OURS: Mapping[str, Any] = {"finalizers": [names.FINALIZER]}


class CreatesConfigMap(Scripted):
    """Creates a ConfigMap in pre_bind; the rollback deletes what it finds."""

    match = CallMatch(("create",), "configmaps")

    def __init__(self) -> None:
        super().__init__(effects=True, pre_bind=self.write, rollback=self.undo)

    async def write(self, ctx: BindContext) -> Status:
        with suppress(AlreadyExists):
            await ctx.client.create(CONFIGMAPS, ctx.request.key.namespace, configmap("effect"))
        return Status.ok()

    async def undo(self, ctx: BindContext) -> Status:
        with suppress(NotFound):
            await ctx.client.delete(CONFIGMAPS, ctx.request.key.namespace, "effect")
        return Status.ok()


async def landed(proxy: FaultProxy) -> None:
    """Wait until the held write is stored. From its reply, since a rollback may undo it before anybody reads it."""
    await until(lambda: any(entry.fault == "Hold" and entry.code in (200, 201) for entry in proxy.exchanges()))


async def withdrawn(working: Working, stage: Stage, name: str = "pod") -> None:
    """Wait until the reconciler knows that the request is deleted or being deleted."""
    await until(lambda: (request := working.seen(stage.namespace, name)) is None or request.deleting)


async def decided(working: Working, stage: Stage, name: str, decision: str) -> None:
    await until(lambda: decision in working.decided(stage.namespace, name))


async def touch(stage: Stage, name: str) -> None:
    with suppress(NotFound):
        await stage.client.patch(BINDREQUESTS, stage.namespace, name, {"metadata": {"labels": {"again": "yes"}}})


async def test_a_write_that_lands_after_its_request_was_withdrawn_is_undone(
    stage: Stage, proxy_route: tuple[FaultProxy, ClusterAccess]
) -> None:
    proxy, access = proxy_route
    plugin, gate = CreatesConfigMap(), FaultGate()
    await stage.create_pod()
    proxy.add(FaultRule(Hold(gate, outlives=True), plugin.match, nth=1))
    options = ClientOptions(name=names.FIELD_MANAGER_RECONCILER, clock=stage.clock, timeout_s=30)
    async with stage.working(plugin, access=access, options=options, binding=BINDING) as working:
        await stage.request_bind(metadata=OURS)
        assert await asyncio.to_thread(gate.wait_reached, 60)
        await stage.withdraw()
        await decided(working, stage, "pod", "Rollback")
        assert plugin.points("pod") == ["pre_bind"], "nothing is rolled back while the write may land"
        with pytest.raises(AlreadyExists):
            await stage.request_bind(metadata=OURS)
        gate.open()
        await landed(proxy)
        stage.clock.passed += LIMIT
        await touch(stage, "pod")
        await stage.request_deleted("pod")
        await stage.request_bind(metadata=OURS)
        await stage.phase("pod", "Succeeded")
    points = [point for point in plugin.points("pod") if point in ("pre_bind", "rollback")]
    # Another write of the request may have repeated the rollback.
    assert list(dict.fromkeys(points[:-1])) == ["pre_bind", "rollback"]
    assert points[-1] == "pre_bind"
