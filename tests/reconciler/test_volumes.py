"""Volumes of a request that waits, on a real API server: a test acts as the volume controller and the provisioner."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from bowline.api import names
from bowline.framework.config import Settings
from bowline.framework.interface.waiting import BindTimeoutConfig
from bowline.kube.resources import NODES, PERSISTENTVOLUMECLAIMS, PERSISTENTVOLUMES, STORAGECLASSES
from bowline.plugins.volume_binding import VolumeBinding
from tests.plugins.storage import PROVISIONER, mounts
from tests.reconciler.stage import Stage
from tests.waiting import until, until_awaited

ZONE = "example.com/zone"


class Volumes:
    """PVCs of the test's namespace and class, and volumes with the names of their PVCs."""

    def __init__(self, stage: Stage) -> None:
        self._client, self._namespace = stage.client, stage.namespace

    async def make_class(self) -> None:
        """Create the class, whose provisioner is the test."""
        body = {"metadata": {"name": self._namespace}, "provisioner": PROVISIONER}
        body["volumeBindingMode"] = "WaitForFirstConsumer"
        await self._client.create(STORAGECLASSES, "", body)

    async def make_claim(self, name: str) -> None:
        """Create a PVC of the class."""
        spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
        body = {"metadata": {"name": name}, "spec": spec | {"storageClassName": self._namespace}}
        await self._client.create(PERSISTENTVOLUMECLAIMS, self._namespace, body)

    async def selected_node(self, name: str) -> str:
        """Return the node on which a volume of the PVC is requested."""
        claim = await self._client.get(PERSISTENTVOLUMECLAIMS, self._namespace, name)
        return str((claim["metadata"].get("annotations") or {}).get(names.SELECTED_NODE, ""))

    async def bind(self, name: str, zone: str) -> None:
        """Provide the PVC with a volume of the zone."""
        claim = await self._client.get(PERSISTENTVOLUMECLAIMS, self._namespace, name)
        volume, in_zone = f"{self._namespace}-{name}", {"key": ZONE, "operator": "In", "values": [zone]}
        spec: dict[str, Any] = {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": self._namespace,
            "csi": {"driver": PROVISIONER, "volumeHandle": volume},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [in_zone]}]}},
            "claimRef": {"namespace": self._namespace, "name": name, "uid": claim["metadata"]["uid"]},
        }
        await self._client.create(PERSISTENTVOLUMES, "", {"metadata": {"name": volume}, "spec": spec})
        body = {"metadata": {"annotations": {names.BIND_COMPLETED: "yes"}}, "spec": {"volumeName": volume}}
        await self._client.patch(PERSISTENTVOLUMECLAIMS, self._namespace, name, body)

    async def clear(self) -> None:
        """Delete the volumes and the class."""
        for resource in (PERSISTENTVOLUMES, STORAGECLASSES):
            for each in await self._client.list_all(resource, ""):
                name = each["metadata"]["name"]
                if name.startswith(self._namespace):
                    await self._client.patch(resource, "", name, {"metadata": {"finalizers": None}})
                    await self._client.delete(resource, "", name)


@pytest.fixture
async def volumes(stage: Stage) -> AsyncIterator[Volumes]:
    """The test's volumes."""
    made = Volumes(stage)
    await made.make_class()
    yield made
    await made.clear()


async def label(stage: Stage, zone: str | None) -> str:
    """Set the node's zone; returns the node's version."""
    body = {"metadata": {"labels": {ZONE: zone}}}
    return str((await stage.client.patch(NODES, "", "gpu-node-0", body))["metadata"]["resourceVersion"])


@pytest.fixture
async def zone_a(stage: Stage) -> AsyncIterator[None]:
    """The node is in zone a."""
    await label(stage, "a")
    yield
    await label(stage, None)


@pytest.mark.usefixtures("zone_a")
async def test_a_bound_volume_is_compared_with_the_node_as_it_is_after_a_wait(stage: Stage, volumes: Volumes) -> None:
    for name in ("bound", "late"):
        await volumes.make_claim(name)
    await volumes.bind("bound", "a")
    await stage.create_pod(volumes=mounts("bound", "late"))
    async with stage.working(VolumeBinding(BindTimeoutConfig(), Settings())) as working:
        await stage.request_bind()
        await until_awaited(lambda: volumes.selected_node("late"), bool)
        version = await label(stage, "b")
        nodes = working.parts.informers
        await until(lambda: (nodes.node("gpu-node-0") or {})["metadata"]["resourceVersion"] == version)
        await volumes.bind("late", "b")
        status = await stage.phase("pod", "Succeeded", "Failed")
    assert (status["phase"], status["failure"]["reason"]) == ("Failed", "VolumeConflict")
    assert "PersistentVolumeClaim" in status["reason"]
    assert "nodeName" not in (await stage.pod())["spec"]
