"""Transforms of the pods that the plugin watches. Pure.

Memory grows with the number of sharing pods and devices, so only the fields in use are kept.
"""

from typing import Any

from shared.api import names
from shared.api.gpu_share import gpu_groups
from shared.api.meta import Object, key_of


def groups_of(pod: Object | None) -> frozenset[str]:
    """Return the groups that a pod is labelled with."""
    return gpu_groups(pod["metadata"].get("labels") or {}) if pod is not None else frozenset()


def slim_user(pod: dict[str, Any]) -> Object:
    """Keep identity and groups of a sharing pod."""
    labels = {
        name: value for name, value in (pod["metadata"].get("labels") or {}).items() if gpu_groups({name: value})
    }
    return {"metadata": {**_identity(pod), "labels": labels}}


def slim_reservation(pod: dict[str, Any]) -> Object:
    """Keep a reservation pod's group, whether its agent has reported, and whether the device is an expected one."""
    metadata = pod["metadata"]
    annotations = metadata.get("annotations") or {}
    device = annotations.get(names.RESERVED_DEVICE) or ""
    expected = annotations.get(names.ANNOTATION_EXPECTED_DEVICES) or ""
    group = (metadata.get("labels") or {}).get(names.LABEL_GPU_GROUP) or ""
    misplaced = bool(device and expected and device not in expected.split(","))
    return {"metadata": _identity(pod), "told": bool(device), "misplaced": misplaced, "group": group}


def slim_other(pod: dict[str, Any]) -> Object:
    """Keep identity and version of a pod."""
    return {"metadata": _identity(pod)}


def group_of(reservation: Object) -> str:
    """Return the group of a reservation pod from ``slim_reservation``."""
    group: str = reservation["group"]
    return group


def has_told(reservation: Object) -> bool:
    """Return whether the agent of a reservation pod from ``slim_reservation`` has reported its device."""
    return bool(reservation["told"])


def _identity(pod: Object) -> dict[str, Any]:
    key, metadata = key_of(pod), pod["metadata"]
    return {
        "name": key.name,
        "namespace": key.namespace,
        "uid": metadata["uid"],
        "resourceVersion": metadata["resourceVersion"],
    }
