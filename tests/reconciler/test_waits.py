"""Requests that wait for an object: woken by it, reported, ended in time, without delaying others."""

from datetime import timedelta

import pytest

from bowline.api.meta import ObjectKey, ObjectRef, ResourceVersion, version_of
from bowline.framework.config import Binding
from bowline.framework.interface.context import BindContext
from bowline.framework.interface.handle import EventSource
from bowline.framework.interface.status import Status
from bowline.kube.errors import NotFound
from bowline.kube.resources import BINDREQUESTS, CONFIGMAPS, NODES, PODS
from bowline.testing.builders import configmap
from bowline_reconciler.drive import requeue
from tests.reconciler.stage import NO_FLIGHT, Scripted, Stage
from tests.waiting import until, until_awaited


def needs(name: str) -> Scripted:
    """Return a plugin whose requests wait for a ConfigMap with ready=yes, by a live read."""

    async def read(ctx: BindContext) -> Status:
        namespace = ctx.request.key.namespace
        version = ResourceVersion("")
        try:
            config_map = await ctx.client.get(CONFIGMAPS, namespace, name)
        except NotFound:
            pass
        else:
            if (config_map.get("data") or {}).get("ready") == "yes":
                return Status.ok()
            version = version_of(config_map)
        ref = ObjectRef("v1", "ConfigMap", ObjectKey(namespace, name), resource_version=version)
        return Status.wait("it is not ready", ref)

    return Scripted(pre_bind=read, sources=[EventSource(CONFIGMAPS)])


async def test_a_wait_holds_no_worker_and_is_ended_by_its_object(stage: Stage) -> None:
    plugin = needs("data")
    only_one = Binding(workers=1, in_flight_timeout=NO_FLIGHT)
    async with stage.working(plugin, binding=only_one) as working:
        await stage.client.create(CONFIGMAPS, stage.namespace, configmap("data", ready="no"))
        for number in range(5):
            await stage.create_pod(f"waits-{number}")
            await stage.request_bind(f"waits-{number}")
        await until(lambda: working.sizes["waitIndex"] == 5)
        await stage.past_the_silent_period(working, "waits-0", "waits-1", "waits-2", "waits-3", "waits-4")
        plugin.on_pre_bind, read = None, plugin.on_pre_bind
        await stage.create_pod("fresh")
        await stage.request_bind("fresh")
        await stage.phase("fresh", "Succeeded")
        plugin.on_pre_bind = read
        # Only the object's own change can wake them: no poll and no deadline is near.
        await stage.client.patch(CONFIGMAPS, stage.namespace, "data", {"data": {"ready": "yes"}})
        for number in range(5):
            await stage.phase(f"waits-{number}", "Succeeded")
        assert working.sizes["waitIndex"] == 0


async def test_a_node_that_is_tainted_ends_the_wait_for_an_object(stage: Stage) -> None:
    node = f"{stage.namespace}-node"
    plugin = needs("data")
    plugin.effects = True
    async with stage.working(plugin) as working:
        await stage.client.create(NODES, "", {"metadata": {"name": node}})
        await stage.client.create(CONFIGMAPS, stage.namespace, configmap("data", ready="no"))
        await stage.create_pod(tolerations=[])
        await stage.request_bind(node=node)
        await stage.past_the_silent_period(working, "pod")
        taint = {"key": "gpu", "value": "broken", "effect": "NoSchedule"}
        await stage.client.patch(NODES, "", node, {"spec": {"taints": [taint]}})
        status = await stage.phase("pod", "Failed")
        assert "rollback" in plugin.points("pod")
        await stage.client.delete(NODES, "", node)
    assert status["reason"].startswith("NodeUnschedulable: ")


async def test_patches_by_a_tenant_cause_no_attempts_and_the_awaited_object_ends_the_rest(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest lasts as long as the wait: only the object's event can end it within the test."""
    monkeypatch.setattr(requeue, "ATTEMPT_PAUSE", timedelta(hours=1))
    plugin = needs("data")
    async with stage.working(plugin) as working:
        await stage.client.create(CONFIGMAPS, stage.namespace, configmap("data", ready="no"))
        await stage.create_pod()
        await stage.request_bind()
        await until_awaited(stage.status, lambda status: "Waiting" in status.get("reason", ""))
        attempts = plugin.points("pod")
        for number in range(20):
            await patch_labels(stage, number)
        await until(lambda: (seen := working.seen(stage.namespace)) is not None and "19" in str(seen.raw["metadata"]))
        await until(lambda: working.is_delayed(stage.namespace))
        assert plugin.points("pod") == attempts
        await stage.client.patch(CONFIGMAPS, stage.namespace, "data", {"data": {"ready": "yes"}})
        await stage.phase("pod", "Succeeded")


async def patch_labels(stage: Stage, number: int) -> None:
    for resource in (PODS, BINDREQUESTS):
        body = {"metadata": {"labels": {"touched": str(number)}}}
        await stage.client.patch(resource, stage.namespace, "pod", body)
