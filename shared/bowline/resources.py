"""Resources of the API server, for ``ObjectClient`` and ``EventSource``; ``Resource`` describes any other."""

from bowline.kube.calls import PatchType
from bowline.kube.resources import (
    BINDREQUESTS,
    CONFIGMAPS,
    NAMESPACES,
    NODES,
    PERSISTENTVOLUMECLAIMS,
    PERSISTENTVOLUMES,
    PODS,
    RESOURCECLAIMS,
    SECRETS,
    STORAGECLASSES,
    Resource,
    Selection,
)

__all__ = [
    "BINDREQUESTS",
    "CONFIGMAPS",
    "NAMESPACES",
    "NODES",
    "PERSISTENTVOLUMECLAIMS",
    "PERSISTENTVOLUMES",
    "PODS",
    "RESOURCECLAIMS",
    "SECRETS",
    "STORAGECLASSES",
    "PatchType",
    "Resource",
    "Selection",
]
