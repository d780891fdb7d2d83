"""Who uses which part of which shared device: the labels and the portion of a sharing pod. Pure."""

from collections.abc import Mapping, Sequence
from decimal import ROUND_DOWN, Decimal, InvalidOperation

from bowline.api import names
from bowline.api.gpu_share import gpu_groups
from bowline.api.meta import Object, ObjectUID

# The label selector of sharing pods.
SHARING = f"{names.LABEL_GPU_SHARING}=true"
# Of a portion with two decimals.
_ROUNDING = Decimal("0.005")
# As precise as KAI-Scheduler: three pods with 0.3333334 have room on one device.
_STEP = Decimal("0.00001")


def label_changes(labels: Mapping[str, str], groups: Sequence[str]) -> dict[str, str | None]:
    """Return the merge patch of labels that makes the pod a user of these groups.

    Groups of an earlier decision are removed: a pod counts as user of every group in its labels. The pod's own group
    labels are always written, even if the cached pod has them: a rollback may have removed them since, and the device
    of an unlabelled running pod would be released.
    """
    changes: dict[str, str | None] = {**group_labels(groups)}
    return {key: None for key in labels if _is_group_label(key) and key not in changes} | changes


def least_portion(pod: Object, portion: Decimal, device_memory: int = 0) -> Decimal:
    """Return the least part of a device that a decided portion stands for: schedulers round it to two decimals.

    What the pod itself asks for, if it rounds to the portion or exceeds it, as where a scheduler could not read it;
    of an amount at least what rounds to the portion.
    """
    annotations = pod["metadata"].get("annotations") or {}
    own = _requested_portion(annotations, device_memory)
    if names.GPU_FRACTION not in annotations:
        return max(own, _rounded(portion - _ROUNDING))
    return own if portion - own <= _ROUNDING else _rounded(portion)


def used_portion(pod: Object, device_memory: int = 0) -> Decimal:
    """Return the part of each of its devices that a labelled pod uses; that of another binder by its request.

    ``device_memory``: of each device of its node, in MiB; 0 if unknown.
    """
    annotations = pod["metadata"].get("annotations") or {}
    recorded = annotations.get(names.ANNOTATION_GPU_PORTION)
    return portion_of(recorded) if recorded else _requested_portion(annotations, device_memory)


def _requested_portion(annotations: Mapping[str, str], device_memory: int) -> Decimal:
    amount = annotations.get(names.GPU_MEMORY) or ""
    if names.GPU_FRACTION not in annotations and device_memory and amount.isdecimal():
        return _rounded(Decimal(amount) / device_memory)
    return portion_of(annotations.get(names.GPU_FRACTION) or "")


def portion_of(text: str) -> Decimal:
    """Return the number above 0, at most 1; 0 for any other text. Anyone may write it: its digits are limited."""
    try:
        number = Decimal(text)
    except InvalidOperation:
        return Decimal(0)
    return _rounded(number) if number.is_finite() else Decimal(0)


def _rounded(portion: Decimal) -> Decimal:
    return min(max(portion, Decimal(0)), Decimal(1)).quantize(_STEP, ROUND_DOWN).normalize()


def is_labelled(pod: Object, groups: Sequence[str], request_uid: ObjectUID) -> bool:
    """Return whether the pod is labelled for this request as a user of exactly these groups."""
    labels = pod["metadata"].get("labels") or {}
    has_labels = all(labels.get(key) == value for key, value in label_changes(labels, groups).items())
    return has_labels and (pod["metadata"].get("annotations") or {}).get(names.LABELLED_FOR) == request_uid


def label_removals(labels: Mapping[str, str], groups: Sequence[str]) -> dict[str, None]:
    """Return the merge patch that removes the labels of these groups; another request's groups are kept."""
    removals = [key for key in labels if _is_group_label(key) and gpu_groups({key: labels[key]}) <= set(groups)]
    remainder = [key for key in labels if _is_group_label(key) and key not in removals]
    if names.LABEL_GPU_SHARING in labels and not remainder:
        removals.append(names.LABEL_GPU_SHARING)
    return dict.fromkeys(removals)


def missing_labels(labels: Mapping[str, str]) -> dict[str, str | None]:
    """Return the labels that show the groups of a sharing pod to a watch and to schedulers; empty if it has them.

    Pods bound by KAI-Scheduler's binder lack the label that the plugin's watch selects, or the plain group label.
    """
    groups = sorted(gpu_groups(labels))
    is_complete = names.LABEL_GPU_SHARING in labels and names.LABEL_GPU_GROUP in labels
    return label_changes(labels, groups) if groups and not is_complete else {}


def group_labels(groups: Sequence[str]) -> dict[str, str]:
    """Return the labels of a user of the groups: the first in the plain label, each other one in a prefixed label.

    KAI-Scheduler (``GetGpuGroups``, v0.12 to v0.17) reads the prefixed labels only beside the plain one, and counts a
    group in both forms twice. Its binder finds the pods of a group by either form.
    """
    first, *other_groups = groups
    prefixed_labels = {f"{names.LABEL_GPU_GROUP}/{group}": group for group in other_groups}
    return {names.LABEL_GPU_GROUP: first, **prefixed_labels, names.LABEL_GPU_SHARING: "true"}


def _is_group_label(key: str) -> bool:
    return key == names.LABEL_GPU_GROUP or key.startswith(f"{names.LABEL_GPU_GROUP}/")
