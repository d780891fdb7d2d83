"""Raw volumes, claims, classes and pods as the API server would return them."""

from typing import Any

from bowline.api.meta import ObjectKey
from bowline.api.pod_volumes import PodVolume
from bowline.api.selectors import Node
from bowline.plugins.volume_binding.volumes import (
    PersistentVolumeClaim,
    StorageClass,
    Volume,
    read_claim,
    read_class,
    read_volume,
)
from bowline.testing import builders

NODE = Node("node-0", {"kubernetes.io/hostname": "node-0", "zone": "a", "rank": "5"})
WANTED = PodVolume(ObjectKey("ns", "data"), "v", ephemeral=False)
SCRATCH = PodVolume(ObjectKey("ns", "pod-scratch"), "scratch", ephemeral=True)
POD = {"metadata": {"name": "pod", "namespace": "ns", "uid": "pod-uid"}, "spec": {}}


def raw_claim(
    name: str = "data",
    *,
    size: str = "1Gi",
    annotations: Any = None,
    status: Any = None,
    meta: Any = None,
    **spec: Any,
) -> dict[str, Any]:
    """Return a claim of class ``late``."""
    raw = builders.persistent_volume_claim(name, "ns", size, **{"storageClassName": "late", **spec})
    metadata = {"annotations": annotations or {}, **(meta or {})}
    return builders.stored(raw, f"uid-{name}", "7", **metadata) | {"status": status or {"phase": "Pending"}}


def claim(name: str = "data", **fields: Any) -> PersistentVolumeClaim:
    """Return the same, decoded."""
    return read_claim(raw_claim(name, **fields))


def raw_volume(
    name: str = "v", *, size: str = "1Gi", phase: str = "Available", meta: Any = None, node: str = "", **spec: Any
) -> dict[str, Any]:
    """Return a volume of class ``late``, accessible from every node unless one is given."""
    if node:
        expression = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": "3", **(meta or {})},
        "spec": {"storageClassName": "late", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": size}, **spec},
        "status": {"phase": phase},
    }


def volume(name: str = "v", **fields: Any) -> Volume:
    """Return the same, decoded."""
    return read_volume(raw_volume(name, **fields))


def cls(
    provisioner: str = "kubernetes.io/no-provisioner", mode: str = "WaitForFirstConsumer", **fields: Any
) -> StorageClass:
    """Return the class ``late``."""
    return read_class(builders.storage_class("late", provisioner, volumeBindingMode=mode, **fields))


def reference(name: str = "data", **fields: str) -> dict[str, str]:
    """Return a claimRef."""
    return {"namespace": "ns", "name": name, **fields}
