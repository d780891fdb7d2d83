"""The rules for a pod's GPU request, as functions from data to field errors. Pure.

``request_errors`` validates a new pod and returns all its errors in a fixed order: single annotations, exclusions,
then the containers' resources. ``update_errors`` validates only what changed: a stored pod must stay updatable
whatever rules were added since, or its finalizers could not be removed.

- Annotations are validated as text, with an explicit grammar: ``int()`` and ``float()`` accept signs, spaces,
  underscores, ``inf`` and digits of other scripts. A fraction is valid if existing schedulers can parse it: as a
  64-bit float and as a Kubernetes quantity.
- Resources are never checked more strictly than by the API server, which denies the same after the webhook; checking
  here reports all errors together, also offline. It copies limits to absent requests, so a request that equals its
  limit is not checked again.

The rules, their texts and bounds are in ``rule_table``.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal

from bowline.api import names
from bowline.api.field_error import FieldError, annotation_path, format_value
from bowline.api.meta import Object
from bowline.api.rule import Rule
from bowline.plugins.gpu_request import rule_table
from bowline.plugins.gpu_request.pod import Amount, Container, PodGpus, is_device, owned_annotations, view_pod
from bowline.plugins.gpu_request.rule_table import EITHER_SHARE, FRACTION_GRAMMAR, MAX_DEVICES, MAX_INT64
from bowline.plugins.gpu_request.spelling import spelling_warnings

_FRACTION = re.compile(FRACTION_GRAMMAR)
_DIGITS = re.compile(r"[0-9]+")
_NOT_MPS = ("", "false", "f", "no", "n", "off", "0")
_LISTED = 5
# A fraction above this many is not meant as whole GPUs, but as a percentage.
_MOST_GPUS = 16


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings that the rules depend on. ``gpu_device_classes``: DRA classes known to be GPUs."""

    sharing: bool = True
    gpu_device_classes: frozenset[str] = frozenset()


def request_errors(raw: Object, policy: Policy, *, is_partial: bool = False) -> list[FieldError]:
    """Return every error and warning of a new pod. ``is_partial``: it may get further containers."""
    pod = view_pod(raw)
    return [
        *(_share_errors(pod, is_partial=is_partial) if pod.annotations else ()),
        *(_exclusion_errors(pod, policy) if pod.share else ()),
        *_device_errors(pod),
        *spelling_warnings(raw),
    ]


def update_errors(raw: Object, old: Object) -> list[FieldError]:
    """Return an error for every changed share annotation: immutable, as the container's environment is."""
    now, before = owned_annotations(raw), owned_annotations(old)
    errors = []
    for key in names.OWNED_ANNOTATIONS:
        if now.get(key) == before.get(key):
            continue
        was = f"it was {format_value(before[key])}" if key in before else "there was none"
        message = f"is fixed when the pod is created ({was}); create a new pod with the value wanted"
        errors.append(FieldError(rule_table.IMMUTABLE, annotation_path(key), now.get(key), message))
    return errors


# --- annotations ---


def _share_errors(pod: PodGpus, *, is_partial: bool) -> Iterator[FieldError]:
    """Yield the errors of the annotations' values and of the annotations they depend on."""
    annotations = pod.annotations
    if names.GPU_FRACTION in annotations:
        yield from _fraction_errors(pod, annotations[names.GPU_FRACTION])
    if names.GPU_MEMORY in annotations:
        yield from _memory_errors(pod, annotations[names.GPU_MEMORY])
    if names.GPU_FRACTION_NUM_DEVICES in annotations:
        yield from _num_devices_errors(pod, annotations[names.GPU_FRACTION_NUM_DEVICES])
    if names.GPU_FRACTION_CONTAINER in annotations:
        yield from _container_name_errors(pod, is_partial=is_partial)
    if names.MPS in annotations:
        yield from _mps_errors(pod, annotations[names.MPS])


def _join_limited(words: list[str]) -> str:
    """Return the first few words and the number of the others: a pod may have hundreds of containers.

    Names in a message must be escaped with ``format_value``: the webhook runs before the API server validates them.
    """
    more = len(words) - _LISTED
    return ", ".join(words[:_LISTED]) + (f" and {more} more" if more > 0 else "")


def _error(pod: PodGpus, rule: Rule, key: str, message: str = "") -> FieldError:
    """Return a field error of an annotation; with the rule's message unless there is another."""
    return FieldError(rule, annotation_path(key), pod.annotations.get(key), message or rule.message)


def _listing(rule: Rule, listing: str) -> str:
    """Return the rule's message with what was found in the pod, which the policy cannot list."""
    return replace(rule, text=f"{rule.text} ({listing})").message


