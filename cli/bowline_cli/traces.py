"""Signs of GPUs in an object: in a pod by its resources and annotations, in a kind that Bowline does not know by any
field. Pure.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from bowline.api import names
from bowline.api.field_error import join_path
from bowline.api.meta import Object
from bowline.framework.templates import Template

_MOST: Final = 20_000
# Of fields: gpu, gpuType, requestGPU, numGpus; of values: nvidia.com/gpu; of images.
_FIELD: Final = re.compile(r"gpus?(?![a-z])|GPU")
_DEVICE: Final = re.compile(r"^nvidia\.com/")
# Fields whose value may name a GPU that no pod requests: the group of the object's own kind; the key of a taint, a
# toleration, or a selector of nodes.
_OF_OTHERS: Final = ("apiVersion", "key")
_IMAGE: Final = re.compile(r"nvidia|cuda")


def gpu_trace(raw: Object) -> str:
    """Return where an object of a kind that is not known names a GPU, and what to do; empty if it names none."""
    path = next(_traces(raw, is_known=False), "")
    return f"{path} names a GPU; if its pods are described here, add the kind to config.workloads" if path else ""


def unknown_devices(raw: Object, templates: Iterable[Template]) -> list[str]:
    """Return where an object of another project's kind has GPUs that are in no pod of it, as far as is known."""
    pods = tuple(
        re.sub(r"\[([A-Za-z_]\w*)\]", r".\1", path)  # as a field
        for template in templates
        for path in (template.spec_path, template.metadata_path, *template.container_paths)
    )
    places = (path.removesuffix("]").rpartition("[") for path in _traces(raw, is_known=True))
    devices = (place for place, _, key in places if _is_device(key))
    return [place for place in devices if not place.startswith(("status.", *pods))]


def requests_gpu(raw: Object) -> bool:
    """Return whether a pod, or its template, requests a GPU or a share."""
    return any(_traces(raw, is_known=True))


def _traces(raw: Any, *, is_known: bool) -> Iterator[str]:
    """Yield the paths of fields that name a GPU. ``is_known``: only where a pod requests one."""
    stack, left = [("", raw)], _MOST
    while stack and left:
        left -= 1
        path, value = stack.pop()
        if isinstance(value, dict):
            for key, content in value.items():
                place = join_path(path, key if key.isidentifier() else f"[{key}]")
                is_request = ("resources" in path or "annotations" in path) and _is_gpu(key)
                is_sign = not is_known and path != "metadata" and _names_gpu(key, content)
                if (is_request and not _is_none(content)) or is_sign:
                    yield place
                stack.append((place, content))
        elif isinstance(value, list):
            stack += [(f"{path}[{index}]", item) for index, item in enumerate(value)]


def _is_gpu(key: str) -> bool:
    return _is_device(key) or key.startswith(names.NV_CONTAINER) or key in names.SHARE_ANNOTATIONS


def _is_device(key: str) -> bool:
    return key == names.RESOURCE_GPU or key.startswith(names.RESOURCE_MIG_PREFIX)


def _is_none(content: Any) -> bool:
    return isinstance(content, dict | list) or content in (None, "", "0", 0, False)


def _names_gpu(key: str, content: Any) -> bool:
    if _is_none(content) or key in _OF_OTHERS:
        return False
    text = str(content)
    is_image = key.lower().endswith("image") and _IMAGE.search(text) is not None
    return is_image or _FIELD.search(key) is not None or _DEVICE.match(text) is not None
