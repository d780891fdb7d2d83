"""A share's POST without a reply that is executed later: the reservation pod's and the ConfigMap's, with the plugin.

On a real API server: the proxy holds the write, also after its client has given up, until the test opens the gate.
The test acts as the agents of reservation pods.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from bowline.api import names
from bowline.api.gpu_share import gpu_groups
from bowline.api.meta import key_of
from bowline.framework.config import Binding, GpuSharingSettings, Settings
from bowline.framework.mutable import MutablePod
from bowline.kube.config import ClusterAccess
from bowline.kube.errors import NotFound
from bowline.kube.resources import CONFIGMAPS, NAMESPACES, PODS
from bowline.plugins.gpu_sharing.admission import prepare
from bowline.plugins.gpu_sharing.config import GpuSharingConfig
from bowline.plugins.gpu_sharing.plugin import GpuSharing
from bowline.testing.builders import pod
from bowline.testing.fault_proxy.faults import FaultGate, Hold
from bowline.testing.fault_proxy.rules import CallMatch, FaultRule
from bowline.testing.fault_proxy.server import FaultProxy
from tests.plugins.sharing import HALF, device_of, group_of
from tests.reconciler.stage import NO_FLIGHT, Stage
from tests.reconciler.test_late_writes import landed, withdrawn
from tests.waiting import until, until_awaited


@dataclass(frozen=True, slots=True)
class Devices:
    """The shares of a test and their reservation pods, in a namespace of the test's own."""

    stage: Stage
    namespace: str

    def plugin(self) -> GpuSharing:
        """Return a plugin that reserves in this namespace."""
        sharing = GpuSharingSettings(reservation_namespace=self.namespace, runtime_class_name="")
        return GpuSharing(GpuSharingConfig(), Settings(gpu_sharing=sharing))

    def group(self, name: str) -> str:
        """Return the test's group of that name."""
        return f"{self.stage.namespace}-{name}"

    async def make_pod(self, name: str = "pod") -> None:
        """Create a pod with half a device, as the webhook prepares it."""
        body = pod(name, self.stage.namespace)
        body["metadata"]["annotations"] = dict(HALF)
        prepare(MutablePod(body), self.stage.namespace)
        await self.stage.client.create(PODS, self.stage.namespace, body)

    async def ask(self, group: str, name: str = "pod") -> None:
        """Create the pod's request of a share."""
        await self.stage.request_bind(
            name,
            selectedGPUGroups=[self.group(group)],
            receivedResourceType="Fraction",
            receivedGPU={"count": 1, "portion": "0.50"},
        )

    async def reservations(self) -> list[dict[str, Any]]:
        """Return the reservation pods."""
        return await self.stage.client.list_all(PODS, self.namespace)

    async def report(self) -> None:
        """Act as the agent of each reservation pod that has reported no device; each group has another one."""
        for reservation in await self.reservations():
            if not device_of(reservation) and names.LABEL_GPU_GROUP in reservation["metadata"]["labels"]:
                device = f"GPU-{group_of(reservation).rpartition('-')[2]}"
                body = {"metadata": {"annotations": {names.RESERVED_DEVICE: device}}}
                with suppress(NotFound):
                    await self.stage.client.patch(PODS, self.namespace, reservation["metadata"]["name"], body)

    async def reported(self) -> list[dict[str, Any]]:
        """Act as the agents; return the reservation pods."""
        await self.report()
        return await self.reservations()

    async def maps(self) -> list[dict[str, Any]]:
        """Return the ConfigMaps of shares in the test's namespace."""
        config_maps = await self.stage.client.list_all(CONFIGMAPS, self.stage.namespace)
        return [each for each in config_maps if each["metadata"]["name"] != "kube-root-ca.crt"]

    async def visible(self) -> list[str]:
        """Return the devices in these ConfigMaps."""
        values = [(each.get("data") or {}).get(names.VISIBLE_DEVICES, "") for each in await self.maps()]
        return [value for value in values if value]


@pytest.fixture
async def devices(stage: Stage) -> AsyncIterator[Devices]:
    """A namespace for reservation pods."""
    made = Devices(stage, f"{stage.namespace}-devices")
    await stage.client.create(NAMESPACES, "", {"metadata": {"name": made.namespace}})
    yield made
    for reservation in await made.reservations():
        with suppress(NotFound):
            await stage.client.delete(PODS, made.namespace, reservation["metadata"]["name"], grace_period_s=0)


async def test_a_reservation_that_lands_after_the_rollback_promises_no_device_twice(
    stage: Stage, proxy_route: tuple[FaultProxy, ClusterAccess], devices: Devices
) -> None:
    """Later than the API server executes a request: the next share of the node finds it, and no resync is needed."""
    proxy, access = proxy_route
    gate, lost = FaultGate(), FaultGate()
    creation = CallMatch(("create",), "pods", "", devices.namespace)
    proxy.add(FaultRule(Hold(gate, outlives=True, lost=lost), creation, nth=1))
    await devices.make_pod()
    await devices.make_pod("next")
    binding = Binding(in_flight_timeout=NO_FLIGHT)
    async with stage.working(devices.plugin(), access=access, binding=binding) as working:
        await devices.ask("a")
        assert await asyncio.to_thread(gate.wait_reached, 60)
        await stage.withdraw()
        await withdrawn(working, stage)
        lost.open()
        await stage.request_deleted("pod")
        gate.open()
        await landed(proxy)
        (late,) = await devices.reservations()
        await until(lambda: any(key_of(late) in reflector.store for reflector in working.parts.reflectors.values()))
        await devices.ask("b", "next")

        async def ended() -> str:
            await devices.report()
            phase: str = (await stage.status("next")).get("phase", "")
            return phase

        assert await until_awaited(ended, lambda phase: phase in ("Succeeded", "Failed")) == "Succeeded"
        left = await until_awaited(devices.reported, lambda left: len(left) == 1)
        assert [group_of(reservation) for reservation in left] == [devices.group("b")]
        bound = await stage.pod("next")
    assert gpu_groups(bound["metadata"]["labels"]) == {devices.group("b")}
    assert await devices.visible() == [device_of(reservation) for reservation in left]
    assert not gpu_groups((await stage.pod())["metadata"].get("labels") or {})
