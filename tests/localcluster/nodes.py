"""Fake nodes and the other preexisting objects of a GPU cluster (pure: objects as data)."""

from typing import Any

from tests.localcluster.flags import FAKE_NODE_ANNOTATION, FAKE_NODE_VALUE

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


def node_object(name: str, gpus: int = 8, labels: dict[str, str] | None = None) -> dict[str, Any]:
    """A ready node that kwok manages; with the labels of a GPU node if it has GPUs."""
    capacity = {"cpu": "128", "memory": "1Ti", "pods": "500", "ephemeral-storage": "4Ti"}
    default_labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    if gpus:
        capacity["nvidia.com/gpu"] = str(gpus)
        capacity |= {"nvidia.com/mig-2g.20gb": "3", "rdma/hca_shared_devices_a": "64"}
        default_labels |= {"nvidia.com/gpu.count": str(gpus), "nvidia.com/gpu.memory": str(GPU_MEMORY_MIB)}
        default_labels |= {"nvidia.com/gpu.present": "true", "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
        default_labels |= {"nvidia.com/mig.strategy": "mixed"}
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
            "labels": default_labels | (labels or {}),
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
