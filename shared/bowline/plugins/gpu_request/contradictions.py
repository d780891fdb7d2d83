"""What contradicts a share without making it impossible: amounts that no device has, and devices in addition.

Pure. All are warnings: the pod starts, but not with what its author means.
"""

from collections.abc import Iterator
from typing import Final

from bowline.api import names
from bowline.api.field_error import FieldError, annotation_path
from bowline.plugins.gpu_request import rule_table
from bowline.plugins.gpu_request.pod import PodGpus

# Resources of other device plugins that are an accelerator as well, or a part of one.
_OTHER_GPUS: Final = frozenset(
    {
        *("nvidia.com/gpu.shared", "nvidia.com/vgpu", "nvidia.com/gpumem", "nvidia.com/gpucores"),
        *("nvidia.com/gpumem-percentage", "volcano.sh/vgpu-number", "volcano.sh/gpu-number", "volcano.sh/gpu-memory"),
        *("volcano.sh/vgpu-memory", "aliyun.com/gpu", "aliyun.com/gpu-mem", "tencent.com/vcuda-core"),
        *("amd.com/gpu", "intel.com/gpu", "gpu.intel.com/i915", "gpu.intel.com/xe", "habana.ai/gaudi"),
        *("google.com/tpu", "aws.amazon.com/neuron", "aws.amazon.com/neuroncore", "aws.amazon.com/neurondevice"),
        *("huawei.com/Ascend310", "huawei.com/Ascend910", "cambricon.com/mlu", "cambricon.com/vmlu"),
        *("iluvatar.ai/gpu", "metax-tech.com/gpu", "mthreads.com/gpu", "mthreads.com/vgpu", "hygon.com/dcu"),
    }
)
# Runtimes that pass no NVIDIA device to a container, and the beginnings of such names.
_PLAIN_RUNTIMES: Final = ("runc", "crun", "youki", "runsc", "gvisor", "kata", "firecracker")
_PLAIN_FAMILIES: Final = ("kata-", "gvisor-", "runsc-", "wasmtime", "wasmedge", "spin")
# More MiB than any device has.
_MOST_MIB: Final = 2**20
_MOST_DIGITS: Final = 100


def contradictions(pod: PodGpus) -> Iterator[FieldError]:
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
    runtime = pod.spec.get("runtimeClassName")
    if runtime and _is_plain(runtime):
        message = "passes no GPU to a container; leave it out, and the class for shares is set"
        yield FieldError(rule_table.RUNTIME_CLASS, "spec.runtimeClassName", runtime, message)
    for field in ("initContainers", "containers"):
        for index, container in enumerate(pod.spec.get(field) or ()):
            limits = (container.get("resources") or {}).get("limits") or {}
            for resource in sorted(_OTHER_GPUS.intersection(limits)):
                if limits[resource] not in (0, "0"):
                    message = "is a device in addition to the share; remove it, or the annotation of the share"
                    path = f"spec.{field}[{index}].resources.limits[{resource}]"
                    yield FieldError(rule_table.OTHER_GPU, path, limits[resource], message)


def _is_plain(runtime: str) -> bool:
    return runtime in _PLAIN_RUNTIMES or (runtime.startswith(_PLAIN_FAMILIES) and "nvidia" not in runtime)
