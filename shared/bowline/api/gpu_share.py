"""A GPU share in a pod's specification: the container that gets it, and the names of the related objects. Pure.

Four plugins use these names and none may import another, so they are defined here. The validity of a share is not
checked: a pod given here is only known to have the JSON types of a pod.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

from bowline.api import names
from bowline.api.meta import Object

_SHARE = frozenset(names.SHARE_ANNOTATIONS)
# A generated prefix of ConfigMaps is <base>-<letters>-<tail>. These are the letters and digits of Kubernetes' own
# generated names: no vowels, no characters that are easily confused.
GENERATED_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
GENERATED_LENGTH = 7
GENERATED_TAIL = "shared-gpu"
_GENERATED = re.compile(rf".+-[{GENERATED_LETTERS}]{{{GENERATED_LENGTH}}}-{GENERATED_TAIL}")
_NOT_IN_VOLUME = re.compile(r"[^a-z0-9-]+")
# What gpu_sharing leaves in ``BindContext.shared``: the value of NVIDIA_VISIBLE_DEVICES.
SHARED_DEVICES = "gpu_sharing/devices"
_AMOUNT = re.compile(r"[0-9]{1,19}")
# GPU feature discovery has written bytes instead of MiB. No GPU has a TiB; KAI-Scheduler uses the same threshold.
_TIB_IN_MIB = 2**20
_BYTES_PER_MIB = 2**20


@dataclass(frozen=True, slots=True)
class ShareTarget:
    """The container that gets the share, and its position."""

    field: Literal["containers", "initContainers"]
    index: int
    container: Object

    @property
    def suffix(self) -> str:
        """Distinguishes the container's ConfigMap from those of other containers."""
        return f"{'i' if self.field == 'initContainers' else ''}{self.index}"


def wants_share(pod: Object) -> bool:
    """Return whether the pod requests a share of a GPU; an empty annotation is a request, too."""
    return not _SHARE.isdisjoint(pod["metadata"].get("annotations") or ())


def share_target(pod: Object) -> ShareTarget | None:
    """Return the named container, init containers first, else the pod's default container: the one that kubectl's
    annotation names, else the first; None if there is none.

    Argo Workflows and service meshes put containers of their own first, and write that annotation. It does not count
    in a pod that has been prepared, perhaps by KAI-Scheduler's admission, which takes the first.
    """
    annotations, spec = pod["metadata"].get("annotations") or {}, pod.get("spec") or {}
    fields: tuple[Literal["initContainers", "containers"], ...] = ("initContainers", "containers")
    if names.GPU_FRACTION_CONTAINER in annotations:
        return _container_named(annotations[names.GPU_FRACTION_CONTAINER], spec, fields)
    if names.DEFAULT_CONTAINER in annotations and not configmap_prefix(pod):
        target = _container_named(annotations[names.DEFAULT_CONTAINER], spec, ("containers",))
        if target is not None:
            return target
    containers: list[Any] = spec.get("containers") or []
    return ShareTarget("containers", 0, containers[0]) if containers else None


def _container_named(
    name: Any, spec: Object, fields: Sequence[Literal["initContainers", "containers"]]
) -> ShareTarget | None:
    for field in fields:
        for index, container in enumerate(spec.get(field) or ()):
            if name and container.get("name") == name:
                return ShareTarget(field, index, container)
    return None


def configmap_prefix(pod: Object) -> str:
    """Return the prefix of the pod's ConfigMaps; empty if it has none yet."""
    return str((pod["metadata"].get("annotations") or {}).get(names.SHARED_GPU_CONFIGMAP) or "")


def is_generated(prefix: str) -> bool:
    """Return whether the prefix of ConfigMaps has the form of a generated one."""
    return bool(_GENERATED.fullmatch(prefix))


def capabilities_map(prefix: str, target: ShareTarget) -> str:
    """Return the name of the ConfigMap whose keys the container's environment refers to."""
    return f"{prefix}-{target.suffix}"


