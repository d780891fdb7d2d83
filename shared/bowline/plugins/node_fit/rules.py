"""Whether a pod fits on a node, computed as the kubelet computes it. Pure.

A pod occupies the maximum that it needs at any time: its containers plus sidecars, or one init container plus the
sidecars started before it; then its overhead. Pod-level resources replace the sum of its containers. A container that
is being resized counts with the larger of its current and desired resources.

Counted are cpu, memory, GPUs (whole and MIG), the number of pods, and devices of ResourceClaims that claims cannot
share: the resources for which stale scheduler data causes rejections in practice. The kubelet also rejects pods for
ephemeral storage, huge pages, other extended resources, host ports and node affinity; these are left to the
scheduler.
"""

from collections.abc import Iterable, Mapping
from decimal import Decimal
from itertools import islice
from typing import Any

from bowline.api import names
from bowline.api.bindrequest import BindRequestSpec
from bowline.api.meta import Object, ObjectKey, has_ended
from bowline.api.quantity import parse_quantity
from bowline.framework.interface.status import Status
from bowline.framework.reason import Reason, Suggestion

CPU, MEMORY, PODS = "cpu", "memory", "pods"
# Before the name of a device of a ResourceClaim, which is counted as a resource of which the node has one.
DEVICE = "device "

# Of a pod, as many as plugin dynamic_resources allocates. Each is read; others are ignored.
MAX_CLAIMS = 128

# Of one entry, as the kubelet counts in int64: a pod may request 1e2147483647.
_MOST = Decimal(2**63 - 1)

# Amounts by resource; absent means not requested.
Amounts = Mapping[str, Decimal]


def exclusive_devices(allocations: Iterable[Mapping[str, Any] | None]) -> Amounts:
    """Return one of each device that these allocations (AllocationResults) give to their claims alone.

    Not of a device that its driver lets several claims share, nor of one for administrators.
    """
    devices = [(allocation or {}).get("devices") or {} for allocation in allocations]
    results = [result for entry in devices for result in entry.get("results") or ()]
    return {
        f"{DEVICE}{result.get('driver')}/{result.get('pool')}/{result.get('device')}": Decimal(1)
        for result in results
        if not result.get("shareID") and not result.get("adminAccess")
    }


def decided_devices(spec: BindRequestSpec) -> Amounts:
    """Return the devices that the request allocates to claims of its pod alone."""
    extended = spec.extended_resource_claim_allocation
    decisions = [entry.allocation for entry in spec.resource_claim_allocations]
    return exclusive_devices([*decisions, extended.allocation if extended is not None else None])


def claims_of(pod: Object) -> frozenset[ObjectKey]:
    """Return the ResourceClaims of a pod that has not ended, at most MAX_CLAIMS."""
    if has_ended(pod) or "spec" not in pod:
        return frozenset()
    status = pod.get("status") or {}
    sources = [
        _extended_status(pod),
        *(status.get("resourceClaimStatuses") or ()),
        *(pod["spec"].get("resourceClaims") or ()),
    ]
    claim_names = dict.fromkeys(name for source in sources if (name := source.get("resourceClaimName")))
    return frozenset(ObjectKey(pod["metadata"]["namespace"], name) for name in islice(claim_names, MAX_CLAIMS))


def is_counted(resource: str) -> bool:
    """Return whether the resource is compared, besides the number of pods."""
    return resource in (CPU, MEMORY, names.RESOURCE_GPU) or resource.startswith(names.RESOURCE_MIG_PREFIX)


def pod_requests(pod: Object) -> Amounts:
    """Return what the pod occupies on its node, including one of ``pods``."""
    spec = pod["spec"]
    statuses = _container_statuses(pod)
    infeasible = _is_resize_infeasible(pod)
    running: dict[str, Decimal] = {}
    for container in spec.get("containers") or ():
        running = _sum(running, _container_requests(container, statuses, infeasible))
    sidecars: dict[str, Decimal] = {}
    peak: dict[str, Decimal] = {}
    for container in spec.get("initContainers") or ():
        requests = _container_requests(container, statuses, infeasible)
        if container.get("restartPolicy") == "Always":
            sidecars = _sum(sidecars, requests)
            peak = _highest(peak, sidecars)
        else:
            peak = _highest(peak, _sum(sidecars, requests))
    total = _highest(peak, _sum(running, sidecars))
    total |= _parsed_amounts((spec.get("resources") or {}).get("requests"))
    total = _sum(total, _parsed_amounts(spec.get("overhead")))
    by_claim = _resource_names(_extended_status(pod).get("requestMappings") or ())
    requests = {resource: amount for resource, amount in total.items() if amount > 0 and resource not in by_claim}
    return requests | {PODS: Decimal(1)}


def decided_requests(pod: Object, spec: BindRequestSpec) -> Amounts:
    """Return what the pod occupies on its node by the decision, devices of its claims included."""
    extended = spec.extended_resource_claim_allocation
    mappings = extended.container_mappings if extended is not None and extended.allocation else ()
    return {**without(pod_requests(pod), _resource_names(mappings)), **decided_devices(spec)}


