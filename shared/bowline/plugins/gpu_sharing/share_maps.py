"""The content of a share's two ConfigMaps, and whose one is. Pure; ``configmaps`` writes them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bowline.api import names
from bowline.api.gpu_share import direct_env_map, refers_to_key
from bowline.api.meta import Object, ObjectUID, pod_owner, uid_of
from bowline.plugins.gpu_sharing.rules import Share


@dataclass(frozen=True, slots=True)
class ShareConfigMaps:
    """The two ConfigMaps of a share, complete. ``capabilities``: the name of the first."""

    capabilities: str
    data: Mapping[str, Mapping[str, str]]  # of both, by ConfigMap name
    groups: tuple[str, ...]  # the devices' groups, in the order of the devices
    visible: str  # the value of NVIDIA_VISIBLE_DEVICES
    compute_modes: tuple[str, ...] = ()  # of the groups, in the same order; empty: all are time-slicing


def share_configmaps(
    share: Share,
    portion: str,
    devices: Mapping[str, str],
    *,
    cdi: bool,
    memory_limit: str = "",
    compute_modes: Mapping[str, str] | None = None,
) -> ShareConfigMaps:
    """Return both ConfigMaps of the share. ``devices``: UUIDs by group, in the order of the request's groups.

    ``compute_modes``: by group, of those that are not time-slicing.

    ``memory_limit`` is written if the container refers to it; plugin hami_core adds that reference at admission.
    """
    device_list = ",".join(f"{names.CDI_GPU_KIND}={device}" if cdi else device for device in devices.values())
    visible = {names.VISIBLE_DEVICES: device_list}
    # Pods mutated by an older webhook may get the variable from ``envFrom`` alone.
    refers = refers_to_key(share.target.container, names.VISIBLE_DEVICES)
    is_limited = memory_limit and refers_to_key(share.target.container, names.DEVICE_MEMORY_LIMIT)
    capabilities, direct = share.capabilities, direct_env_map(share.capabilities)
    return ShareConfigMaps(
        capabilities,
        {
            capabilities: {
                names.GPU_PORTION: portion,
                names.NUM_OF_GPUS: portion,
                **(visible if refers else {}),
                **({names.DEVICE_MEMORY_LIMIT: memory_limit} if is_limited else {}),
            },
            direct: {} if refers else visible,
        },
        tuple(devices),
        device_list,
        tuple(compute_modes.get(group, names.TIME_SLICING) for group in devices) if compute_modes else (),
    )


def configmap_object(name: str, maps: ShareConfigMaps, pod: Object, request_uid: ObjectUID) -> dict[str, Any]:
    """Return one of the ConfigMaps: owned by the pod, deleted with it, immutable, prepared for the request.

    A container's devices are fixed before it starts: users who may edit ConfigMaps must not change them. By the label
    the chart's admission policy recognises ConfigMaps that only the reconciler may write or delete.
    """
    metadata = pod["metadata"]
    owner = pod_owner(metadata["name"], metadata["uid"])
    annotations = {names.PREPARED_FOR: str(request_uid)}
    if name == maps.capabilities:
        annotations[names.ANNOTATION_GPU_GROUPS] = ",".join(maps.groups)
    if name == maps.capabilities and maps.compute_modes:
        annotations[names.ANNOTATION_COMPUTE_MODES] = ",".join(maps.compute_modes)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name,
            "namespace": metadata["namespace"],
            "labels": {names.LABEL_GPU_SHARING: "true"},
            "ownerReferences": [owner],
            "annotations": annotations,
        },
        "data": dict(maps.data[name]),
        "immutable": True,
    }


def is_prepared_by(configmap: Object, pod: Object, request_uid: ObjectUID) -> bool:
    """Return whether a share's ConfigMap is the pod's, and prepared for this request and no other.

    One without a record, which another binder has written, is taken for this request's while the pod is not bound.
    """
    prepared_for = (configmap["metadata"].get("annotations") or {}).get(names.PREPARED_FOR)
    is_recorded = prepared_for == request_uid or (prepared_for is None and not pod["spec"].get("nodeName"))
    return is_recorded and uid_of(pod) in owning_pods(configmap)


def owning_pods(configmap: Object) -> dict[ObjectUID, str]:
    """Return the names of the pods that own the ConfigMap, by UID."""
    owners = configmap["metadata"].get("ownerReferences") or ()
    return {ObjectUID(owner["uid"]): owner["name"] for owner in owners if owner.get("kind") == "Pod"}
