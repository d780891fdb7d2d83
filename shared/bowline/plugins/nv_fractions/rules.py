"""The annotations by which NVIDIA's GPU fractioning takes a share from a pod: parsed, validated, computed. Pure.

A key is ``nvidia.com/container.<container><suffix>``. Memory request and limit and the mode belong to the author of
the pod, the list of devices to the binder. They name the one container that has the share.

An amount that is not a whole number of MiB is rounded up where a device is chosen for it, and passed on to the node
as it was written.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from bowline.api import names
from bowline.api.bindrequest import ReceivedGPU
from bowline.api.field_error import FieldError, annotation_path
from bowline.api.gpu_share import share_memory, share_target, usable_memory
from bowline.api.meta import Object
from bowline.plugins.nv_fractions import rule_table
from bowline.plugins.nv_fractions.amounts import mebibytes_of, portion_of, quantity_text, whole_mebibytes
from bowline.plugins.nv_fractions.shorthands import SHORTHANDS, limits_of, shorthand_errors

# Of the name in a key of an annotation, after the prefix.
_MAX_NAME: Final = 63
MODES = (names.TIME_SLICING, names.SM_SHARING)


@dataclass(frozen=True, slots=True)
class Fractions:
    """The annotations of a pod. ``by_suffix``: of each of the author's suffixes the keys by container.

    ``portion_limits``: KAI-Scheduler's keys of a limit as a part of the device, by container.
    """

    by_suffix: Mapping[str, Mapping[str, str]]
    portion_limits: Mapping[str, str] = field(default_factory=dict)

    @property
    def containers(self) -> tuple[str, ...]:
        """The containers that the author's annotations name, in the order of the keys."""
        keys_by_container = (*self.by_suffix.values(), self.portion_limits)
        return tuple(dict.fromkeys(container for keys in keys_by_container for container in keys))

    @property
    def has_amount(self) -> bool:
        """Whether a container has a request or limit of memory."""
        return bool(self.by_suffix[names.NV_MEMORY_REQUEST] or self.by_suffix[names.NV_MEMORY_LIMIT])


def key(container: str, suffix: str) -> str:
    """Return the annotation's key."""
    return f"{names.NV_CONTAINER}{container}{suffix}"


def is_owned(annotation: str) -> bool:
    """Return whether only the binder may write the annotation."""
    return annotation.startswith(names.NV_CONTAINER) and annotation.endswith(names.NV_DEVICES)


def is_read(annotation: str) -> bool:
    """Return whether the node or the binder reads the annotation, or the webhook translates it."""
    return annotation in SHORTHANDS or _names_container(annotation)


def _names_container(annotation: str) -> bool:
    is_limit = annotation.startswith(names.KAI_CONTAINER) and annotation.endswith(names.KAI_MEMORY_PORTION_LIMIT)
    return annotation.startswith(names.NV_CONTAINER) or is_limit


def fractions_of(annotations: Mapping[str, str]) -> Fractions:
    """Return the annotations of GPU fractioning among all of a pod."""
    by_suffix: dict[str, dict[str, str]] = {suffix: {} for suffix in names.NV_AUTHOR}
    portion_limits = {}
    for annotation in sorted(filter(_names_container, annotations)):
        if annotation.startswith(names.KAI_CONTAINER):
            portion_limits[_between(annotation, names.KAI_CONTAINER, names.KAI_MEMORY_PORTION_LIMIT)] = annotation
        else:
            for suffix in filter(annotation.endswith, names.NV_AUTHOR):
                by_suffix[suffix][_between(annotation, names.NV_CONTAINER, suffix)] = annotation
    return Fractions(by_suffix, portion_limits)


def _between(text: str, prefix: str, suffix: str) -> str:
    return text[len(prefix) : -len(suffix)]


# --- at admission ---


