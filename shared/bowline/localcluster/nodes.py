"""Fake nodes and the other preexisting objects of a GPU cluster (pure: objects as data)."""

from collections.abc import Mapping
from typing import Any

from bowline.localcluster.flags import FAKE_NODE_ANNOTATION, FAKE_NODE_VALUE

GPU_MEMORY_MIB = 81920
# Condition times only have to be present and valid; their age is not checked here.
_SINCE = "2025-01-01T00:00:00Z"

_NODE_INFO = (
    "architecture",
    "bootID",
    "containerRuntimeVersion",
    "kernelVersion",
    "kubeProxyVersion",
    "kubeletVersion",
    "machineID",
    "operatingSystem",
    "osImage",
    "systemUUID",
)


# What the pods of examples/manifests name besides GPUs. Other nodes lack it: KAI-Scheduler places neither whole GPUs
# nor shares on a node whose MIG strategy is mixed.
EXAMPLE_LABELS = {
    "nvidia.com/gpu.present": "true",
    "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
    "nvidia.com/mig.strategy": "mixed",
}
EXAMPLE_RESOURCES = {"nvidia.com/mig-2g.20gb": "3", "rdma/hca_shared_devices_a": "64"}


def node_object(
    name: str, gpus: int = 8, labels: Mapping[str, str] | None = None, resources: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """A ready node that kwok manages; with the labels of a GPU node if it has GPUs."""
    capacity = {"cpu": "128", "memory": "1Ti", "pods": "500", "ephemeral-storage": "4Ti"}
    default_labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    if gpus:
        capacity["nvidia.com/gpu"] = str(gpus)
        default_labels |= {"nvidia.com/gpu.count": str(gpus), "nvidia.com/gpu.memory": str(GPU_MEMORY_MIB)}
    capacity |= resources or {}
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "KubeletReady",
        "message": "fake node",
        "lastHeartbeatTime": _SINCE,
        "lastTransitionTime": _SINCE,
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {**default_labels, **(labels or {})},
            "annotations": {FAKE_NODE_ANNOTATION: FAKE_NODE_VALUE},
        },
        "spec": {},
        "status": {
            "capacity": capacity,
            "allocatable": capacity,
            "conditions": [ready],
            "addresses": [{"type": "Hostname", "address": name}],
            "nodeInfo": dict.fromkeys(_NODE_INFO, "fake"),
        },
    }


def runtime_class_object(name: str = "nvidia") -> dict[str, Any]:
    """The RuntimeClass without which the API server rejects pods that name it."""
    return {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": name}, "handler": name}
