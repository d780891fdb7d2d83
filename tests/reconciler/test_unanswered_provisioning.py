"""A provisioning that no provisioner has answered is withdrawn, however its request ends: no volume ties the pod."""

from typing import Any

import pytest

from bowline.api import names
from bowline.framework.config import Settings
from bowline.framework.waiting import BindTimeoutConfig
from bowline.kube.resources import NODES, PERSISTENTVOLUMECLAIMS, PERSISTENTVOLUMES, STORAGECLASSES
from bowline.plugins.volume_binding import VolumeBinding
from tests.plugins.storage import mounts, on_node
from tests.reconciler.stage import Stage, Working
from tests.waiting import until_awaited


async def annotations(stage: Stage) -> dict[str, str]:
    """The annotations of the PVC."""
    claim = await stage.client.get(PERSISTENTVOLUMECLAIMS, stage.namespace, "data")
    return claim["metadata"].get("annotations") or {}


async def asked(stage: Stage, node: str) -> None:
    """Wait until a volume is requested on the node."""
    await until_awaited(lambda: annotations(stage), lambda found: found.get(names.SELECTED_NODE) == node)


async def mount(stage: Stage) -> None:
    """Create a pod that mounts a PVC without a volume, of a class with a provisioner."""
    storage_class = {"provisioner": "csi.example.com", "volumeBindingMode": "WaitForFirstConsumer"}
    await stage.client.create(STORAGECLASSES, "", {"metadata": {"name": stage.namespace}, **storage_class})
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": stage.namespace,
        "resources": {"requests": {"storage": "1Gi"}},
    }
    await stage.client.create(PERSISTENTVOLUMECLAIMS, stage.namespace, {"metadata": {"name": "data"}, "spec": spec})
    await stage.create_pod(volumes=mounts("data"), tolerations=[])


async def provision(stage: Stage, node: str, *, binds: bool) -> None:
    """Create the volume, as a provisioner does, and bind it, as the PV controller does."""
    claim = await stage.client.get(PERSISTENTVOLUMECLAIMS, stage.namespace, "data")
    reference = {"kind": "PersistentVolumeClaim", "apiVersion": "v1", "namespace": stage.namespace, "name": "data"}
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": stage.namespace,
        "csi": {"driver": "csi.example.com", "volumeHandle": stage.namespace},
        "nodeAffinity": {"required": on_node(node)},
        "claimRef": {**reference, "uid": claim["metadata"]["uid"]},
    }
    await stage.client.create(PERSISTENTVOLUMES, "", {"metadata": {"name": stage.namespace}, "spec": spec})
    if binds:
        done = {"metadata": {"annotations": {names.BIND_COMPLETED: "yes"}}, "spec": {"volumeName": stage.namespace}}
        await stage.client.patch(PERSISTENTVOLUMECLAIMS, stage.namespace, "data", done)


def plugin() -> VolumeBinding:
    return VolumeBinding(BindTimeoutConfig(), Settings())


async def delete_pod(stage: Stage, _: Working) -> dict[str, Any]:
    """As a StatefulSet, whose next pod mounts the same PVC."""
    await stage.delete_pod()
    status = await stage.phase("pod", "Failed")
    await stage.create_pod(volumes=mounts("data"), tolerations=[])
    await stage.withdraw()
    return status


async def cordon(stage: Stage, _: Working) -> dict[str, Any]:
    """As a drain."""
    node = {"metadata": {"name": stage.namespace}, "spec": {"unschedulable": True}}
    await stage.client.patch(NODES, "", stage.namespace, node)
    status = await stage.phase("pod", "Failed")
    await stage.withdraw()
    return status


async def crash_and_withdraw(stage: Stage, working: Working) -> dict[str, Any]:
    """As a scheduler, while no process watches."""
    await working.crash()
    await stage.withdraw()
    return {}


@pytest.mark.parametrize("end", [delete_pod, cordon, crash_and_withdraw])
async def test_the_next_decision_may_choose_any_node(stage: Stage, end: Any) -> None:
    await stage.client.create(NODES, "", {"metadata": {"name": stage.namespace}})
    try:
        async with stage.working(plugin()) as working:
            await mount(stage)
            await working.pod_cached(stage.namespace)
            await stage.request_bind(node=stage.namespace)
            await asked(stage, stage.namespace)
            status = await end(stage, working)
        assert status.get("suggestion") != "RetrySameNode"
        assert "can use" not in status.get("reason", "")
        async with stage.working(plugin(), lease="next"):
            await stage.request_deleted()
            assert not {names.SELECTED_NODE, names.PREPARED_FOR} & (await annotations(stage)).keys()
            await stage.request_bind(node="gpu-node-1")
            await asked(stage, "gpu-node-1")
            await provision(stage, "gpu-node-1", binds=True)
            await stage.phase("pod", "Succeeded")
    finally:
        await stage.client.delete(NODES, "", stage.namespace)


async def test_a_provisioning_that_was_answered_stays(stage: Stage) -> None:
    async with stage.working(plugin()) as working:
        await mount(stage)
        await working.pod_cached(stage.namespace)
        await stage.request_bind()
        await asked(stage, "gpu-node-0")
        await provision(stage, "gpu-node-0", binds=False)
        await stage.withdraw()
        await stage.request_deleted()
        assert (await annotations(stage))[names.SELECTED_NODE] == "gpu-node-0"