def added_annotations(pod: Object, *, translates_all: bool = True) -> dict[str, str]:
    """Return the annotations that make all forms of an amount of memory agree; none where the pod is invalid.

    A request or limit of a container gives the pod ``gpu-memory`` and the name of the container, so that every plugin
    sees a share. A mode or a limit of a part names the container, too. If ``translates_all``, the reverse is added,
    too: ``gpu-memory`` gives the container its request, a short form of a limit its limit.
    """
    annotations = pod["metadata"].get("annotations") or {}
    fractions, container = fractions_of(annotations), _share_container(pod)
    if not set(fractions.containers) <= {container}:
        return {}
    additions = limits_of(annotations, container) if translates_all else {}
    if names.GPU_FRACTION in annotations:
        is_named = bool(fractions.containers) and not fractions.has_amount
        return _absent({**additions, **({names.GPU_FRACTION_CONTAINER: container} if is_named else {})}, annotations)
    is_amount = fractions.has_amount or (translates_all and names.GPU_MEMORY in annotations)
    request = _request_of({**annotations, **additions}, container) if is_amount and container else ""
    mebibytes = mebibytes_of(request)
    if mebibytes:
        additions |= {key(container, names.NV_MEMORY_REQUEST): request, names.GPU_MEMORY: str(mebibytes)}
        additions[names.GPU_FRACTION_CONTAINER] = container
    return _absent(additions, annotations)


def _absent(additions: Mapping[str, str], annotations: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in additions.items() if name not in annotations}


def _request_of(annotations: Mapping[str, str], container: str) -> str:
    """Return the request of the share's container: its own, else the pod's amount, else its limit."""
    request = annotations.get(key(container, names.NV_MEMORY_REQUEST))
    if request is None and names.GPU_MEMORY in annotations:
        mebibytes = whole_mebibytes(annotations[names.GPU_MEMORY])
        return quantity_text(mebibytes) if mebibytes else ""
    return annotations.get(key(container, names.NV_MEMORY_LIMIT), "") if request is None else request


def _share_container(pod: Object) -> str:
    """Return the name of the container that has the share; empty if there is none.

    The named one, else the first that annotations of GPU fractioning name, else that of every share.
    """
    annotations, target = pod["metadata"].get("annotations") or {}, share_target(pod)
    containers = () if names.GPU_FRACTION_CONTAINER in annotations else fractions_of(annotations).containers
    if containers:
        return next((name for name in _container_names(pod) if name in containers), "")
    return str(target.container.get("name") or "") if target is not None else ""


def _container_names(pod: Object) -> list[str]:
    spec = pod.get("spec") or {}
    return [
        str(c["name"]) for field in ("containers", "initContainers") for c in spec.get(field) or () if c.get("name")
    ]


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
    yield from _combination_errors(pod, annotations, fractions)
    yield from shorthand_errors(annotations, _share_container(pod))
    yield from _portion_limit_errors(annotations, fractions)


def _container_errors(pod: Object, annotations: Mapping[str, str], fractions: Fractions) -> Iterator[FieldError]:
    existing, first_container = _container_names(pod), annotations.get(names.GPU_FRACTION_CONTAINER)
    keys_by_container = [*fractions.by_suffix.values(), fractions.portion_limits]
    first = next(iter(fractions.containers), "")
    for container in fractions.containers:
        annotation = next(keys[container] for keys in keys_by_container if container in keys)
        path, value = annotation_path(annotation), annotations[annotation]
        if container not in existing:
            message = "must name a container or init container of the pod between prefix and suffix; correct the name"
            yield FieldError(rule_table.CONTAINER, path, value, message)
        elif container != first:
            message = f"names a second container beside {first}, and only one can have the share; remove it"
            yield FieldError(rule_table.CONTAINERS, path, value, message)
        elif first_container is not None and first_container != container:
            message = (
                f"must be the container of {names.GPU_FRACTION_CONTAINER}, {first_container}; name one container"
            )
            yield FieldError(rule_table.CONTAINER_NAME, path, value, message)


