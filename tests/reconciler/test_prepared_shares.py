"""What a share relies on when its pod is bound, what a rollback leaves, and what hangs for others.

With the plugin, on a real API server; the test acts as the agents of reservation pods.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from bowline.api import names
from bowline.api.gpu_share import gpu_groups
from bowline.api.meta import ObjectKey, pod_owner
from bowline.framework.interface.context import BindContext
from bowline.framework.interface.status import Status
from bowline.kube.client import ClientOptions
from bowline.kube.config import ClusterAccess
from bowline.kube.resources import CONFIGMAPS, PODS
from bowline.plugins.gpu_sharing.reservation import reservation_name
from bowline.testing.fault_proxy.faults import FaultGate, Hold, Rewrite
from bowline.testing.fault_proxy.rules import CallMatch, FaultRule
from bowline.testing.fault_proxy.server import FaultProxy
from tests.plugins.sharing import device_of
from tests.reconciler.devices import Devices, devices
from tests.reconciler.stage import Scripted, Stage, touch
from tests.waiting import until_awaited

__all__ = ["devices"]

NODE = "gpu-node-0"
Change = Callable[[Devices], Awaitable[object]]


class Volume(Scripted):
    """Waits for something that the test provides, as another plugin for a volume."""

    def __init__(self) -> None:
        super().__init__(pre_bind=self._wait)
        self.is_there = False

    async def _wait(self, ctx: BindContext) -> Status:
        return Status.ok() if self.is_there else Status.wait("the volume is not there")


async def ended(devices: Devices, name: str) -> dict[str, Any]:
    """Act as the agents until the request has ended; returns its status."""

    async def status() -> dict[str, Any]:
        await devices.report()
        return await devices.stage.status(name)

    return await until_awaited(status, lambda present: present.get("phase") in ("Succeeded", "Failed"))


def records(maps: list[dict[str, Any]]) -> set[str]:
    """Return for which requests the ConfigMaps are prepared."""
    return {(each["metadata"].get("annotations") or {}).get(names.PREPARED_FOR, "") for each in maps}


async def delete_maps(devices: Devices) -> None:
    for each in await devices.maps():
        await devices.stage.client.delete(CONFIGMAPS, devices.stage.namespace, each["metadata"]["name"])


async def replace_maps(devices: Devices) -> None:
    """Give the pod other devices, in ConfigMaps that look like its own."""
    maps = await devices.maps()
    await delete_maps(devices)
    for each in maps:
        kept = {key: each["metadata"][key] for key in ("name", "labels", "annotations", "ownerReferences")}
        body = {
            "metadata": kept,
            "immutable": True,
            "data": {**(each.get("data") or {}), names.VISIBLE_DEVICES: "all"},
        }
        await devices.stage.client.create(CONFIGMAPS, devices.stage.namespace, body)


async def change_pod(devices: Devices, **metadata: Any) -> None:
    await devices.stage.client.patch(PODS, devices.stage.namespace, "pod", {"metadata": metadata})


async def unlabel(devices: Devices) -> None:
    await change_pod(devices, labels={names.LABEL_GPU_GROUP: None, names.LABEL_GPU_SHARING: None})


async def delete_reservation(devices: Devices) -> None:
    (reservation,) = await devices.reservations()
    name = reservation["metadata"]["name"]
    await devices.stage.client.delete(PODS, devices.namespace, name, grace_period_s=0)


@pytest.mark.parametrize("change", [delete_maps, replace_maps, unlabel, delete_reservation])
async def test_what_was_prepared_before_a_wait_is_read_before_the_bind(
    stage: Stage, devices: Devices, change: Change
) -> None:
    await devices.make_pod()
    volume = Volume()
    async with stage.working(devices.plugin(), volume) as working:
        await devices.ask("a")
        await until_awaited(devices.reported, lambda present: present and all(map(device_of, present)))
        await until_awaited(devices.maps, lambda present: len(present) == 2)
        version = (await change_and_read(devices, change))["metadata"]["resourceVersion"]
        await until_awaited(lambda: cached_version(working, stage), lambda cached: cached == version)
        volume.is_there = True
        await touch(stage, "pod")
        status = await ended(devices, "pod")
    assert status["phase"] == "Succeeded"
    uid, bound_pod, maps = (await stage.request())["metadata"]["uid"], await stage.pod(), await devices.maps()
    assert gpu_groups(bound_pod["metadata"]["labels"]) == {devices.group("a")}
    assert bound_pod["metadata"]["labels"][names.LABEL_GPU_SHARING] == "true"
    assert bound_pod["metadata"]["annotations"][names.LABELLED_FOR] == uid
    owner = pod_owner("pod", bound_pod["metadata"]["uid"])
    assert [each["metadata"]["ownerReferences"] for each in maps] == [[owner], [owner]]
    assert records(maps) == {uid}
    (reservation,) = await devices.reservations()
    assert await devices.visible() == [device_of(reservation)]


async def change_and_read(devices: Devices, change: Change) -> dict[str, Any]:
    await change(devices)
    return await devices.stage.pod()


async def cached_version(working: Any, stage: Stage) -> str:
    await working.pod_cached(stage.namespace)
    return str(working.parts.informers.pod(ObjectKey(stage.namespace, "pod"))["metadata"]["resourceVersion"])


async def assert_nothing_left(devices: Devices) -> None:
    metadata = (await devices.stage.pod())["metadata"]
    assert not gpu_groups(metadata.get("labels") or {})
    assert names.LABELLED_FOR not in metadata["annotations"]
    assert await devices.maps() == []
    assert await devices.reservations() == []


async def test_a_rollback_is_complete_when_what_it_deletes_is_gone(stage: Stage, devices: Devices) -> None:
    await devices.make_pod()
    async with stage.working(devices.plugin(), Volume()):
        await devices.ask("a")
        await until_awaited(devices.reported, lambda present: present and all(map(device_of, present)))
        maps = await until_awaited(devices.maps, lambda present: len(present) == 2)
        kept_map = maps[1]["metadata"]["name"]
        for finalizers in (["example.com/backup"], []):
            body = {"metadata": {"finalizers": finalizers}}
            await stage.client.patch(CONFIGMAPS, stage.namespace, kept_map, body)
            if finalizers:
                await stage.withdraw()
                await until_awaited(devices.maps, lambda present: len(present) == 1)
                await until_awaited(devices.reservations, lambda present: present == [])
                assert await stage.request(), "it is not rolled back yet"
        await stage.request_deleted()
    await assert_nothing_left(devices)


async def test_a_reservation_that_hangs_delays_no_share_of_another_group(
    stage: Stage, proxy_route: tuple[FaultProxy, ClusterAccess], devices: Devices
) -> None:
    """Joining it hangs, as with a slow webhook for some nodes; the other groups are of the same namespace."""
    proxy, access = proxy_route
    gate, slow, swift = FaultGate(), [f"slow{n}" for n in range(8)], [f"swift{n}" for n in range(4)]
    for group in slow:
        name = reservation_name(NODE, devices.group(group))
        proxy.add(FaultRule(Hold(gate), CallMatch(("patch",), "pods", "", devices.namespace, name)))
    options = ClientOptions(name=names.FIELD_MANAGER_RECONCILER, clock=stage.clock, timeout_s=3600)
    async with stage.working(devices.plugin(), access=access, options=options):
        for group in (*slow, *swift):
            await devices.make_pod(group)
        for group in slow:
            await devices.ask(group, group)
        await until_awaited(devices.reported, lambda present: len(present) == len(slow))
        assert await asyncio.to_thread(gate.wait_reached, 60)
        for group in swift:
            await devices.ask(group, group)

        async def phases() -> set[str]:
            await devices.report()
            return {(await stage.status(group)).get("phase", "") for group in swift}

        await until_awaited(phases, lambda present: present == {"Succeeded"})
        assert {(await stage.status(group)).get("phase", "") for group in slow} <= {"", "Pending"}
        gate.open()


async def test_the_binding_carries_the_labels(
    stage: Stage, proxy_route: tuple[FaultProxy, ClusterAccess], devices: Devices
) -> None:
    proxy, access = proxy_route
    gate = FaultGate()
    proxy.add(FaultRule(Hold(gate), CallMatch(("create",), "pods", "binding")))
    await devices.make_pod()
    async with stage.working(devices.plugin(), access=access):
        await devices.ask("a")
        await until_awaited(devices.reported, lambda _: gate.wait_reached(0))
        await unlabel(devices)
        gate.open()
        status = await ended(devices, "pod")
    assert {entry["type"]: entry["status"] for entry in status["conditions"]}["Prepared"] == "True"
    assert gpu_groups((await stage.pod())["metadata"]["labels"]) == {devices.group("a")}


async def test_labels_that_a_policy_has_changed_in_the_binding_are_seen(
    stage: Stage, proxy_route: tuple[FaultProxy, ClusterAccess], devices: Devices
) -> None:
    proxy, access = proxy_route

    def change(body: dict[str, Any]) -> None:
        body["metadata"]["labels"] = {names.LABEL_GPU_GROUP: "other"}

    proxy.add(FaultRule(Rewrite(change), CallMatch(("create",), "pods", "binding")))
    await devices.make_pod()
    async with stage.working(devices.plugin(), access=access):
        await devices.ask("a")
        status = await ended(devices, "pod")
    assert {entry["type"]: entry["status"] for entry in status["conditions"]}["Prepared"] == "Unknown"
