"""Rules for the annotations that request a share of a GPU, each by itself.

Pure. A value is validated as text, with an explicit grammar: ``int()`` and ``float()`` accept signs, spaces,
underscores, ``inf`` and digits of other scripts. A fraction is valid if existing schedulers can parse it: as a 64-bit
float and as a Kubernetes quantity.
"""

import re
from collections.abc import Iterator
from decimal import Decimal

from shared.api import names
from shared.api.field_error import FieldError, annotation_path, shown
from shared.framework.plugin import Inventory
from shared.plugins.gpu_request import wording
from shared.plugins.gpu_request.pod import PodView

_FRACTION = re.compile(wording.FRACTION_GRAMMAR)
_DIGITS = re.compile(r"[0-9]+")
_NOT_MPS = ("", "false", "f", "no", "n", "off", "0")
_LISTED = 5


def share_faults(pod: PodView, inventory: Inventory | None) -> Iterator[FieldError]:
    """Yield the errors of the annotations' values and of the annotations they depend on."""
    written = pod.annotations
    if names.GPU_FRACTION in written:
        yield from _fraction_faults(pod, written[names.GPU_FRACTION])
    if names.GPU_MEMORY in written:
        yield from _memory_faults(pod, written[names.GPU_MEMORY], inventory)
    if names.GPU_FRACTION_NUM_DEVICES in written:
        yield from _num_devices_faults(pod, written[names.GPU_FRACTION_NUM_DEVICES], inventory)
    if names.GPU_FRACTION_CONTAINER in written:
        yield from _container_faults(pod)
    if names.MPS in written:
        yield from _mps_faults(pod, written[names.MPS])


def listed(words: list[str]) -> str:
    """Return the first few words and the number of the others: a pod may have hundreds of containers.

    Names in a message must be escaped with ``shown``: the webhook runs before the API server validates them.
    """
    more = len(words) - _LISTED
    return ", ".join(words[:_LISTED]) + (f" and {more} more" if more > 0 else "")


def fault(pod: PodView, rule: str, key: str, message: str, *, is_warning: bool = False) -> FieldError:
    """Return a field error of an annotation."""
    return FieldError(
        f"gpu_request/{rule}", annotation_path(key), pod.annotations.get(key), message, is_warning=is_warning
    )


def _fraction_faults(pod: PodView, text: str) -> Iterator[FieldError]:
    key = names.GPU_FRACTION
    if not _FRACTION.fullmatch(text):
        yield fault(pod, "fraction-format", key, wording.FRACTION_FORMAT)
        return
    fraction = float(text)
    if not 0 < fraction < 1:
        yield fault(pod, "fraction-range", key, wording.FRACTION_RANGE)
        return
    written = f"{fraction:.2f}"
    if written in ("0.00", "1.00"):
        message = f"will be rounded to {written}; write at least 0.01 and at most 0.99"
        yield fault(pod, "fraction-precision", key, message, is_warning=True)


def _memory_faults(pod: PodView, text: str, inventory: Inventory | None) -> Iterator[FieldError]:
    key = names.GPU_MEMORY
    if names.GPU_FRACTION in pod.annotations:
        yield fault(pod, "memory-and-fraction", key, wording.MEMORY_AND_FRACTION)
    if not _is_whole(text, wording.MAX_INT64):
        yield fault(pod, "memory-format", key, wording.MEMORY_FORMAT)
    elif inventory is not None and inventory.nodes_with_memory_label == 0:
        message = (
            f"no node is labelled {names.NODE_GPU_MEMORY}, so its part of a GPU is unknown; use {names.GPU_FRACTION}"
        )
        yield fault(pod, "memory-inventory", key, message, is_warning=True)


def _num_devices_faults(pod: PodView, text: str, inventory: Inventory | None) -> Iterator[FieldError]:
    key = names.GPU_FRACTION_NUM_DEVICES
    if not pod.share:
        yield fault(pod, "num-devices-alone", key, wording.NUM_DEVICES_ALONE)
    if not _is_whole(text, wording.MAX_DEVICES):
        yield fault(pod, "num-devices-format", key, wording.NUM_DEVICES_FORMAT)
    elif inventory is not None and Decimal(text) > inventory.max_gpus_per_node > 0:
        yield fault(pod, "num-devices-inventory", key, too_many(inventory), is_warning=True)


def _container_faults(pod: PodView) -> Iterator[FieldError]:
    key = names.GPU_FRACTION_CONTAINER
    if not pod.share:
        message = f"has no effect without {wording.EITHER_SHARE}"
        yield fault(pod, "container-name-unused", key, message, is_warning=True)
    elif pod.target is None:
        known = listed([shown(container.name) for container in pod.containers if container.name])
        yield fault(pod, "container-name", key, wording.container_name(known or "it has none"))


def _mps_faults(pod: PodView, text: str) -> Iterator[FieldError]:
    key = names.MPS
    if text == "true" and not pod.share:
        yield fault(pod, "mps-alone", key, wording.MPS_ALONE)
    elif text != "true" and text.strip().lower() not in _NOT_MPS:
        yield fault(pod, "mps-spelling", key, 'has no effect: only "true" switches MPS on', is_warning=True)


def too_many(inventory: Inventory) -> str:
    """Return the warning about more devices than the largest node has; never a denial: nodes may be added."""
    most = inventory.max_gpus_per_node
    return f"is more GPUs than any node is labelled with ({most}); ask for fewer, or the pod waits for a larger node"


def _is_whole(text: str, most: int) -> bool:
    # Decimal, because int() raises ValueError for more than 4300 digits.
    return bool(_DIGITS.fullmatch(text)) and 1 <= Decimal(text) <= most
