"""What decisions use of a node: the fields that are cached of it, and their values. Pure.

One place for a field: ``reduced_node`` is what the reconciler caches, and a decision reads the ``NodeView``.
"""

from dataclasses import dataclass, field
from typing import Any

from bowline.api import names
from bowline.api.meta import Object, identity_of, is_deleting
from bowline.api.taints import hard_taints

# Of a node's labels, only those that describe its GPUs are cached.
_GPU_LABELS = ("nvidia.com/gpu.", names.NODE_FAKE_GPU)


@dataclass(frozen=True, slots=True)
class NodeView:
    """The fields of a node that decisions use. ``raw``: the node itself, which plugins receive."""

    deleting: bool
    taints: tuple[Object, ...] = ()  # those that keep pods without a toleration away; a cordon is one
    raw: Object = field(default_factory=dict, repr=False)


def node_view(node: Object) -> NodeView:
    """Return the fields of a raw or a reduced node that decisions use."""
    return NodeView(is_deleting(node), hard_taints(node.get("spec") or {}), node)


def reduced_node(node: dict[str, Any]) -> Object:
    """Keep a node's identity, deletion timestamp and GPU labels, its taints and whether it is cordoned.

    Of its conditions that of GPU fractioning; of its allocatable resources the whole GPUs.
    """
    metadata, identity = node["metadata"], identity_of(node)
    if metadata.get("deletionTimestamp"):
        identity["deletionTimestamp"] = metadata["deletionTimestamp"]
    labels = _gpu_labels(node)
    spec = {field: value for field in ("taints", "unschedulable") if (value := (node.get("spec") or {}).get(field))}
    metadata = identity | ({"labels": labels} if labels else {})
    conditions = (node.get("status") or {}).get("conditions") or ()
    ready = [entry for entry in conditions if entry.get("type") == names.NODE_FRACTIONING_READY]
    # Only what a decision uses: a heartbeat must not make another object.
    status: dict[str, Any] = {}
    if ready:
        status["conditions"] = [{"type": entry["type"], "status": entry.get("status")} for entry in ready]
    allocatable = (node.get("status") or {}).get("allocatable")
    if allocatable:
        status["allocatable"] = {names.RESOURCE_GPU: str(allocatable.get(names.RESOURCE_GPU) or "0")}
    return {"metadata": metadata} | ({"spec": spec} if spec else {}) | ({"status": status} if status else {})


def lacks_gpus(node: Object) -> bool:
    """Return whether a raw or reduced node offers no whole GPU; False where its resources are not known."""
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    return bool(allocatable) and str(allocatable.get(names.RESOURCE_GPU) or "0") == "0"


def has_fake_gpus(node: Object) -> bool:
    """Return whether the GPUs of a raw or reduced node are fake."""
    return bool(_gpu_labels(node).get(names.NODE_FAKE_GPU) == "true")


def _gpu_labels(node: Object) -> dict[str, str]:
    labels = node["metadata"].get("labels") or {}
    return {key: value for key, value in labels.items() if key.startswith(_GPU_LABELS)}
