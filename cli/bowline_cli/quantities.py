"""The API server's own rules for quantities, which hold for pods of every scheduler. Pure.

In a cluster the API server applies them, to pods and to Kubernetes' own workloads; of an object of another kind it
denies the pods, later. Offline they are applied to every pod, so that lint denies what a cluster denies.
"""

from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Final

from bowline.api.field_error import FieldError, format_value
from bowline.api.meta import Object
from bowline.api.quantity import as_stored, parse_quantity
from bowline.api.rule import Rule

QUANTITY: Final = Rule(
    "kubernetes/quantity",
    "a container's quantity is none, is negative, or is not whole although it counts devices; only offline: in "
    "a cluster the API server itself denies it",
    invalid="limits: {memory: much}",
    valid="limits: {memory: 1Gi}",
)
LIMIT: Final = Rule(
    "kubernetes/limit",
    "a container's request is above its limit, or counts devices and has no limit or another one; only offline",
    invalid="limits: {cpu: 1}\nrequests: {cpu: 2}",
    valid="limits: {cpu: 2}\nrequests: {cpu: 1}",
    needs_whole=True,
)
POD_LEVEL: Final = Rule(
    "kubernetes/resource",
    "a pod requests for all its containers another resource than CPU, memory and huge pages; only offline",
    invalid="resources: {limits: {example.com/device: 1}}",
    valid="resources: {limits: {cpu: 1}}",
)
RULES: Final = (QUANTITY, LIMIT, POD_LEVEL)


_LISTS = ("initContainers", "containers")


def quantity_errors(spec: Object) -> Iterator[FieldError]:
    """Yield the errors of a pod spec whose structure is valid; paths begin with ``spec``."""
    for field in _LISTS:
        for index, container in enumerate(spec.get(field) or ()):
            resources = container.get("resources") or {}
            yield from _container_errors(resources, f"spec.{field}[{index}].resources")
    for part in ("limits", "requests"):
        for resource, value in ((spec.get("resources") or {}).get(part) or {}).items():
            if resource not in ("cpu", "memory") and not resource.startswith("hugepages-"):
                message = "must be cpu, memory or hugepages-SIZE: other resources are those of a container"
                yield FieldError(POD_LEVEL, f"spec.resources.{part}[{resource}]", value, message)


def _container_errors(resources: Object, path: str) -> Iterator[FieldError]:
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for name, entries in (("limits", limits), ("requests", requests)):
        for resource, value in entries.items():
            error = _value_error(resource, value)
            if error:
                yield FieldError(QUANTITY, f"{path}.{name}[{resource}]", value, error)
    for resource, value in requests.items():
        request, limit = _quantity(value), _quantity(limits[resource]) if resource in limits else None
        if request is None:
            continue
        is_device = not _is_overcommitted(resource)
        if resource not in limits and is_device:
            amount = "a corrected request" if _value_error(resource, value) else format_value(value)
            message = f"is required, because {resource} is not overcommitted; set it to {amount}"
            yield FieldError(LIMIT, f"{path}.limits[{resource}]", None, message)
        elif limit is not None and (request > limit or (is_device and request != limit)):
            rule = "the same as" if is_device else "at most"
            message = f"must be {rule} the limit, {format_value(limits[resource])}"
            yield FieldError(LIMIT, f"{path}.requests[{resource}]", value, message)


def _value_error(resource: str, value: Any) -> str:
    quantity = _quantity(value)
    if quantity is None:
        return 'must be a quantity, such as 1, "500m" or "16Gi"'
    if quantity < 0:
        return "must be 0 or more"
    if _is_extended(resource) and quantity != quantity.to_integral_value():
        return "must be a whole number"
    return ""


def _quantity(value: Any) -> Decimal | None:
    """Return the quantity as the API server stores it, null as 0; None if it cannot be parsed."""
    try:
        return as_stored(parse_quantity(value))
    except ValueError:
        return None


def _is_native(resource: str) -> bool:
    return "/" not in resource or "kubernetes.io/" in resource


def _is_extended(resource: str) -> bool:
    return not _is_native(resource) and not resource.startswith("requests.")


def _is_overcommitted(resource: str) -> bool:
    return _is_native(resource) and not resource.startswith("hugepages-")
