"""Signs of GPUs in an object: in a pod by its resources and annotations, in a kind that Bowline does not know by any
field. Pure.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

from bowline.api import names
from bowline.api.field_error import join_path
from bowline.api.meta import Object

_MOST: Final = 20_000
# Of fields: gpu, gpuType, requestGPU, numGpus; of values: nvidia.com/gpu; of images.
_FIELD: Final = re.compile(r"gpus?(?![a-z])|GPU")
_DEVICE: Final = re.compile(r"^nvidia\.com/")
_IMAGE: Final = re.compile(r"nvidia|cuda")


def gpu_trace(raw: Object) -> str:
    """Return where an object of a kind that is not known names a GPU, and what to do; empty if it names none."""
    path = next(_traces(raw, is_known=False), "")
    kind = raw.get("kind")
    return f"{path} names a GPU; add the kind to config.workloads: {{kind: {kind}}}" if path else ""


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
    is_device = key == names.RESOURCE_GPU or key.startswith((names.RESOURCE_MIG_PREFIX, names.NV_CONTAINER))
    return is_device or key in names.SHARE_ANNOTATIONS


def _is_none(content: Any) -> bool:
    return isinstance(content, dict | list) or content in (None, "", "0", 0, False)


def _names_gpu(key: str, content: Any) -> bool:
    if _is_none(content):
        return False
    text = str(content)
    is_image = key.lower().endswith("image") and _IMAGE.search(text) is not None
    return is_image or _FIELD.search(key) is not None or _DEVICE.match(text) is not None
