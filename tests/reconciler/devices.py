"""Shares of GPUs and their reservation pods for tests on a real API server: a test acts as the agents of the pods."""

from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from bowline.api import names
from bowline.framework.config import GpuSharingSettings, Settings
from bowline.framework.interface.mutable import MutablePod
from bowline.kube.errors import NotFound
from bowline.kube.resources import CONFIGMAPS, NAMESPACES, PODS
from bowline.plugins.gpu_sharing.admission import prepare
from bowline.plugins.gpu_sharing.config import GpuSharingConfig
from bowline.plugins.gpu_sharing.plugin import GpuSharing
from bowline.testing.builders import pod
from tests.plugins.sharing import HALF, device_of, group_of
from tests.reconciler.stage import Stage


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