def direct_env_map(capabilities: str) -> str:
    """Return the name of the ConfigMap that provides the container's environment as a whole."""
    return f"{capabilities}-evar"


def map_volume(capabilities: str) -> str:
    """Return the name of the volume that makes the kubelet wait for the ConfigMap."""
    return _NOT_IN_VOLUME.sub("-", f"{capabilities}-vol".lower()).strip("-")


def gpu_groups(labels: Mapping[str, str]) -> frozenset[str]:
    """Return the groups in the labels, in both forms."""
    prefix = f"{names.LABEL_GPU_GROUP}/"
    groups = {key.removeprefix(prefix) for key in labels if key.startswith(prefix)}
    single = labels.get(names.LABEL_GPU_GROUP)
    return frozenset(groups | {single} if single else groups)


def refers_to_key(container: Object, variable: str) -> bool:
    """Return whether the container reads an environment variable from a key of a ConfigMap."""
    return any(
        entry.get("name") == variable and (entry.get("valueFrom") or {}).get("configMapKeyRef")
        for entry in container.get("env") or ()
    )


def memory_limit(pod: Object, node: Object, portion: Decimal, reserved: int) -> tuple[str, str]:
    """Return the memory limit per device of the pod's share, such as ``4147m`` (MiB), as HAMi core reads it.

    Returns an empty limit and the reason if it is unknown. See ``share_memory``.
    """
    mebibytes, error = share_memory(pod, node, portion, reserved)
    return (f"{mebibytes}m" if mebibytes else ""), error


def share_memory(pod: Object, node: Object, portion: Decimal, reserved: int) -> tuple[int, str]:
    """Return the memory per device of the pod's share, in MiB.

    Returns 0 and the reason if it is unknown. A pod that requests an amount gets that amount, because a request's
    portion has only two decimals. Otherwise it is the portion of ``usable_memory``, rounded down.
    """
    amount = (pod["metadata"].get("annotations") or {}).get(names.GPU_MEMORY)
    if amount is not None and names.GPU_FRACTION not in pod["metadata"]["annotations"]:
        if _AMOUNT.fullmatch(amount) and int(amount) > 0:
            return int(amount), ""
        return 0, f'metadata.annotations[{names.GPU_MEMORY}]: "{amount}" must be a whole number of MiB above 0'
    usable, error = usable_memory(node, reserved)
    memory = int(usable * portion)
    if error or memory > 0:
        return memory, error
    return 0, f"spec.receivedGPU.portion: {portion} of {usable} MiB is nothing; have the scheduler give more"


def usable_memory(node: Object, reserved: int) -> tuple[int, str]:
    """Return the memory of each GPU of the node without ``reserved``, in MiB; 0 and the reason if it is unknown.

    The driver keeps a part of a device: without the reserve, parts that add up to the device promise more than there
    is, and the last tenant runs out of memory.
    """
    total, error = device_memory(node)
    if error or total > reserved:
        return max(total - reserved, 0), error
    name = node["metadata"]["name"]
    return 0, (
        f"node {name}: gpuSharing.reservedMemory, {reserved} MiB, leaves nothing of its GPUs of {total} MiB; lower it"
    )


def device_memory(node: Object) -> tuple[int, str]:
    """Return the memory of each GPU of the node in MiB, from its label; 0 and the reason if it is unknown."""
    label = (node["metadata"].get("labels") or {}).get(names.NODE_GPU_MEMORY)
    where = f"node {node['metadata']['name']}: metadata.labels[{names.NODE_GPU_MEMORY}]"
    if label is None:
        return 0, f"{where} is missing, so the memory of its GPUs is unknown; have GPU feature discovery label it"
    if not _AMOUNT.fullmatch(label) or int(label) == 0:
        return 0, f'{where}: "{label}" must be a whole number of MiB; correct the label'
    return int(label) if int(label) < _TIB_IN_MIB else int(label) // _BYTES_PER_MIB, ""
