"""Rules for whole GPUs and MIG slices in the resources of containers.

Pure. The API server denies the same after the webhook; checking here reports all errors together, also offline. Never
stricter than the API server: rounding and comparison are the same (``as_stored``). The API server copies limits to
absent requests, so a request that equals its limit is not checked again.
"""

from collections.abc import Iterator

from shared.api import names
from shared.api.field_error import FieldError
from shared.framework.plugin import Inventory
from shared.plugins.gpu_request.pod import Amount, Container, PodView, is_device
from shared.plugins.gpu_request.share import too_many


def device_faults(pod: PodView, inventory: Inventory | None) -> Iterator[FieldError]:
    """Yield the errors of every resource entry that names devices."""
    for amount in pod.pod_level:
        message = "GPUs cannot be asked for at pod level; move this to the resources of the container that uses them"
        yield FieldError("gpu_request/pod-level", amount.path, amount.written, message)
    for container in pod.containers:
        if not container.is_plain:
            yield from _container_faults(container)
    if inventory is not None and pod.whole_gpus > inventory.max_gpus_per_node > 0:
        yield FieldError("gpu_request/whole-inventory", "spec", pod.whole_gpus, too_many(inventory), is_warning=True)


def _container_faults(container: Container) -> Iterator[FieldError]:
    for resource in sorted({*container.limits, *container.requests}):
        if is_device(resource):
            yield from _entry_faults(container, resource)


def _entry_faults(container: Container, resource: str) -> Iterator[FieldError]:
    limit, request = container.limits.get(resource), container.requests.get(resource)
    if limit is not None:
        yield from _amount_faults(limit)
    if request is None or (limit is not None and _same(limit, request)):
        return
    yield from _amount_faults(request)
    if limit is None:
        path = f"{container.path}.resources.limits[{resource}]"
        message = f"is required, because GPUs are not overcommitted; set it to the request, {request.told}"
        yield FieldError("gpu_request/limit-missing", path, None, message)
    elif limit.quantity is not None and request.quantity is not None:
        message = f"must be the same as the limit, {limit.told}; leave the request out and it is"
        yield FieldError("gpu_request/request-differs", request.path, request.written, message)


def _amount_faults(amount: Amount) -> Iterator[FieldError]:
    if amount.quantity is None:
        message = "must be a whole number, such as 1"
        yield FieldError("gpu_request/quantity-format", amount.path, amount.written, message)
    elif amount.quantity < 0 or amount.quantity != amount.quantity.to_integral_value():
        message = "must be a whole number, 0 or more"
        if amount.resource == names.RESOURCE_GPU and amount.quantity > 0:
            message += f"; for a part of a GPU use the annotation {names.GPU_FRACTION} instead"
        yield FieldError("gpu_request/quantity-integer", amount.path, amount.written, message)


def _same(limit: Amount, request: Amount) -> bool:
    return limit.quantity == request.quantity if limit.quantity is not None else limit.written == request.written