def _fraction_errors(pod: PodGpus, text: str) -> Iterator[FieldError]:
    key = names.GPU_FRACTION
    if not _FRACTION.fullmatch(text):
        yield _error(
            pod, rule_table.FRACTION_FORMAT, key, _with_value(rule_table.FRACTION_FORMAT, _fraction_meant(text))
        )
        return
    fraction = float(text)
    if not 0 < fraction < 1:
        yield _error(pod, rule_table.FRACTION_RANGE, key, _range_text(fraction))
        return
    rounded_text = f"{fraction:.2f}"
    if rounded_text in ("0.00", "1.00"):
        message = f"will be rounded to {rounded_text}; write at least 0.01 and at most 0.99"
        yield _error(pod, rule_table.FRACTION_PRECISION, key, message)


def _range_text(fraction: float) -> str:
    """Return the message about a fraction out of range, with the fraction that a percentage means."""
    rule = rule_table.FRACTION_RANGE
    if fraction == 0:
        return replace(rule, remedy="for no share remove the annotation").message
    return _with_value(rule, f"{fraction / 100:g}" if _MOST_GPUS < fraction < 100 else "")


def _with_value(rule: Rule, value: str) -> str:
    """Return the rule's message with the value that was meant as its remedy, if one was recognised."""
    return replace(rule, remedy=f'write "{value}"').message if value else rule.message


def _fraction_meant(text: str) -> str:
    """Return the fraction that a percentage or a decimal comma means; empty if the text is neither, or it is 0."""
    match = re.fullmatch(r"([0-9]{1,2})\s*%|0,([0-9]{1,4})", text.strip())
    if match is None:
        return ""
    fraction = f"{int(match[1]) / 100:g}" if match[1] else f"0.{match[2]}"
    return fraction if float(fraction) else ""


