"""The rules of this plugin as values. Data; ``rules`` and ``spelling`` apply them.

The texts and bounds are those of the webhook and of the chart's policy: the policy has the rules with a CEL form,
in the order of this table. Only rules that CEL can express exactly have one, and none that the API server itself
checks before policies run (quantities, requests beside limits). Never stricter than the Python rules. In one case the
policy is more lenient: of a fraction with more than ``LONGEST_FRACTION`` characters it checks the format, not the
size, because CEL's conversion of a number outside the range of a 64-bit float fails the whole policy.
"""

from typing import Final

from bowline.api import names
from bowline.api.rule import CelForm, DenialCause, Rule, Severity
from bowline.plugins.gpu_request import cel

# One meaning in Python's ``re`` and in RE2: no class shorthands.
FRACTION_GRAMMAR: Final = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
LONGEST_FRACTION: Final = 100
# Within that length an exponent this long makes any number 0 or at least 1: the mantissa is 0 or above 1e-95. All
# other numbers of that length are far from a float's limit.
_HUGE_EXPONENT: Final = r"[eE][+]?0*[1-9][0-9]{2,}$"
# Schedulers store numbers of devices and of MiB in int64 fields; larger values would be lost there.
MAX_INT64: Final = 2**63 - 1
# Schedulers name a GPU group for each device; the BindRequest's CRD allows as many.
MAX_DEVICES: Final = 1024
EITHER_SHARE: Final = f"{names.GPU_FRACTION} or {names.GPU_MEMORY}"

_HAS_FRACTION: Final = cel.has(names.GPU_FRACTION)
_HAS_MEMORY: Final = cel.has(names.GPU_MEMORY)
_HAS_COUNT: Final = cel.has(names.GPU_FRACTION_NUM_DEVICES)
_IS_NUMBER: Final = cel.matches(names.GPU_FRACTION, f"^(?:{FRACTION_GRAMMAR})$")
_NUMBER: Final = f"double({cel.value(names.GPU_FRACTION)})"
_IN_RANGE: Final = f"!{cel.matches(names.GPU_FRACTION, _HUGE_EXPONENT)} && {_NUMBER} > 0.0 && {_NUMBER} < 1.0"
_IS_SHORT: Final = f"size({cel.value(names.GPU_FRACTION)}) <= {LONGEST_FRACTION}"
_IS_SHARE: Final = "variables.shareKey != ''"
_IS_NO_SHARE: Final = "variables.shareKey == ''"
_SHARE_KEY: Final = "variables.shareKey"
_CLASS_PREFIX: Final = names.RESOURCE_DEVICE_CLASS_PREFIX
_IS_MIG: Final = f"r.startsWith({cel.text(names.RESOURCE_MIG_PREFIX)})"
_IS_GPU_CLASS: Final = (
    f"r.startsWith({cel.text(_CLASS_PREFIX)}) && r.substring({len(_CLASS_PREFIX)}) in variables.gpuDeviceClasses"
)

