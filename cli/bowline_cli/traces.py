"""Signs of GPUs in an object of a kind that Bowline does not know: its pods may need a review. Pure."""

from collections.abc import Iterator
from typing import Any

from bowline.api import names
from bowline.api.field_error import join_path
from bowline.api.meta import Object

_MOST = 20_000


def gpu_trace(raw: Object) -> str:
    """Return where the object names a GPU, and what to do; empty if it names none."""
    path = next(_traces(raw), "")
    kind = raw.get("kind")
    return f"{path} names a GPU; add the kind to config.workloads: {{kind: {kind}}}" if path else ""


def _traces(raw: Any) -> Iterator[str]:
    stack, left = [("", raw)], _MOST
    while stack and left:
        left -= 1
        path, value = stack.pop()
        if isinstance(value, dict):
            for key, content in value.items():
                place = join_path(path, key if key.isidentifier() else f"[{key}]")
                is_place = "resources" in path or "annotations" in path
                if is_place and _is_gpu(key) and not isinstance(content, dict | list):
                    yield place
                stack.append((place, content))
        elif isinstance(value, list):
            stack += [(f"{path}[{index}]", item) for index, item in enumerate(value)]


def _is_gpu(key: str) -> bool:
    is_device = key == names.RESOURCE_GPU or key.startswith((names.RESOURCE_MIG_PREFIX, names.NV_CONTAINER))
    return is_device or key in names.SHARE_ANNOTATIONS
