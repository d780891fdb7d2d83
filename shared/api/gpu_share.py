"""A GPU share as it is written on a pod: which container gets it, and what the objects around it are called. Pure.

Four plugins meet in these names and none may import another, so they are here, beside the names they are made of.
Whether a share makes sense is not judged: a pod read here has the JSON types of a pod and nothing more.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from shared.api import names
from shared.api.meta import Object

_SHARE = frozenset(names.SHARE_ANNOTATIONS)
_NOT_IN_VOLUME = re.compile(r"[^a-z0-9-]+")


@dataclass(frozen=True, slots=True)
class ShareTarget:
    """The container that gets the share, and where it stands."""

    field: Literal["containers", "initContainers"]
    index: int
    container: Object

    @property
    def suffix(self) -> str:
        """What tells its ConfigMap from that of another container."""
        return f"{'i' if self.field == 'initContainers' else ''}{self.index}"


def wants_share(pod: Object) -> bool:
    """Return whether the pod asks for a share of a GPU; an empty annotation asks, too."""
    return not _SHARE.isdisjoint(pod["metadata"].get("annotations") or ())


def share_target(pod: Object) -> ShareTarget | None:
    """Return the named container, init containers first, else the first container; None if there is none."""
    annotations, spec = pod["metadata"].get("annotations") or {}, pod.get("spec") or {}
    containers: list[Any] = spec.get("containers") or []
    if names.GPU_FRACTION_CONTAINER not in annotations:
        return ShareTarget("containers", 0, containers[0]) if containers else None
    wanted = annotations[names.GPU_FRACTION_CONTAINER]
    fields: tuple[Literal["initContainers", "containers"], ...] = ("initContainers", "containers")
    for field in fields:
        for index, container in enumerate(spec.get(field) or ()):
            if wanted and container.get("name") == wanted:
                return ShareTarget(field, index, container)
    return None


def configmap_prefix(pod: Object) -> str:
    """Return the prefix of the pod's ConfigMaps; empty if it has none yet."""
    return str((pod["metadata"].get("annotations") or {}).get(names.SHARED_GPU_CONFIGMAP) or "")


def capabilities_map(prefix: str, target: ShareTarget) -> str:
    """Return the name of the ConfigMap whose keys the container's environment refers to."""
    return f"{prefix}-{target.suffix}"


def direct_env_map(capabilities: str) -> str:
    """Return the name of the ConfigMap that is the container's environment as a whole."""
    return f"{capabilities}-evar"


def map_volume(capabilities: str) -> str:
    """Return the name of the volume that makes the kubelet wait for the ConfigMap."""
    return _NOT_IN_VOLUME.sub("-", f"{capabilities}-vol".lower()).strip("-")


def gpu_groups(labels: Mapping[str, str]) -> frozenset[str]:
    """Return the groups that labels name, in both forms."""
    prefix = f"{names.LABEL_GPU_GROUP}/"
    groups = {key.removeprefix(prefix) for key in labels if key.startswith(prefix)}
    single = labels.get(names.LABEL_GPU_GROUP)
    return frozenset(groups | {single} if single else groups)
