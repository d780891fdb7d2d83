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
from bowline.api.meta import ObjectKey
from bowline.framework.binding.context import BindContext
from bowline.framework.config import Binding
from bowline.framework.plugin_status import Status
from bowline.kube.client import ClientOptions, KubeClient
from bowline.kube.config import ClusterAccess
from bowline.kube.errors import AlreadyExists, Conflict, NotFound
from bowline.kube.resources import BINDREQUESTS, CONFIGMAPS, PERSISTENTVOLUMECLAIMS
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


class Writes(Scripted):
    """Writes one object in pre_bind, whose reply is lost; the rollback undoes what it finds."""

    match: CallMatch

    def __init__(self) -> None:
        super().__init__(effects=True, pre_bind=self.write, rollback=self.undo)

    async def write(self, ctx: BindContext) -> Status:
        raise NotImplementedError

    async def undo(self, ctx: BindContext) -> Status:
        raise NotImplementedError

    async def is_left(self, client: KubeClient, namespace: str) -> bool:
        """Return whether the effect exists."""
        raise NotImplementedError


class CreatesConfigMap(Writes):
    match = CallMatch(("create",), "configmaps")

    async def write(self, ctx: BindContext) -> Status:
        with suppress(AlreadyExists):
            await ctx.client.create(CONFIGMAPS, ctx.request.key.namespace, configmap("effect"))
        return Status.ok()

    async def undo(self, ctx: BindContext) -> Status:
        with suppress(NotFound):
            await ctx.client.delete(CONFIGMAPS, ctx.request.key.namespace, "effect")
        return Status.ok()

    async def is_left(self, client: KubeClient, namespace: str) -> bool:
        with suppress(NotFound):
            await client.get(CONFIGMAPS, namespace, "effect")
            return True
        return False


class AnnotatesClaim(Writes):
    """Annotates a PVC, in the version that it has read."""

    match = CallMatch(("patch",), "persistentvolumeclaims")

    async def write(self, ctx: BindContext) -> Status:
        return await self.annotate(ctx, ctx.request.key.name)

    async def undo(self, ctx: BindContext) -> Status:
        return await self.annotate(ctx, None)

    async def annotate(self, ctx: BindContext, text: str | None) -> Status:
        pvc = await ctx.client.get(PERSISTENTVOLUMECLAIMS, ctx.request.key.namespace, "pvc")
        guard = {"resourceVersion": pvc["metadata"]["resourceVersion"], "annotations": {"effect": text}}
        try:
            await ctx.client.patch(PERSISTENTVOLUMECLAIMS, ctx.request.key.namespace, "pvc", {"metadata": guard})
        except Conflict as error:
            return Status.retry(str(error))
        return Status.ok()

    async def is_left(self, client: KubeClient, namespace: str) -> bool:
        pvc = await client.get(PERSISTENTVOLUMECLAIMS, namespace, "pvc")
        return "effect" in (pvc["metadata"].get("annotations") or {})


async def make_pvc(stage: Stage) -> None:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    body = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "pvc"}, "spec": spec}
    await stage.client.create(PERSISTENTVOLUMECLAIMS, stage.namespace, body)


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
    assert points == ["pre_bind", "rollback", "pre_bind"]


async def test_another_version_of_the_object_proves_that_a_guarded_write_cannot_land(
    stage: Stage, proxy_route: tuple[FaultProxy, ClusterAccess]
) -> None:
    proxy, access = proxy_route
    plugin, gate = AnnotatesClaim(), FaultGate()
    await make_pvc(stage)
    await stage.create_pod()
    proxy.add(FaultRule(Hold(gate, outlives=True), plugin.match, nth=1))
    options = ClientOptions(name=names.FIELD_MANAGER_RECONCILER, clock=stage.clock, timeout_s=30)
    async with stage.working(plugin, access=access, options=options, binding=BINDING) as working:
        await stage.request_bind(metadata=OURS)
        assert await asyncio.to_thread(gate.wait_reached, 60)
        await stage.withdraw()
        await decided(working, stage, "pod", "Rollback")
        body = {"metadata": {"labels": {"changed": "yes"}}}
        await stage.client.patch(PERSISTENTVOLUMECLAIMS, stage.namespace, "pvc", body)
        await touch(stage, "pod")
        await stage.request_deleted()
    gate.open()
    await until(lambda: [e.code for e in proxy.exchanges() if e.fault == "Hold" and e.code is not None] == [409])
    assert not await plugin.is_left(stage.client, stage.namespace)


async def test_the_binding_of_a_withdrawn_request_is_not_repeated(
    stage: Stage, proxy_route: tuple[FaultProxy, ClusterAccess]
) -> None:
    """The first POST gets no reply, and meanwhile its request is known to be withdrawn."""
    proxy, access = proxy_route
    key = ObjectKey(stage.namespace, "pod")
    gate, lost = FaultGate(), FaultGate()
    await stage.create_pod()
    proxy.add(FaultRule(Hold(gate, outlives=True, lost=lost), CallMatch(("create",), "pods", "binding"), nth=1))
    async with stage.working(Scripted(), access=access, binding=BINDING) as working:
        await stage.request_bind(metadata=OURS)
        assert await asyncio.to_thread(gate.wait_reached, 60)
        await stage.withdraw()
        await withdrawn(working, stage)
        lost.open()

        def has_ended() -> bool:
            state = working.parts.states.get(key)
            return state is not None and state.attempt.unacknowledged_at is not None

        await until(has_ended)
        assert not [entry for entry in proxy.exchanges() if entry.call.subresource == "binding"]
        assert "nodeName" not in (await stage.pod())["spec"]
        gate.open()
