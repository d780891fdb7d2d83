"""Raw objects for tests: complete enough for the API server, adjustable by keyword.

A builder returns a new dictionary each time, which the caller may modify. A namespaced object without ``namespace``
names none: ``objects`` of a conformance suite are created in the namespace of each attempt.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from bowline.api import names
from bowline.localcluster.nodes import node_object

__all__ = [
    "bind_request",
    "configmap",
    "device_class",
    "namespace",
    "node",
    "persistent_volume",
    "persistent_volume_claim",
    "pod",
    "resource_claim",
    "resource_slice",
    "storage_class",
    "stored",
]


def pod(name: str = "pod", namespace: str = "default", **spec: Any) -> dict[str, Any]:
    """Return an unbound pod of the example scheduler with one container. ``spec`` overrides fields of its spec."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "schedulerName": "example-scheduler",
            "containers": [{"name": "main", "image": "registry.example/app:1"}],
            # Bound pods must run on kwok's tainted and untainted nodes.
            "tolerations": [{"operator": "Exists"}],
            **spec,
        },
    }


def bind_request(
    name: str = "pod", node: str = "node-0", namespace: str = "default", uid: str = "", **spec: Any
) -> dict[str, Any]:
    """Return a Regular BindRequest for the pod of that name. With ``uid`` it is owned by that pod."""
    owner = [{"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}] if uid else []
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": name, "namespace": namespace, **({"ownerReferences": owner} if owner else {})},
        "spec": {
            "podName": name,
            "selectedNode": node,
            "receivedResourceType": "Regular",
            "receivedGPU": {"portion": "0.00"},
            **spec,
        },
    }


def stored(obj: dict[str, Any], uid: str = "uid-1", version: str = "1", **metadata: Any) -> dict[str, Any]:
    """Return the object as the API server would return it: with UID, resourceVersion and creation time."""
    return {
        **obj,
        "metadata": {
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "generation": 1,
            **obj["metadata"],
            "uid": uid,
            "resourceVersion": version,
            **metadata,
        },
    }


def node(name: str = "node-0", gpus: int = 8, labels: Mapping[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    """Return a ready node with whole GPUs, and with the labels of a GPU node if it has any."""
    return {**node_object(name, gpus, labels), "spec": spec}


def namespace(name: str, **labels: str) -> dict[str, Any]:
    """Return a namespace with labels."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def configmap(name: str, namespace: str = "", **data: str) -> dict[str, Any]:
    """Return a ConfigMap with this data."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata(name, namespace), "data": data}


def persistent_volume_claim(
    name: str = "data", namespace: str = "", storage: str = "1Gi", **spec: Any
) -> dict[str, Any]:
    """Return an unbound PVC. Without ``storageClassName`` in ``spec`` it gets the cluster's default class."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": _metadata(name, namespace),
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": storage}}, **spec},
    }


def persistent_volume(
    name: str = "volume", storage: str = "1Gi", node: str = "node-0", **spec: Any
) -> dict[str, Any]:
    """Return a local volume of a node; ``spec`` overrides its fields, such as ``storageClassName``."""
    expression = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": storage},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "local": {"path": f"/mnt/{name}"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}},
            **spec,
        },
    }


def storage_class(name: str = "late", provisioner: str = names.NO_PROVISIONER, **fields: Any) -> dict[str, Any]:
    """Return a StorageClass whose volumes are chosen when a pod needs them. ``fields`` are those of the object."""
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": provisioner,
        "volumeBindingMode": "WaitForFirstConsumer",
        **fields,
    }


def device_class(name: str = "gpu.example.com", driver: str = "dra.example.com") -> dict[str, Any]:
    """Return a DeviceClass of all devices of a DRA driver."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{driver}"'}}]},
    }


def resource_claim(
    name: str = "dev", namespace: str = "", device_class: str = "gpu.example.com", count: int = 1
) -> dict[str, Any]:
    """Return an unallocated ResourceClaim for devices of a class, as its request ``dev``."""
    exactly = {"deviceClassName": device_class, "count": count}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": _metadata(name, namespace),
        "spec": {"devices": {"requests": [{"name": "dev", "exactly": exactly}]}},
    }


def resource_slice(
    node: str = "node-0", devices: Sequence[str] = ("d0", "d1", "d2", "d3"), driver: str = "dra.example.com"
) -> dict[str, Any]:
    """Return the ResourceSlice by which a DRA driver publishes the devices of a node; the pool has its name."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-{driver}"},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": name} for name in devices],
        },
    }


def _metadata(name: str, namespace: str) -> dict[str, Any]:
    return {"name": name, **({"namespace": namespace} if namespace else {})}
