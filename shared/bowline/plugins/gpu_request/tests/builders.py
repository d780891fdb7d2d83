"""Small pods for the tables of these tests, and verdicts short enough to compare."""

from typing import Any

from bowline.api import names
from bowline.api.field_error import FieldError
from bowline.plugins.gpu_request.rules import Policy, request_errors

GPU = names.RESOURCE_GPU
MIG = "nvidia.com/mig-1g.10gb"
CLASS = names.RESOURCE_DEVICE_CLASS_PREFIX + "gpu.example.com"
COUNT = names.GPU_FRACTION_NUM_DEVICES
NAME = names.GPU_FRACTION_CONTAINER
LIMIT = f"spec.containers[0].resources.limits[{GPU}]"
REQUEST = f"spec.containers[0].resources.requests[{GPU}]"
DEFAULT = Policy()

Json = dict[str, Any]
Found = list[tuple[str, str]]


def container(name: str = "main", *, limits: Any = None, requests: Any = None, **more: Any) -> Json:
    """Return a container; ``limits`` and ``requests`` are left out when None."""
    resources = {key: value for key, value in (("limits", limits), ("requests", requests)) if value is not None}
    return {"name": name, "resources": resources, **more}


def claiming(name: str, *claims: str) -> Json:
    """Return a container that uses DRA claims."""
    return {"name": name, "resources": {"claims": [{"name": claim} for claim in claims]}}


def pod(annotations: Json | None = None, *containers: Json, init: list[Json] | None = None, **spec: Any) -> Json:
    """Return a pod; without ``containers`` it has one, main, without requests."""
    return {
        "metadata": {"name": "p", "annotations": annotations or {}},
        "spec": {"initContainers": init or [], "containers": list(containers or (container(),)), **spec},
    }


def brief(errors: list[FieldError]) -> Found:
    """Return rule and path of each error: a warning's rule in brackets, an annotation's path as its key."""
    rules_and_paths = []
    for fault in errors:
        rule = fault.rule.id.removeprefix("gpu_request/")
        path = fault.path
        if path.startswith("metadata.annotations["):
            path = path.removeprefix("metadata.annotations[").removesuffix("]")
        rules_and_paths.append((f"[{rule}]" if fault.is_warning else rule, path))
    return rules_and_paths


def violations(raw: Json, policy: Policy = DEFAULT) -> Found:
    """Validate a new pod."""
    return brief(request_errors(raw, policy))