def _mib_meant(text: str) -> str:
    """Return the MiB that a quantity of memory means; empty if the text is none, or below one MiB."""
    match = re.fullmatch(r"([0-9]{1,9})\s*([MGT])(i?)B?", text.strip())
    if match is None:
        return ""
    size = int(match[1]) * (1024 if match[3] else 1000) ** ("MGT".index(match[2]) + 2)
    return str(size // 1024**2) if size >= 1024**2 else ""


def _memory_errors(pod: PodGpus, text: str) -> Iterator[FieldError]:
    key = names.GPU_MEMORY
    if names.GPU_FRACTION in pod.annotations:
        yield _error(pod, rule_table.MEMORY_AND_FRACTION, key)
    if not _is_whole(text, MAX_INT64):
        yield _error(pod, rule_table.MEMORY_FORMAT, key, _with_value(rule_table.MEMORY_FORMAT, _mib_meant(text)))


def _num_devices_errors(pod: PodGpus, text: str) -> Iterator[FieldError]:
    key = names.GPU_FRACTION_NUM_DEVICES
    if not pod.share:
        yield _error(pod, rule_table.NUM_DEVICES_ALONE, key)
    if not _is_whole(text, MAX_DEVICES):
        yield _error(pod, rule_table.NUM_DEVICES_FORMAT, key)


def _container_name_errors(pod: PodGpus, *, is_partial: bool) -> Iterator[FieldError]:
    key = names.GPU_FRACTION_CONTAINER
    if not pod.share:
        message = f"has no effect without {EITHER_SHARE}"
        yield _error(pod, rule_table.CONTAINER_NAME_UNUSED, key, message)
    elif pod.target is None and not is_partial:
        container_names = _join_limited(
            [format_value(container.name) for container in pod.containers if container.name]
        )
        yield _error(
            pod, rule_table.CONTAINER_NAME, key, _listing(rule_table.CONTAINER_NAME, container_names or "it has none")
        )


def _mps_errors(pod: PodGpus, text: str) -> Iterator[FieldError]:
    key = names.MPS
    if text == "true" and not pod.share:
        yield _error(pod, rule_table.MPS_ALONE, key)
    elif text != "true" and text.strip().lower() not in _NOT_MPS:
        yield _error(pod, rule_table.MPS_SPELLING, key, 'has no effect: only "true" switches MPS on')


def _is_whole(text: str, most: int) -> bool:
    # Decimal, because int() raises ValueError for more than 4300 digits.
    return bool(_DIGITS.fullmatch(text)) and 1 <= Decimal(text) <= most


# --- exclusions ---


def _exclusion_errors(pod: PodGpus, policy: Policy) -> Iterator[FieldError]:
    """Yield what makes a share impossible, as errors of the annotation that requests it."""
    if not policy.sharing:
        yield _error(pod, rule_table.SHARING_DISABLED, pod.share)
    whole_gpus, mig_devices = [], []
    for container in pod.containers:
        for amount in container.effective_requests:
            entry = f"{container.label}: {amount.resource} {amount.text}"
            if amount.resource == names.RESOURCE_GPU:
                # A part of a GPU has an error of its own, whose remedy would contradict this one's.
                whole_gpus += [] if _is_part_of_gpu(amount) else [entry]
            elif amount.resource.startswith(names.RESOURCE_MIG_PREFIX):
                mig_devices.append(entry)
    if whole_gpus:
        yield _error(
            pod,
            rule_table.SHARE_AND_WHOLE,
            pod.share,
            _listing(rule_table.SHARE_AND_WHOLE, _join_limited(whole_gpus)),
        )
    if mig_devices:
        yield _error(
            pod, rule_table.SHARE_AND_MIG, pod.share, _listing(rule_table.SHARE_AND_MIG, _join_limited(mig_devices))
        )
    if pod.spec.get("nodeName"):
        yield _error(pod, rule_table.SHARE_AND_NODE_NAME, pod.share)
    privileged = [container.label for container in pod.containers if container.is_privileged]
    if privileged:
        what = _join_limited(privileged)
        message = f"every GPU of the node, not only the share, can be used by what is privileged: {what}"
        yield _error(pod, rule_table.SHARE_PRIVILEGED, pod.share, message)
    yield from _claim_errors(pod, policy)


def _claim_errors(pod: PodGpus, policy: Policy) -> Iterator[FieldError]:
    """Deny a share beside a DRA claim known to be a GPU; warn beside any other claim.

    A pod names claims and templates, which name the class; only a resource
    ``deviceclass.resource.kubernetes.io/<class>`` names the class in the pod itself. A lookup of the others would
    make the verdict depend on the time of the review.
    """
    target = pod.target
    if target is None or (target.is_plain and not target.claims):
        return
    prefix = names.RESOURCE_DEVICE_CLASS_PREFIX
    classes = [a.resource.removeprefix(prefix) for a in target.effective_requests if a.resource.startswith(prefix)]
    gpus = _join_limited([format_value(name) for name in classes if name in policy.gpu_device_classes])
    if gpus:
        rule = rule_table.SHARE_AND_DRA
        message = f"a share cannot be combined with DRA devices of {target.label} ({gpus}); {rule.remedy}"
        yield _error(pod, rule, pod.share, message)
    elif classes or target.claims:
        claims = _join_limited([format_value(name) for name in (*target.claims, *classes)])
        message = f"{target.label} also uses DRA claims ({claims}); if one is a GPU, it is in addition to the share"
        yield _error(pod, rule_table.SHARE_AND_CLAIM, pod.share, message)


# --- resources ---


def _device_errors(pod: PodGpus) -> Iterator[FieldError]:
    """Yield the errors of every resource entry that names devices."""
    for amount in pod.pod_level:
        message = "GPUs cannot be requested at pod level; move this to the resources of the container that uses them"
        yield FieldError(rule_table.POD_LEVEL, amount.path, amount.raw_value, message)
    for container in pod.containers:
        if not container.is_plain:
            yield from _container_errors(container, is_share=bool(pod.share))


def _container_errors(container: Container, *, is_share: bool) -> Iterator[FieldError]:
    for resource in sorted({*container.limits, *container.requests}):
        if is_device(resource):
            yield from _entry_errors(container, resource, is_share=is_share)


def _entry_errors(container: Container, resource: str, *, is_share: bool) -> Iterator[FieldError]:
    limit, request = container.limits.get(resource), container.requests.get(resource)
    limit_errors = list(_amount_errors(limit, is_share=is_share)) if limit is not None else []
    yield from limit_errors
    if request is None or (limit is not None and _same(limit, request)):
        return
    errors = list(_amount_errors(request, is_share=is_share))
    yield from errors
    # A remedy names no amount that is an error itself.
    if limit is None:
        path = f"{container.path}.resources.limits[{resource}]"
        amount = "a whole number" if errors else f"the request, {request.text}"
        message = f"is required, because GPUs are not overcommitted; set it to {amount}"
        yield FieldError(rule_table.LIMIT_MISSING, path, None, message)
    elif limit.quantity is not None and request.quantity is not None:
        amount = "" if limit_errors else f", {limit.text}"
        message = f"must be the same as the limit{amount}; leave the request out and it is"
        yield FieldError(rule_table.REQUEST_DIFFERS, request.path, request.raw_value, message)


def _amount_errors(amount: Amount, *, is_share: bool) -> Iterator[FieldError]:
    if amount.quantity is None:
        message = "must be a whole number, such as 1"
        yield FieldError(rule_table.QUANTITY_FORMAT, amount.path, amount.raw_value, message)
    elif amount.quantity < 0 or amount.quantity != amount.quantity.to_integral_value():
        message = "must be a whole number, 0 or more, such as 1"
        if _is_part_of_gpu(amount):
            share = f"; for a part of a GPU use the annotation {names.GPU_FRACTION} instead"
            message += "; remove it, the annotation of the share already asks for a part" if is_share else share
        yield FieldError(rule_table.QUANTITY_INTEGER, amount.path, amount.raw_value, message)


def _is_part_of_gpu(amount: Amount) -> bool:
    quantity = amount.quantity
    is_gpu = amount.resource == names.RESOURCE_GPU
    return is_gpu and quantity is not None and quantity > 0 and quantity != quantity.to_integral_value()


def _same(limit: Amount, request: Amount) -> bool:
    return limit.quantity == request.quantity if limit.quantity is not None else limit.raw_value == request.raw_value