def allocatable(node: Object) -> Amounts:
    """Return the node's allocatable amounts of the counted resources."""
    quantities = (node.get("status") or {}).get("allocatable") or {}
    return _parsed_amounts(quantities) | {PODS: _parsed_amount(quantities.get(PODS))}


def occupied_by(pod: Object) -> Amounts:
    """Return what the pod occupies on its node; one that has ended, or is too large to be read, occupies nothing."""
    return {} if has_ended(pod) or "spec" not in pod else pod_requests(pod)


def shortages(requests: Amounts, has: Amounts, usage: Amounts) -> dict[str, str]:
    """Return a text for messages by resource, for each resource that is short; empty if the pod fits."""
    return {
        resource: f"{resource} (requests {_format(amount)}, "
        f"free {_format(free)} of {_format(has.get(resource, Decimal(0)))})"
        for resource, amount in sorted(requests.items())
        if amount > (free := has.get(resource, Decimal(0)) - usage.get(resource, Decimal(0)))
    }


def verdict(node: Object, requests: Amounts, usage: Amounts, assumed_usage: Amounts) -> Status:
    """Return OK if the pod fits beside the node's pods (``usage``) and the assumed ones (``assumed_usage``).

    Otherwise return the failure: terminal if the node's pods alone leave too little, retriable if only the assumed
    pods do.
    """
    name, elsewhere = node["metadata"]["name"], Suggestion.RESCHEDULE_ELSEWHERE
    has = {**allocatable(node), **{key: Decimal(1) for key in requests if key.startswith(DEVICE)}}
    short = shortages(requests, has, usage)
    if short:
        why = f"node {name} has too little left of {', '.join(short.values())}; choose another node"
        is_device = any(key.startswith(DEVICE) for key in short)
        return Status.fatal(why, Reason.DEVICE_CONFLICT if is_device else Reason.REJECTED, elsewhere)
    short = shortages(requests, has, total((usage, assumed_usage)))
    if short:
        # Retriable: the assumed pods may not be bound.
        listing = ", ".join(short.values())
        why = f"node {name} has too little left beside pods that are about to run there: {listing}"
        return Status.retry(why, suggestion=elsewhere)
    return Status.ok()


def total(several: Iterable[Amounts]) -> Amounts:
    """Return the sum."""
    result: dict[str, Decimal] = {}
    for amounts in several:
        result = _sum(result, amounts)
    return result


def _extended_status(pod: Object) -> Object:
    """Return the pod's status of the claim for its extended resources; empty if it has none."""
    return (pod.get("status") or {}).get("extendedResourceClaimStatus") or {}


def _resource_names(mappings: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Return the resources that a claim provides by these mappings, so that the node's allocatable need not."""
    return frozenset(str(mapping.get("resourceName") or "") for mapping in mappings)


def without(amounts: Amounts, resources: Iterable[str]) -> Amounts:
    """Return the amounts without the given resources."""
    exclusions = set(resources)
    return {resource: amount for resource, amount in amounts.items() if resource not in exclusions}


def _container_requests(container: Object, statuses: Mapping[str, Object], infeasible: bool) -> dict[str, Decimal]:
    requests = (container.get("resources") or {}).get("requests")
    amounts = _parsed_amounts(requests)
    status = statuses.get(container.get("name", ""), {})
    allocation, running_with = status.get("allocatedResources"), (status.get("resources") or {}).get("requests")
    if all(not actual or actual == requests for actual in (allocation, running_with)):
        return amounts  # true of nearly every container; parsing quantities dominates the cost of a check
    has = _highest(_parsed_amounts(allocation), _parsed_amounts(running_with))
    # A resize that is infeasible on the node is not counted: the container keeps its current resources.
    return has if infeasible and has else _highest(amounts, has)


def _container_statuses(pod: Object) -> dict[str, Object]:
    status = pod.get("status") or {}
    statuses = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    return {entry["name"]: entry for entry in statuses}


def _is_resize_infeasible(pod: Object) -> bool:
    return any(
        condition.get("type") == "PodResizePending" and condition.get("reason") == "Infeasible"
        for condition in (pod.get("status") or {}).get("conditions") or ()
    )


def _parsed_amounts(quantities: Any) -> dict[str, Decimal]:
    return {key: _parsed_amount(value) for key, value in (quantities or {}).items() if is_counted(key)}


def _parsed_amount(quantity: Any) -> Decimal:
    return max(-_MOST, min(parse_quantity(quantity), _MOST))


def _sum(left: Amounts, right: Amounts) -> dict[str, Decimal]:
    return {key: left.get(key, Decimal(0)) + right.get(key, Decimal(0)) for key in {**left, **right}}


def _highest(left: Amounts, right: Amounts) -> dict[str, Decimal]:
    return {key: max(left.get(key, Decimal(0)), right.get(key, Decimal(0))) for key in {**left, **right}}


def _format(amount: Decimal) -> str:
    return f"{amount.normalize():f}"
