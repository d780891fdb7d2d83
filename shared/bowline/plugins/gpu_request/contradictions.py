"""What contradicts a share without making it impossible: amounts that no device has, and devices in addition.

Pure. All are warnings: the pod starts, but not with what its author means.
"""

from collections.abc import Iterator
from typing import Any, Final

from bowline.api import names
from bowline.api.field_error import FieldError, annotation_path
from bowline.api.meta import Object
from bowline.plugins.gpu_request import rule_table
from bowline.plugins.gpu_request.pod import Container, PodGpus, mapping_of

# Resources of other device plugins that are a GPU as well, or a part of one.
_OTHER_GPUS: Final = (
    "nvidia.com/gpu.shared",
    "amd.com/gpu",
    "intel.com/gpu",
    "gpu.intel.com/i915",
    "gpu.intel.com/xe",
)
# Runtimes that pass no NVIDIA device to a container.
_PLAIN_RUNTIMES: Final = ("runc", "crun", "youki", "runsc", "gvisor", "kata", "kata-qemu")
# More MiB than any device has.
_MOST_MIB: Final = 2**20
_MOST_DIGITS: Final = 100


def contradictions(raw: Object, pod: PodGpus) -> Iterator[FieldError]:
    """Yield the warnings of a pod with a share."""
    text = pod.annotations.get(names.GPU_MEMORY, "")
    if (
        text.isascii()
        and text.isdigit()
        and len(text) <= _MOST_DIGITS
        and _MOST_MIB < int(text) <= rule_table.MAX_INT64
    ):
        message = "is more MiB than any GPU has; 8 GiB are 8192"
        yield FieldError(rule_table.MEMORY_IMPLAUSIBLE, annotation_path(names.GPU_MEMORY), text, message)
    spec = mapping_of(mapping_of(raw).get("spec"))
    runtime = spec.get("runtimeClassName")
    if runtime in _PLAIN_RUNTIMES:
        message = "passes no GPU to a container; leave it out, and the class for shares is set"
        yield FieldError(rule_table.RUNTIME_CLASS, "spec.runtimeClassName", runtime, message)
    if pod.target is not None:
        yield from _target_warnings(spec, pod.target)


def _target_warnings(spec: Any, target: Container) -> Iterator[FieldError]:
    container = _container_at(spec, target.path)
    limits = mapping_of(mapping_of(container.get("resources")).get("limits"))
    for resource in _OTHER_GPUS:
        if limits.get(resource) not in (None, 0, "0"):
            message = "is a device in addition to the share; remove it, or the annotation of the share"
            path = f"{target.path}.resources.limits[{resource}]"
            yield FieldError(rule_table.OTHER_GPU, path, limits[resource], message)


def _container_at(spec: Any, path: str) -> Any:
    field, _, index = path.removeprefix("spec.").rstrip("]").partition("[")
    containers = spec.get(field)
    return mapping_of(containers[int(index)]) if isinstance(containers, list) else {}