FRACTION_FORMAT: Final = Rule(
    "gpu_request/fraction-format",
    "`gpu-fraction` is not a decimal number (`0.5`, `.5`, `5e-1`) but, for example, empty, hex, `nan`, `inf` "
    "or with a unit, percent sign or space",
    invalid='annotations: {gpu-fraction: "50%"}',
    valid='annotations: {gpu-fraction: "0.5"}',
    text="must be a decimal number between 0 and 1 without unit or spaces",
    remedy='for half a GPU write "0.5"',
    cel=CelForm(f"{_HAS_FRACTION} && !{_IS_NUMBER}", cel.text(names.GPU_FRACTION)),
)
FRACTION_RANGE: Final = Rule(
    "gpu_request/fraction-range",
    "`gpu-fraction` is not above 0 and below 1",
    invalid='annotations: {gpu-fraction: "2"}',
    valid='annotations: {gpu-fraction: "0.5"}',
    text="must be greater than 0 and less than 1",
    remedy=(
        f"for whole GPUs use limits {names.RESOURCE_GPU} in a "
        f"container instead, for parts of several GPUs add {names.GPU_FRACTION_NUM_DEVICES}"
    ),
    cel=CelForm(f"{_HAS_FRACTION} && {_IS_NUMBER} && {_IS_SHORT} && !({_IN_RANGE})", cel.text(names.GPU_FRACTION)),
)
FRACTION_PRECISION: Final = Rule(
    "gpu_request/fraction-precision",
    "`gpu-fraction` is below 0.005 or above 0.995: schedulers write two decimals, `0.00` or `1.00`",
    severity=Severity.WARNS,
    invalid='annotations: {gpu-fraction: "0.001"}',
    valid='annotations: {gpu-fraction: "0.01"}',
)
MEMORY_FORMAT: Final = Rule(
    "gpu_request/memory-format",
    "`gpu-memory` is not a whole number of MiB from 1 to 2^63-1 in plain digits",
    invalid="annotations: {gpu-memory: 8Gi}",
    valid='annotations: {gpu-memory: "8192"}',
    text="must be a whole number of MiB above 0, digits only",
    remedy='for 4 GiB write "4096"',
    cel=CelForm(f"{_HAS_MEMORY} && {cel.is_not_whole(names.GPU_MEMORY, MAX_INT64)}", cel.text(names.GPU_MEMORY)),
)
MEMORY_AND_FRACTION: Final = Rule(
    "gpu_request/memory-and-fraction",
    "`gpu-memory` and `gpu-fraction` are both set",
    cause=DenialCause.FORBIDDEN,
    invalid='annotations: {gpu-memory: "8192", gpu-fraction: "0.5"}',
    valid='annotations: {gpu-memory: "8192"}',
    text=f"cannot be combined with {names.GPU_FRACTION}: both give the size of the share",
    remedy="remove one of them",
    cel=CelForm(f"{_HAS_MEMORY} && {_HAS_FRACTION}", cel.text(names.GPU_MEMORY)),
)
MEMORY_SIZE: Final = Rule(
    "gpu_request/memory-size",
    "`gpu-memory` is below 128 MiB or above 1 TiB: probably meant in GiB, or in bytes",
    severity=Severity.WARNS,
    invalid='annotations: {gpu-memory: "8"}',
    valid='annotations: {gpu-memory: "8192"}',
)
NUM_DEVICES_FORMAT: Final = Rule(
    "gpu_request/num-devices-format",
    "`gpu-fraction-num-devices` is not a whole number from 1 to 1024 in plain digits",
    invalid='annotations: {gpu-fraction: "0.5", gpu-fraction-num-devices: two}',
    valid='annotations: {gpu-fraction: "0.5", gpu-fraction-num-devices: "2"}',
    text=f"must be a whole number from 1 to {MAX_DEVICES}, digits only",
    remedy='for two devices write "2"',
    cel=CelForm(
        f"{_HAS_COUNT} && {cel.is_not_whole(names.GPU_FRACTION_NUM_DEVICES, MAX_DEVICES)}",
        cel.text(names.GPU_FRACTION_NUM_DEVICES),
    ),
)
NUM_DEVICES_ALONE: Final = Rule(
    "gpu_request/num-devices-alone",
    "`gpu-fraction-num-devices` is set without `gpu-fraction` or `gpu-memory`",
    cause=DenialCause.FORBIDDEN,
    invalid='annotations: {gpu-fraction-num-devices: "2"}',
    valid='annotations: {gpu-fraction: "0.5", gpu-fraction-num-devices: "2"}',
    text=f"needs {EITHER_SHARE}, which give the share of each device",
    remedy=f"add one, or for whole GPUs use limits {names.RESOURCE_GPU} instead",
    cel=CelForm(f"{_HAS_COUNT} && {_IS_NO_SHARE}", cel.text(names.GPU_FRACTION_NUM_DEVICES)),
    needs_whole=True,
)
CONTAINER_NAME: Final = Rule(
    "gpu_request/container-name",
    "`gpu-fraction-container-name` names no container or init container",
    cause=DenialCause.NOT_FOUND,
    invalid='annotations: {gpu-fraction: "0.5", gpu-fraction-container-name: absent}',
    valid='annotations: {gpu-fraction: "0.5", gpu-fraction-container-name: main}',
    text="must name a container or init container of this pod",
    remedy="without the annotation the default container is taken",
    cel=CelForm(
        f"{cel.has(names.GPU_FRACTION_CONTAINER)} && {_IS_SHARE} && size(variables.target) == 0",
        cel.text(names.GPU_FRACTION_CONTAINER),
    ),
    needs_whole=True,
)
CONTAINER_NAME_UNUSED: Final = Rule(
    "gpu_request/container-name-unused",
    "`gpu-fraction-container-name` is set without a share",
    severity=Severity.WARNS,
    invalid="annotations: {gpu-fraction-container-name: main}",
    valid='annotations: {gpu-fraction: "0.5", gpu-fraction-container-name: main}',
    needs_whole=True,
)
MPS_ALONE: Final = Rule(
    "gpu_request/mps-alone",
    '`mps: "true"` is set without a share',
    cause=DenialCause.FORBIDDEN,
    invalid='annotations: {mps: "true"}',
    valid='annotations: {gpu-fraction: "0.5", mps: "true"}',
    text=f"needs {EITHER_SHARE}: MPS serves shares only",
    remedy="add one or remove this",
    cel=CelForm(f'{cel.has(names.MPS)} && {cel.value(names.MPS)} == "true" && {_IS_NO_SHARE}', cel.text(names.MPS)),
    needs_whole=True,
)
MPS_SPELLING: Final = Rule(
    "gpu_request/mps-spelling",
    '`mps` has an affirmative value other than `"true"`, which no component recognises',
    severity=Severity.WARNS,
    invalid='annotations: {gpu-fraction: "0.5", mps: "yes please"}',
    valid='annotations: {gpu-fraction: "0.5", mps: "true"}',
)
SHARING_DISABLED: Final = Rule(
    "gpu_request/sharing-disabled",
    "a share is requested and `gpuSharing.enabled` is false",
    cause=DenialCause.FORBIDDEN,
    text="GPU sharing is switched off",
    remedy=(
        f"ask for whole GPUs with limits {names.RESOURCE_GPU}, or have "
        f"gpuSharing.enabled set to true in Bowline's configuration"
    ),
    cel=CelForm(f"{_IS_SHARE} && !variables.sharing", _SHARE_KEY),
)
SHARE_AND_WHOLE: Final = Rule(
    "gpu_request/share-and-whole",
    "a share is requested and some container requests whole GPUs",
    cause=DenialCause.FORBIDDEN,
    invalid='annotations: {gpu-fraction: "0.5"}\nlimits: {nvidia.com/gpu: 1}',
    valid='annotations: {gpu-fraction: "0.5"}',
    text="a share cannot be combined with whole GPUs",
    remedy="remove the annotation or those resources",
    cel=CelForm(cel.some_container(cel.requests_named("c", names.RESOURCE_GPU)), _SHARE_KEY),
)
SHARE_AND_MIG: Final = Rule(
    "gpu_request/share-and-mig",
    "a share is requested and some container requests MIG devices",
    cause=DenialCause.FORBIDDEN,
    invalid='annotations: {gpu-fraction: "0.5"}\nlimits: {nvidia.com/mig-1g.10gb: 1}',
    valid='annotations: {gpu-fraction: "0.5"}',
    text="a share cannot be combined with MIG devices",
    remedy="remove the annotation or those resources",
    cel=CelForm(cel.some_container(cel.requests_resource("c", _IS_MIG)), _SHARE_KEY),
)
SHARE_AND_NODE_NAME: Final = Rule(
    "gpu_request/share-and-node-name",
    "a share is requested and `spec.nodeName` is set: the pod is never scheduled, so it gets no device",
    cause=DenialCause.FORBIDDEN,
    invalid='annotations: {gpu-fraction: "0.5"}\nnodeName: gpu-1',
    valid='annotations: {gpu-fraction: "0.5"}\nnodeSelector: {kubernetes.io/hostname: gpu-1}',
    text=(
        "a share cannot be combined with spec.nodeName: the pod is not scheduled, so it gets no device and "
        "never starts"
    ),
    remedy="remove spec.nodeName, or use a node selector",
    cel=CelForm(f"{_IS_SHARE} && has(object.spec.nodeName) && object.spec.nodeName != ''", _SHARE_KEY),
)
SHARE_PRIVILEGED: Final = Rule(
    "gpu_request/share-privileged",
    "a container of a pod with a share is privileged, so it can use every GPU of its node",
    severity=Severity.WARNS,
)
SHARE_AND_DRA: Final = Rule(
    "gpu_request/share-and-dra",
    "the container of the share also requests DRA devices of a class that is known to be a GPU (`gpuDeviceClasses`)",
    cause=DenialCause.FORBIDDEN,
    text="a share cannot be combined with DRA devices of its container",
    remedy="remove one of the two",
    cel=CelForm(
        f"{_IS_SHARE} && variables.target.exists(c, {cel.requests_resource('c', _IS_GPU_CLASS)})", _SHARE_KEY
    ),
)
SHARE_AND_CLAIM: Final = Rule(
    "gpu_request/share-and-claim",
    "the container of the share also uses a DRA claim whose device class is not known to be a GPU",
    severity=Severity.WARNS,
)
QUANTITY_FORMAT: Final = Rule(
    "gpu_request/quantity-format",
    "a quantity of GPUs or MIG devices cannot be parsed (`one`, `true`)",
    invalid="limits: {nvidia.com/gpu: one}",
    valid="limits: {nvidia.com/gpu: 1}",
)
QUANTITY_INTEGER: Final = Rule(
    "gpu_request/quantity-integer",
    "it is negative or not a whole number, rounded up to thousandths as the API server does",
    invalid="limits: {nvidia.com/gpu: 0.5}",
    valid='annotations: {gpu-fraction: "0.5"}',
)
REQUEST_DIFFERS: Final = Rule(
    "gpu_request/request-differs",
    "request and limit of GPUs or MIG devices differ",
    invalid="limits: {nvidia.com/gpu: 2}\nrequests: {nvidia.com/gpu: 1}",
    valid="limits: {nvidia.com/gpu: 2}",
)
LIMIT_MISSING: Final = Rule(
    "gpu_request/limit-missing",
    "GPUs or MIG devices are requested without a limit",
    cause=DenialCause.REQUIRED,
    invalid="requests: {nvidia.com/gpu: 1}",
    valid="limits: {nvidia.com/gpu: 1}",
    needs_whole=True,
)
POD_LEVEL: Final = Rule(
    "gpu_request/pod-level",
    "GPUs or MIG devices are in `spec.resources`, the pod-level resources",
    cause=DenialCause.FORBIDDEN,
    invalid="resources: {limits: {nvidia.com/gpu: 1}}",
    valid="limits: {nvidia.com/gpu: 1}",
)
ANNOTATION_NAME: Final = Rule(
    "gpu_request/annotation-name",
    "an annotation resembles one of a share (`gpu-fracton`, `GPU_Fraction`, `kai.scheduler/gpu-fraction`) and "
    "is none",
    severity=Severity.WARNS,
    invalid='annotations: {gpu-fracton: "0.5"}',
    valid='annotations: {gpu-fraction: "0.5"}',
)
ANNOTATION_AS_LABEL: Final = Rule(
    "gpu_request/annotation-as-label",
    "a label has the name of an annotation of a share",
    severity=Severity.WARNS,
    invalid='labels: {gpu-fraction: "0.5"}',
    valid='annotations: {gpu-fraction: "0.5"}',
)
RESOURCE_NAME: Final = Rule(
    "gpu_request/resource-name",
    "a limit resembles `nvidia.com/gpu` (`nvidia.com/gpus`, `nvidia/gpu`) and is not served by a device plugin",
    severity=Severity.WARNS,
    invalid="limits: {nvidia.com/gpus: 1}",
    valid="limits: {nvidia.com/gpu: 1}",
)
IMMUTABLE: Final = Rule(
    "gpu_request/immutable",
    "an update adds, changes or removes one of the annotations, or `runai/shared-gpu-configmap`",
    cause=DenialCause.FORBIDDEN,
)

# In the order of the checks.
RULES: Final = (
    FRACTION_FORMAT,
    FRACTION_RANGE,
    FRACTION_PRECISION,
    MEMORY_AND_FRACTION,
    MEMORY_FORMAT,
    MEMORY_SIZE,
    NUM_DEVICES_ALONE,
    NUM_DEVICES_FORMAT,
    CONTAINER_NAME,
    CONTAINER_NAME_UNUSED,
    MPS_ALONE,
    MPS_SPELLING,
    SHARING_DISABLED,
    SHARE_AND_WHOLE,
    SHARE_AND_MIG,
    SHARE_AND_NODE_NAME,
    SHARE_PRIVILEGED,
    SHARE_AND_DRA,
    SHARE_AND_CLAIM,
    QUANTITY_FORMAT,
    QUANTITY_INTEGER,
    REQUEST_DIFFERS,
    LIMIT_MISSING,
    POD_LEVEL,
    ANNOTATION_NAME,
    ANNOTATION_AS_LABEL,
    RESOURCE_NAME,
    IMMUTABLE,
)
