"""Resources of the API server, for ``KubeClient`` and ``EventSource``; ``Resource`` describes any other."""

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
    "Resource",
]
