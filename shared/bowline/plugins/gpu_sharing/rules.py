"""What the binding of a share writes, derived from the request and the pod. Pure.

Three results follow from a decision: the pod's labels, the content of its two ConfigMaps, and whether the request is
valid. Which reservation holds which device is decided in ``reservation``.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from bowline.api import names
from bowline.api.bindrequest import BindRequestSpec
from bowline.api.gpu_share import (
    ShareTarget,
    capabilities_map,
    configmap_prefix,
    direct_env_map,
    gpu_groups,
    refers_to_key,
    share_target,
)
from bowline.api.meta import Object, ObjectUID, is_deleting, pod_owner, uid_of

# The label selector of sharing pods.
SHARING = f"{names.LABEL_GPU_SHARING}=true"
# Of a portion with two decimals.
_ROUNDING = Decimal("0.005")
# Less is nothing: schedulers count hundredths.
_LEAST = Decimal("1e-9")
# A group is a label's value and, on a pod of several devices, also the name part of a label's key.
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class ShareConfigMaps:
    """The two ConfigMaps of a share, complete. ``capabilities``: the name of the first."""

    capabilities: str
    data: Mapping[str, Mapping[str, str]]  # of both, by ConfigMap name
    groups: tuple[str, ...]  # the devices' groups, in the order of the devices
    visible: str  # the value of NVIDIA_VISIBLE_DEVICES
    compute_modes: tuple[str, ...] = ()  # of the groups, in the same order; empty: all are time-slicing


@dataclass(frozen=True, slots=True)
class Share:
    """A pod's share, from the pod itself."""

    prefix: str
    target: ShareTarget

    @property
    def capabilities(self) -> str:
        """The ConfigMap that the container's environment refers to."""
        return capabilities_map(self.prefix, self.target)


def share_of(pod: Object) -> Share | None:
    """Return the pod's share; None if it was not mutated for one."""
    prefix, target = configmap_prefix(pod), share_target(pod)
    return Share(prefix, target) if prefix and target is not None else None


def takes_whole_gpus(spec: BindRequestSpec, pod: Object | None) -> bool:
    """Return whether the pod gets whole devices, by its request or by its own limits."""
    if spec.received_gpu is not None and spec.received_gpu.count:
        return True
    pod_spec = (pod or {}).get("spec") or {}
    containers = [*(pod_spec.get("containers") or ()), *(pod_spec.get("initContainers") or ())]
    return any(names.RESOURCE_GPU in ((c.get("resources") or {}).get("limits") or {}) for c in containers)


def request_error(spec: BindRequestSpec) -> str | None:
    """Return why the request is invalid, for a message; None if it is valid."""
    field = "spec.selectedFractionalGpuGroups" if spec.selected_fractional_gpu_groups else "spec.selectedGPUGroups"
    groups = list(spec.gpu_groups)
    if not groups:
        return f"{field}: [] must name one group for each shared device; have the scheduler fill it"
    if len(set(groups)) != len(groups):
        return f"{field}: {groups} must not name a group twice; each device has a group of its own"
    if spec.received_gpu is None:
        return "spec.receivedGPU: null must be the portion of each device; have the scheduler set it"
    if spec.received_gpu.count != len(groups):
        return (
            f"spec.receivedGPU.count: {spec.received_gpu.count} must be the number of {field}, "
            f"{len(groups)}; have the scheduler name one group for each device"
        )
    wrong = [group for group in groups if not _LABEL_VALUE.fullmatch(group)]
    if wrong:
        return (
            f"{field}: {wrong[0]!r} must be the value of a label, at most 63 letters, digits, '-', "
            "'_' and '.' with a letter or digit at either end; have the scheduler choose another"
        )
    return None


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
        **({"data": dict(maps.data[name])} if maps.data[name] else {}),
        "immutable": True,
    }


def is_guarded(configmap: Object) -> bool:
    """Return whether only the reconciler can change or replace it; false for those that KAI-Scheduler has written."""
    labels = configmap["metadata"].get("labels") or {}
    return labels.get(names.LABEL_GPU_SHARING) == "true" and configmap.get("immutable") is True


def is_prepared_by(configmap: Object, pod: Object, request_uid: ObjectUID) -> bool:
    """Return whether a share's ConfigMap is the pod's, or nobody's, and prepared for this request and no other.

    One without a record, of an earlier version, is taken for this request's while the pod is not bound: then another
    binder owns it.
    """
    prepared_for = (configmap["metadata"].get("annotations") or {}).get(names.PREPARED_FOR)
    is_recorded = prepared_for == request_uid or (prepared_for is None and not pod["spec"].get("nodeName"))
    return is_recorded and (uid_of(pod) in owning_pods(configmap) or is_left_behind(configmap))


def is_left_behind(configmap: Object) -> bool:
    """Return whether a share's ConfigMap has lost its owner, as by `kubectl delete pod --cascade=orphan`."""
    metadata = configmap["metadata"]
    return is_guarded(configmap) and not metadata.get("ownerReferences") and not is_deleting(configmap)


