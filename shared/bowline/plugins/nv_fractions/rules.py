"""The annotations by which NVIDIA's GPU fractioning takes a share from a pod: parsed, validated, computed. Pure.

A key is ``nvidia.com/container.<container><suffix>``. Memory request, memory limit and mode belong to the author of
the pod; the list of devices and the compute portion to the binder. Only one container of a pod has a share.

An amount that is not a whole number of MiB is rounded up where a device is chosen for it, and passed on to the node
as it was written.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from bowline.api import names
from bowline.api.bindrequest import ReceivedGPU
from bowline.api.field_error import FieldError, annotation_path
from bowline.api.gpu_share import share_memory, share_target, usable_memory
from bowline.api.meta import Object
from bowline.plugins.nv_fractions import rule_table
from bowline.plugins.nv_fractions.amounts import mebibytes_of, portion_of, quantity_text, whole_mebibytes
from bowline.plugins.nv_fractions.shorthands import SHORTHANDS, limits_of, shorthand_errors

USER_SUFFIXES = (names.NV_MEMORY_REQUEST, names.NV_MEMORY_LIMIT, names.NV_COMPUTE_MODE)
MODES = (names.TIME_SLICING, names.SM_SHARING)
# The node enforces compute in percent, where 0 would mean no limit.
SMALLEST_COMPUTE = Decimal("0.01")


@dataclass(frozen=True, slots=True)
class Fractions:
    """The annotations of a pod. ``by_suffix``: of each of the author's suffixes the keys by container.

    ``owned``: the binder's keys. ``unknown``: keys of the prefix with another suffix. ``portion_limits``:
    KAI-Scheduler's keys of a limit as a part of the device, by container.
    """

    by_suffix: Mapping[str, Mapping[str, str]]
    owned: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    portion_limits: Mapping[str, str] = field(default_factory=dict)

    @property
    def containers(self) -> tuple[str, ...]:
        """The containers that the author's annotations name, in the order of the keys."""
        keys_by_container = (*self.by_suffix.values(), self.portion_limits)
        return tuple(dict.fromkeys(container for keys in keys_by_container for container in keys))


def key(container: str, suffix: str) -> str:
    """Return the annotation's key."""
    return f"{names.NV_CONTAINER}{container}{suffix}"


def is_owned(annotation: str) -> bool:
    """Return whether only the binder may write the annotation."""
    return annotation.startswith(names.NV_CONTAINER) and annotation.endswith(names.NV_OWNED)


def is_read(annotation: str) -> bool:
    """Return whether the node or the binder reads the annotation, or the webhook translates it."""
    return annotation in SHORTHANDS or _names_container(annotation)


def _names_container(annotation: str) -> bool:
    is_limit = annotation.startswith(names.KAI_CONTAINER) and annotation.endswith(names.KAI_MEMORY_PORTION_LIMIT)
    return annotation.startswith(names.NV_CONTAINER) or is_limit


def fractions_of(annotations: Mapping[str, str]) -> Fractions:
    """Return the annotations of GPU fractioning among all of a pod."""
    by_suffix: dict[str, dict[str, str]] = {suffix: {} for suffix in USER_SUFFIXES}
    owned, unknown, portion_limits = [], [], {}
    for annotation in sorted(filter(_names_container, annotations)):
        if annotation.startswith(names.KAI_CONTAINER):
            portion_limits[_between(annotation, names.KAI_CONTAINER, names.KAI_MEMORY_PORTION_LIMIT)] = annotation
        elif annotation.endswith(names.NV_OWNED):
            owned.append(annotation)
        else:
            suffix = next((suffix for suffix in USER_SUFFIXES if annotation.endswith(suffix)), None)
            if suffix is None:
                unknown.append(annotation)
            else:
                by_suffix[suffix][_between(annotation, names.NV_CONTAINER, suffix)] = annotation
    return Fractions(by_suffix, tuple(owned), tuple(unknown), portion_limits)


def _between(text: str, prefix: str, suffix: str) -> str:
    return text[len(prefix) : -len(suffix)]


# --- at admission ---


def added_annotations(pod: Object) -> dict[str, str]:
    """Return the annotations that make all forms of an amount of memory agree; none where the pod is invalid.

    ``gpu-memory`` gives the container its request, a short form of a limit its limit. A request or limit of one
    container gives the pod ``gpu-memory`` and the name of its container, so that every plugin sees a share.
    """
    annotations = pod["metadata"].get("annotations") or {}
    sized = _sized_containers(annotations)
    container = _share_container(pod, sized)
    if len(sized) > 1 or container not in _container_names(pod):
        return {}
    added = limits_of(annotations, container)
    if names.GPU_FRACTION not in annotations:
        added |= _amounts({**annotations, **added}, container)
    return {name: value for name, value in added.items() if name not in annotations}


