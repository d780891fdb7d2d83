"""What the plugin keeps of the pods it watches. Pure.

Memory follows the number of sharing pods and devices, so of each no more is kept than somebody reads.
"""

from typing import Any

from shared.api import names
from shared.api.gpu_share import gpu_groups
from shared.api.meta import Object, key_of


def groups_of(pod: Object | None) -> frozenset[str]:
    """Return the groups that a pod is labelled with."""
    return gpu_groups(pod["metadata"].get("labels") or {}) if pod is not None else frozenset()


def slim_user(pod: dict[str, Any]) -> Object:
    """Keep whose user the pod is."""
    labels = {
        name: value for name, value in (pod["metadata"].get("labels") or {}).items() if gpu_groups({name: value})
    }
    return {"metadata": {**_identity(pod), "labels": labels}}


def slim_reservation(pod: dict[str, Any]) -> Object:
    """Keep whose device it is, and whether its agent has reported it and it is the expected one."""
    metadata = pod["metadata"]
    annotations = metadata.get("annotations") or {}
    device = annotations.get(names.RESERVED_DEVICE) or ""
    expected = annotations.get(names.ANNOTATION_EXPECTED_DEVICES) or ""
    group = (metadata.get("labels") or {}).get(names.LABEL_GPU_GROUP) or ""
    misplaced = bool(device and expected and device not in expected.split(","))
    return {"metadata": _identity(pod), "told": bool(device), "misplaced": misplaced, "group": group}


def slim_other(pod: dict[str, Any]) -> Object:
    """Keep that the pod is there, and in which version."""
    return {"metadata": _identity(pod)}


def group_of(reservation: Object) -> str:
    """Return the group of a slim reservation pod."""
    group: str = reservation["group"]
    return group


def has_told(reservation: Object) -> bool:
    """Return whether the agent of a slim reservation pod has told its device."""
    return bool(reservation["told"])


def _identity(pod: Object) -> dict[str, Any]:
    key, metadata = key_of(pod), pod["metadata"]
    return {
        "name": key.name,
        "namespace": key.namespace,
        "uid": metadata["uid"],
        "resourceVersion": metadata["resourceVersion"],
    }