def renewed_data(existing: Mapping[str, str], expected: Mapping[str, str], visible: str) -> Mapping[str, str]:
    """Return the new data of an existing ConfigMap of the pod: keys of other plugins are kept, other devices are not.

    The devices are repeated under the key of old releases if the ConfigMap has that key.
    """
    legacy = {names.LEGACY_VISIBLE_DEVICES: visible} if names.LEGACY_VISIBLE_DEVICES in existing else {}
    of_others = {key: value for key, value in existing.items() if key != names.VISIBLE_DEVICES}
    return {**of_others, **expected, **legacy}


def owning_pods(configmap: Object) -> dict[ObjectUID, str]:
    """Return the names of the pods that own the ConfigMap, by UID."""
    owners = configmap["metadata"].get("ownerReferences") or ()
    return {ObjectUID(owner["uid"]): owner["name"] for owner in owners if owner.get("kind") == "Pod"}


def label_changes(labels: Mapping[str, str], groups: Sequence[str]) -> dict[str, str | None]:
    """Return the merge patch of labels that makes the pod a user of these groups.

    Groups of an earlier decision are removed: a pod counts as user of every group in its labels. The pod's own group
    labels are always written, even if the cached pod has them: a rollback may have removed them since, and the device
    of an unlabelled running pod would be released.
    """
    changes: dict[str, str | None] = {**_group_labels(groups)}
    return {key: None for key in labels if _is_group_label(key) and key not in changes} | changes


def least_portion(pod: Object, portion: Decimal) -> Decimal:
    """Return the least part of a device that a decided portion stands for: schedulers round it to two decimals.

    The pod's own fraction if it rounds to the portion; of an amount of memory the least that does.
    """
    text = (pod["metadata"].get("annotations") or {}).get(names.GPU_FRACTION)
    if text is None:
        return max(portion - _ROUNDING, Decimal(0))
    fraction = portion_of(text)
    return fraction if abs(fraction - portion) <= _ROUNDING else portion


def used_portion(pod: Object) -> Decimal:
    """Return the part of each of its devices that a labelled pod uses; that of another binder by its fraction."""
    annotations = pod["metadata"].get("annotations") or {}
    return portion_of(annotations.get(names.ANNOTATION_GPU_PORTION) or annotations.get(names.GPU_FRACTION) or "")


def portion_of(text: str) -> Decimal:
    """Return the number above 0, at most 1; 0 for any other text. Anyone may write it: its digits are limited."""
    try:
        number = Decimal(text)
    except InvalidOperation:
        return Decimal(0)
    # The sign rounds to 28 digits.
    return +min(number, Decimal(1)) if number.is_finite() and number >= _LEAST else Decimal(0)


def is_labelled(pod: Object, groups: Sequence[str], request_uid: ObjectUID) -> bool:
    """Return whether the pod is labelled for this request as a user of exactly these groups."""
    labels = pod["metadata"].get("labels") or {}
    has_labels = all(labels.get(key) == value for key, value in label_changes(labels, groups).items())
    return has_labels and (pod["metadata"].get("annotations") or {}).get(names.LABELLED_FOR) == request_uid


def is_labelled_by_other(pod: Object, request_uid: ObjectUID) -> bool:
    """Return whether another request has labelled the pod, or, as far as an earlier version shows, has bound it."""
    annotations = pod["metadata"].get("annotations") or {}
    prepared_for = annotations.get(names.PREPARED_FOR) if pod["spec"].get("nodeName") else None
    return annotations.get(names.LABELLED_FOR, prepared_for) not in (None, request_uid)


def label_removals(labels: Mapping[str, str], groups: Sequence[str]) -> dict[str, None]:
    """Return the merge patch that removes the labels of these groups; another request's groups are kept."""
    removals = [key for key in labels if _is_group_label(key) and gpu_groups({key: labels[key]}) <= set(groups)]
    remainder = [key for key in labels if _is_group_label(key) and key not in removals]
    if names.LABEL_GPU_SHARING in labels and not remainder:
        removals.append(names.LABEL_GPU_SHARING)
    return dict.fromkeys(removals)


def needs_relabeling(labels: Mapping[str, str]) -> bool:
    """Return whether the labels of a sharing pod hide a group from a watch or a scheduler.

    Pods bound by KAI-Scheduler's binder lack the label that the plugin's watch selects, or the
    plain group label.
    """
    return names.LABEL_GPU_SHARING not in labels or names.LABEL_GPU_GROUP not in labels


def _group_labels(groups: Sequence[str]) -> dict[str, str]:
    """Return the labels of a user of the groups: the first in the plain label, each other one in a prefixed label.

    KAI-Scheduler (``GetGpuGroups``, v0.12 to v0.17) reads the prefixed labels only beside the plain one, and counts a
    group in both forms twice. Its binder finds the pods of a group by either form.
    """
    first, *other_groups = groups
    prefixed_labels = {f"{names.LABEL_GPU_GROUP}/{group}": group for group in other_groups}
    return {names.LABEL_GPU_GROUP: first, **prefixed_labels, names.LABEL_GPU_SHARING: "true"}


def _is_group_label(key: str) -> bool:
    return key == names.LABEL_GPU_GROUP or key.startswith(f"{names.LABEL_GPU_GROUP}/")