def _amounts(annotations: Mapping[str, str], container: str) -> dict[str, str]:
    request_key, limit_key = (key(container, suffix) for suffix in (names.NV_MEMORY_REQUEST, names.NV_MEMORY_LIMIT))
    if request_key in annotations or names.GPU_MEMORY not in annotations:
        request = annotations.get(request_key, annotations.get(limit_key, ""))
        mebibytes = mebibytes_of(request)
    else:
        mebibytes = whole_mebibytes(annotations[names.GPU_MEMORY])
        request = quantity_text(mebibytes)
    if not mebibytes:
        return {}
    return {request_key: request, names.GPU_MEMORY: str(mebibytes), names.GPU_FRACTION_CONTAINER: container}


def _sized_containers(annotations: Mapping[str, str]) -> Sequence[str]:
    """Return the containers with a request or limit in NVIDIA's form."""
    by_suffix = fractions_of(annotations).by_suffix
    return list(dict.fromkeys((*by_suffix[names.NV_MEMORY_REQUEST], *by_suffix[names.NV_MEMORY_LIMIT])))


def _share_container(pod: Object, sized: Sequence[str]) -> str:
    """Return the name of the container that has the share; empty if there is none."""
    target = share_target(pod)
    return sized[0] if sized else str(target.container.get("name") or "") if target is not None else ""


def _container_names(pod: Object) -> set[str]:
    spec = pod.get("spec") or {}
    fields = ("initContainers", "containers")
    return {str(c["name"]) for field in fields for c in spec.get(field) or () if c.get("name")}


def guard_errors(annotations: Mapping[str, str], before: Mapping[str, str]) -> Iterator[FieldError]:
    """Yield an error for each annotation of the binder that is added, changed or removed."""
    for annotation in sorted(filter(is_owned, {*annotations, *before})):
        if annotations.get(annotation) != before.get(annotation):
            message = (
                "only the reconciler sets, changes or removes it, with the Binding: it gives a container GPUs or "
                "limits their use; leave it out of a new pod, and as it is on an existing one"
            )
            yield FieldError(rule_table.OWNED, annotation_path(annotation), annotations.get(annotation), message)


def change_errors(annotations: Mapping[str, str], before: Mapping[str, str]) -> Iterator[FieldError]:
    """Yield an error for each other annotation of GPU fractioning that changes on an existing pod."""
    for annotation in sorted(filter(is_read, {*annotations, *before})):
        if not is_owned(annotation) and annotations.get(annotation) != before.get(annotation):
            message = "cannot change: the size of a share is fixed when the pod is created; create the pod again"
            yield FieldError(rule_table.IMMUTABLE, annotation_path(annotation), annotations.get(annotation), message)


def pod_errors(pod: Object) -> Iterator[FieldError]:
    """Yield the errors and warnings of a new pod."""
    annotations = pod["metadata"].get("annotations") or {}
    fractions = fractions_of(annotations)
    for annotation in fractions.unknown:
        suffixes = ", ".join(USER_SUFFIXES)
        message = f"is not read by Bowline, which knows the suffixes {suffixes}; correct it if you meant one of them"
        yield FieldError(rule_table.SUFFIX, annotation_path(annotation), annotations[annotation], message)
    yield from _container_errors(pod, annotations, fractions)
    for suffix in (names.NV_MEMORY_REQUEST, names.NV_MEMORY_LIMIT):
        for annotation in fractions.by_suffix[suffix].values():
            if not mebibytes_of(annotations[annotation]):
                message = 'must be a quantity above 0; for 4 GiB write "4Gi"'
                yield FieldError(
                    rule_table.MEMORY_FORMAT, annotation_path(annotation), annotations[annotation], message
                )
    for annotation in fractions.by_suffix[names.NV_COMPUTE_MODE].values():
        if annotations[annotation] not in MODES:
            message = f"must be {' or '.join(MODES)}; remove it for {names.TIME_SLICING}"
            yield FieldError(rule_table.MODE, annotation_path(annotation), annotations[annotation], message)
    yield from _combination_errors(annotations, fractions)
    yield from shorthand_errors(annotations, _share_container(pod, _sized_containers(annotations)))
    yield from _portion_limit_errors(annotations, fractions)


def _container_errors(pod: Object, annotations: Mapping[str, str], fractions: Fractions) -> Iterator[FieldError]:
    existing = _container_names(pod)
    keys_by_container = [*fractions.by_suffix.values(), fractions.portion_limits]
    for container in fractions.containers:
        annotation = next(keys[container] for keys in keys_by_container if container in keys)
        path, value = annotation_path(annotation), annotations[annotation]
        if container not in existing:
            message = "must name a container or init container of the pod between prefix and suffix; correct the name"
            yield FieldError(rule_table.CONTAINER, path, value, message)
        elif container != fractions.containers[0]:
            message = f"only one container can have a share, here {fractions.containers[0]}; remove the others"
            yield FieldError(rule_table.CONTAINERS, path, value, message)
        elif annotations.get(names.GPU_FRACTION_CONTAINER, container) != container:
            message = (
                f"must be the container of {names.GPU_FRACTION_CONTAINER}, "
                f"{annotations[names.GPU_FRACTION_CONTAINER]}; name one container"
            )
            yield FieldError(rule_table.CONTAINER_NAME, path, value, message)


