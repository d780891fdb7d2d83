"""Requests for GPUs that have no effect because of their spelling, or hardly any by their size. Pure.

No component reads such an annotation, so the pod runs without its share and nothing reports it; a pod that names a
resource that no node has stays Pending. Only names that resemble one of the share annotations are compared, under
the prefixes that GPU schedulers use: most pods have none. All are warnings.
"""

from collections.abc import Iterator
from difflib import get_close_matches
from itertools import filterfalse, islice

from bowline.api import names
from bowline.api.field_error import FieldError, annotation_path
from bowline.api.meta import Object
from bowline.plugins.gpu_request import rule_table

_PREFIXES = ("", "kai.scheduler", "runai", "run.ai", "bowline.dev", "nvidia.com")
# Names of other projects, or of resources, in place of the annotation or the part of a pod that has the meaning.
_ELSEWHERE = {
    "gpu-memory-limit": f"annotation {names.GPU_MEMORY_LIMIT}, a quantity such as 8Gi",
    "gpu-fraction-limit": f"annotation {names.GPU_FRACTION_LIMIT}",
    "nvidia.com/gpu": f"limits {names.RESOURCE_GPU} of a container",
    names.RESOURCE_GPU_REPLICA: f"annotation {names.GPU_FRACTION} or {names.GPU_MEMORY}",
    "nvidia.com/gpumem": f"annotation {names.GPU_MEMORY}, in MiB",
    "nvidia.com/gpumem-percentage": f"annotation {names.GPU_FRACTION}, such as 0.5",
    "nvidia.com/gpucores": f"annotation {names.GPU_FRACTION}",
}
# Plugin nv_fractions reads them.
_LIMITS = (names.GPU_MEMORY_LIMIT, names.GPU_FRACTION_LIMIT)
_READ = frozenset((*names.OWNED_ANNOTATIONS, *_LIMITS))
_SPELLINGS = tuple(name for name in names.OWNED_ANNOTATIONS if name.startswith("gpu-"))
# gpu-mem and gpu-fracton resemble an annotation; gpu-product does not.
_LIKENESS = 0.8
# A comparison takes a tenth of a millisecond, and a pod may have thousands of annotations.
_MOST, _LONGEST = 20, 64
# The resource nvidia.com/gpu in other words. Device plugins name others like it: nvidia.com/vgpu, gpu.shared, gpumem.
_GPU_NAMES = (
    *("nvidia.com/gpus", "nvidia.com/gpu-count", "nvidia/gpu", "nvidia/gpus", "nvdia.com/gpu", "gpu"),
    names.RESOURCE_GPU,  # in capitals
)
# A CUDA context alone takes a few hundred MiB, and no device has a TiB.
_LEAST_MIB, _MOST_MIB = 128, 2**20


def spelling_warnings(raw: Object) -> Iterator[FieldError]:
    """Yield a warning for each annotation that is misspelt and each label that should be an annotation."""
    metadata = raw["metadata"]
    annotations, labels = metadata.get("annotations") or {}, metadata.get("labels") or {}
    for key in islice(filter(_is_candidate, filterfalse(_READ.__contains__, annotations)), _MOST):
        matches = get_close_matches(_local_name(key), _SPELLINGS, 1, _LIKENESS)
        meaning = _ELSEWHERE.get(key) or _ELSEWHERE.get(_local_name(key)) or next(iter(matches), "")
        if meaning:
            message = f"has no effect: no component reads this annotation; did you mean {meaning}?"
            path = annotation_path(key)
            yield FieldError(rule_table.ANNOTATION_NAME, path, annotations[key], message)
    yield from _resource_warnings(raw["spec"])
    memory = annotations.get(names.GPU_MEMORY) or ""
    size = int(memory) if memory.isascii() and memory.isdigit() and len(memory) <= _LONGEST else 0
    if 0 < size < _LEAST_MIB or _MOST_MIB < size <= rule_table.MAX_INT64:
        what = "too little for a CUDA context" if size < _LEAST_MIB else "more than any GPU has"
        message = f"is {memory} MiB, {what}; the unit is MiB, so 8 GiB are 8192"
        yield FieldError(rule_table.MEMORY_SIZE, annotation_path(names.GPU_MEMORY), memory, message)
    for key in filter(labels.__contains__, _SPELLINGS):
        path, message = f"metadata.labels[{key}]", f"has no effect as a label; set the annotation {key}"
        yield FieldError(rule_table.ANNOTATION_AS_LABEL, path, labels[key], message)


def _resource_warnings(spec: Object) -> Iterator[FieldError]:
    """Yield a warning for each limit that resembles a GPU and that nobody serves."""
    for field in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(field) or ()):
            for key, quantity in ((container.get("resources") or {}).get("limits") or {}).items():
                if key != names.RESOURCE_GPU and key.lower() in _GPU_NAMES:
                    message = f"no device plugin serves this resource; did you mean {names.RESOURCE_GPU}?"
                    path = f"spec.{field}[{index}].resources.limits[{key}]"
                    yield FieldError(rule_table.RESOURCE_NAME, path, quantity, message)


def _is_candidate(key: str) -> bool:
    """Return whether a key that no plugin reads may be meant as a share annotation."""
    return len(key) <= _LONGEST and "gpu" in key.lower() and key.rpartition("/")[0] in _PREFIXES


def _local_name(key: str) -> str:
    return key.rpartition("/")[2].lower().replace("_", "-")
