"""What a share relies on when its pod is bound, what a rollback leaves, and what hangs for others.

With the plugin, on a real API server; the test acts as the agents of reservation pods.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from bowline.api import names
from bowline.api.gpu_share import gpu_groups
from bowline.api.meta import ObjectKey, pod_owner
from bowline.framework.interface.context import BindContext
from bowline.framework.interface.status import Status
from bowline.kube.resources import CONFIGMAPS, PODS
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


async def change_pod(devices: Devices, **metadata: Any) -> None:
    await devices.stage.client.patch(PODS, devices.stage.namespace, "pod", {"metadata": metadata})


async def unlabel(devices: Devices) -> None:
    await change_pod(devices, labels={names.LABEL_GPU_GROUP: None, names.LABEL_GPU_SHARING: None})


async def delete_reservation(devices: Devices) -> None:
    (reservation,) = await devices.reservations()
    name = reservation["metadata"]["name"]
    await devices.stage.client.delete(PODS, devices.namespace, name, grace_period_s=0)


@pytest.mark.parametrize("change", [delete_maps, unlabel, delete_reservation])
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