def _combination_errors(pod: Object, annotations: Mapping[str, str], fractions: Fractions) -> Iterator[FieldError]:
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
    amount, of_container = annotations.get(names.GPU_MEMORY, ""), _request_of(annotations, _share_container(pod))
    mebibytes = mebibytes_of(of_container)
    if fractions.has_amount and mebibytes and amount.isdigit() and amount != str(mebibytes):
        annotation = next(iter((*requests.values(), *limits.values())))
        message = f"must equal {names.GPU_MEMORY}, {amount} MiB; remove one of them"
        yield FieldError(rule_table.MEMORY_MISMATCH, annotation_path(annotation), annotations[annotation], message)


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
    pod: Object, node: Object, received_gpu: ReceivedGPU, devices: str, reserved_mib: int
) -> tuple[dict[str, str], str]:
    """Return the annotations of a bound share, or the reason why they are unknown.

    ``devices``: the value of NVIDIA_VISIBLE_DEVICES. ``reserved_mib``: MiB of each device that are not shared. A
    memory request or limit of the pod is kept.
    """
    pod_annotations = pod["metadata"].get("annotations") or {}
    container = _share_container(pod)
    if not container:
        return {}, f"metadata.annotations[{names.GPU_FRACTION_CONTAINER}] must name a container of the pod"
    # Of a pod that was admitted before the plugin was enabled, short forms are not translated yet.
    result = _absent(limits_of(pod_annotations, container), pod_annotations)
    annotations = {**pod_annotations, **result}
    amount = _request_of(pod_annotations, container)
    if not amount:
        request, error = share_memory(pod, node, received_gpu.share, reserved_mib)
        if error:
            return {}, error
        amount = quantity_text(request)
    result |= {key(container, names.NV_MEMORY_REQUEST): amount, key(container, names.NV_DEVICES): devices}
    limit_key = key(container, names.NV_MEMORY_LIMIT)
    portion_key = fractions_of(annotations).portion_limits.get(container)
    if portion_key is not None and limit_key not in annotations:
        limit, error = _portion_limit(annotations[portion_key], node, reserved_mib)
        if error:
            return {}, f"metadata.annotations[{portion_key}]: {error}"
        result[limit_key] = quantity_text(limit)
    return {name: value for name, value in result.items() if is_owned(name) or name not in pod_annotations}, ""


def long_key_reason(annotations: Iterable[str]) -> str:
    """Return why a Binding cannot have the annotations: the longest key has too long a name; empty if it can."""
    longest = max(annotations, key=len, default="")
    excess = len(longest.partition("/")[2]) - _MAX_NAME
    if excess <= 0:
        return ""
    return (
        f"metadata.annotations[{longest}]: the name of the key, which gives the container its share, must have at "
        f"most {_MAX_NAME} characters; shorten the container's name by {excess} and create the pod again"
    )


def _portion_limit(text: str, node: Object, reserved_mib: int) -> tuple[int, str]:
    """Return the part of a device's memory in MiB, rounded down; 0 and the reason if it is unknown."""
    usable, error = usable_memory(node, reserved_mib)
    portion = portion_of(text)
    if error or portion is None:
        return 0, error or f'"{text}" must be a number above 0'
    limit = int(usable * portion)
    return limit, "" if limit else f"{portion} of {usable} MiB is nothing"


def foreign_devices(pod: Object) -> list[str]:
    """Return the lists of devices on a pod that is not bound: others have written them."""
    return sorted(filter(is_owned, pod["metadata"].get("annotations") or ()))


def unserved_reason(pod: Object, node: str) -> str:
    """Return why a sharing pod cannot run on a node without working agents; empty if it can."""
    agent_keys = sorted(key for key in pod["metadata"].get("annotations") or () if is_read(key) and not is_owned(key))
    if not agent_keys:
        return ""
    condition = f"node {node} does not report the condition {names.NODE_FRACTIONING_READY}"
    return f"{condition}, and only the agents of GPU fractioning read metadata.annotations[{agent_keys[0]}]"