def _combination_errors(annotations: Mapping[str, str], fractions: Fractions) -> Iterator[FieldError]:
    requests, limits = fractions.by_suffix[names.NV_MEMORY_REQUEST], fractions.by_suffix[names.NV_MEMORY_LIMIT]
    for annotation in (*requests.values(), *limits.values()):
        if names.GPU_FRACTION in annotations:
            message = f"cannot be combined with {names.GPU_FRACTION}: both give the size of the share; remove one"
            yield FieldError(
                rule_table.MEMORY_AND_FRACTION, annotation_path(annotation), annotations[annotation], message
            )
    for container, annotation in requests.items():
        request = mebibytes_of(annotations[annotation])
        limit = mebibytes_of(annotations[limits[container]]) if container in limits else 0
        if limit and request > limit:
            message = f"must not exceed the limit, {annotations[limits[container]]}; lower the request"
            yield FieldError(rule_table.MEMORY_RANGE, annotation_path(annotation), annotations[annotation], message)
        amount = annotations.get(names.GPU_MEMORY, "")
        if request and amount.isdigit() and amount != str(request):
            message = f"must equal {names.GPU_MEMORY}, {amount} MiB; remove one of them"
            yield FieldError(
                rule_table.MEMORY_MISMATCH, annotation_path(annotation), annotations[annotation], message
            )


def _portion_limit_errors(annotations: Mapping[str, str], fractions: Fractions) -> Iterator[FieldError]:
    fraction = portion_of(annotations.get(names.GPU_FRACTION, ""))
    for annotation in fractions.portion_limits.values():
        limit = portion_of(annotations[annotation])
        if names.GPU_FRACTION not in annotations:
            message = f"needs {names.GPU_FRACTION}; without it set {key('CONTAINER', names.NV_MEMORY_LIMIT)}"
        elif limit is None or limit >= 1 or (fraction is not None and limit <= fraction):
            message = f"must be a decimal number above {names.GPU_FRACTION} and below 1; correct it"
        else:
            continue
        yield FieldError(rule_table.PORTION_LIMIT, annotation_path(annotation), annotations[annotation], message)


# --- at binding ---


def binding_annotations(
    pod: Object, node: Object, received: ReceivedGPU, devices: str, reserved: int
) -> tuple[dict[str, str], str]:
    """Return the annotations of a bound share, or the reason why they are unknown.

    ``devices``: the value of NVIDIA_VISIBLE_DEVICES. ``reserved``: MiB of each device that are not shared. A memory
    request or limit of the pod is kept.
    """
    annotations, container = pod["metadata"].get("annotations") or {}, _share_container(pod, ())
    if not container:
        return {}, f"metadata.annotations[{names.GPU_FRACTION_CONTAINER}] must name a container of the pod"
    request, error = share_memory(pod, node, received.share, reserved)
    # Of a pod that was admitted before the plugin was enabled, short forms are not translated yet.
    limits = limits_of(annotations, container)
    annotations = {**limits, **annotations}
    result = {
        **{name: value for name, value in limits.items() if name not in pod["metadata"]["annotations"]},
        key(container, names.NV_DEVICES): devices,
        key(container, names.NV_COMPUTE_PORTION): compute_portion(received),
    }
    request_key, limit_key = (key(container, suffix) for suffix in (names.NV_MEMORY_REQUEST, names.NV_MEMORY_LIMIT))
    if request_key not in annotations:
        if error:
            return {}, error
        result[request_key] = quantity_text(request)
    portion_key = fractions_of(annotations).portion_limits.get(container)
    if portion_key is not None and limit_key not in annotations:
        limit, error = _portion_limit(annotations[portion_key], node, reserved)
        if error:
            return {}, f"metadata.annotations[{portion_key}]: {error}"
        result[limit_key] = quantity_text(limit)
    return result, ""


def compute_portion(received: ReceivedGPU) -> str:
    """Return the share of a device's compute: the request's own, else that of its memory."""
    portion = portion_of(received.compute_portion) or portion_of(received.portion) or SMALLEST_COMPUTE
    return format(min(max(portion, SMALLEST_COMPUTE), Decimal(1)).normalize(), "f")


def _portion_limit(text: str, node: Object, reserved: int) -> tuple[int, str]:
    """Return the part of a device's memory in MiB, rounded down; 0 and the reason if it is unknown."""
    usable, error = usable_memory(node, reserved)
    portion = portion_of(text)
    if error or portion is None:
        return 0, error or f'"{text}" must be a number above 0'
    limit = int(usable * portion)
    return limit, "" if limit else f"{portion} of {usable} MiB is nothing"


def foreign_annotations(pod: Object) -> list[str]:
    """Return the binder's annotations on a pod that is not bound: others have written them."""
    return sorted(filter(is_owned, pod["metadata"].get("annotations") or {}))
