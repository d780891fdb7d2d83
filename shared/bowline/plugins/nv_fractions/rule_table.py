"""The rules of this plugin as values. Data; ``rules`` and ``shorthands`` apply them."""

from typing import Final

from bowline.api.rule import DenialCause, Rule

IMMUTABLE: Final = Rule(
    "nv_fractions/immutable",
    "another annotation of GPU fractioning changes on an existing pod, while plugin nv_fractions is enabled",
    cause=DenialCause.FORBIDDEN,
)
CONTAINER: Final = Rule(
    "nv_fractions/container",
    "an annotation of GPU fractioning names no container or init container",
    cause=DenialCause.NOT_FOUND,
    invalid="annotations: {nvidia.com/container.absent.gpu-memory.limit: 8Gi}",
    valid="annotations: {nvidia.com/container.main.gpu-memory.limit: 8Gi}",
)
CONTAINERS: Final = Rule(
    "nv_fractions/containers",
    "an annotation of GPU fractioning names a second container",
    cause=DenialCause.FORBIDDEN,
    invalid=(
        "annotations: {nvidia.com/container.main.gpu-memory.request: 1Gi, "
        "nvidia.com/container.other.gpu-memory.request: 1Gi}\n"
        "containers: [{name: main, image: train}, {name: other, image: train}]"
    ),
    valid="annotations: {nvidia.com/container.main.gpu-memory.request: 1Gi}",
)
CONTAINER_NAME: Final = Rule(
    "nv_fractions/container-name",
    "the container is not the one that `gpu-fraction-container-name` names",
    cause=DenialCause.INVALID,
)
MEMORY_FORMAT: Final = Rule(
    "nv_fractions/memory-format",
    "`.gpu-memory.request` or `.gpu-memory.limit` is not a quantity above 0",
    invalid="annotations: {nvidia.com/container.main.gpu-memory.limit: 8 GB}",
    valid="annotations: {nvidia.com/container.main.gpu-memory.limit: 8G}",
)
MEMORY_RANGE: Final = Rule(
    "nv_fractions/memory-range",
    "`.gpu-memory.request` exceeds `.gpu-memory.limit`",
    invalid=(
        "annotations: {nvidia.com/container.main.gpu-memory.request: 2Gi, "
        "nvidia.com/container.main.gpu-memory.limit: 1Gi}"
    ),
    valid=(
        "annotations: {nvidia.com/container.main.gpu-memory.request: 1Gi, "
        "nvidia.com/container.main.gpu-memory.limit: 2Gi}"
    ),
)
MEMORY_MISMATCH: Final = Rule(
    "nv_fractions/memory-mismatch",
    "the container's request is not `gpu-memory`",
    invalid='annotations: {nvidia.com/container.main.gpu-memory.request: 1Gi, gpu-memory: "2048"}',
    valid="annotations: {nvidia.com/container.main.gpu-memory.request: 1Gi}",
)
MEMORY_AND_FRACTION: Final = Rule(
    "nv_fractions/memory-and-fraction",
    "`.gpu-memory.request` or `.gpu-memory.limit` is set beside `gpu-fraction`",
    cause=DenialCause.FORBIDDEN,
    invalid='annotations: {nvidia.com/container.main.gpu-memory.request: 1Gi, gpu-fraction: "0.5"}',
    valid="annotations: {nvidia.com/container.main.gpu-memory.request: 1Gi}",
)
MODE: Final = Rule(
    "nv_fractions/mode",
    "`.gpu-compute.mode` is neither `time-slicing` nor `sm-sharing`",
    invalid='annotations: {nvidia.com/container.main.gpu-compute.mode: exclusive, gpu-fraction: "0.5"}',
    valid='annotations: {nvidia.com/container.main.gpu-compute.mode: sm-sharing, gpu-fraction: "0.5"}',
)
PORTION_LIMIT: Final = Rule(
    "nv_fractions/portion-limit",
    "`kai.scheduler/container.<container>.gpu-memory.portion.limit` is not a number above `gpu-fraction` and below 1",
    invalid='annotations: {kai.scheduler/container.main.gpu-memory.portion.limit: "0.4", gpu-fraction: "0.5"}',
    valid='annotations: {kai.scheduler/container.main.gpu-memory.portion.limit: "0.8", gpu-fraction: "0.5"}',
)
LIMIT_SHORTHAND: Final = Rule(
    "nv_fractions/limit-shorthand",
    "`gpu-memory.limit` is not a quantity of at least `gpu-memory`, or `gpu-fraction.limit` not a number above "
    "`gpu-fraction` and below 1 with at most 5 decimals; or one of them differs from the annotation that names the "
    "container",
    invalid='annotations: {gpu-memory.limit: "8192", gpu-memory: "4096"}',
    valid='annotations: {gpu-memory.limit: 8Gi, gpu-memory: "4096"}',
)
UNPREPARED: Final = Rule(
    "nv_fractions/unprepared",
    "a pod with a share reaches the validating webhook without an annotation that the mutating one adds",
    cause=DenialCause.REQUIRED,
    text="is missing, which the mutating webhook adds: it was unavailable or something changed the pod after it",
    remedy="create the pod again",
)

RULES: Final = (
    IMMUTABLE,
    CONTAINER,
    CONTAINERS,
    CONTAINER_NAME,
    MEMORY_FORMAT,
    MEMORY_RANGE,
    MEMORY_MISMATCH,
    MEMORY_AND_FRACTION,
    MODE,
    PORTION_LIMIT,
    LIMIT_SHORTHAND,
    UNPREPARED,
)
