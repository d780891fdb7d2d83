"""The claim that stands for a pod's extended resources: nobody made it, so the one who binds the pod does.

Pure. Its name is fixed by the pod's UID: whoever comes back after a crash or a lost reply asks for the same name and
finds what is there, where a name drawn by the API server would leave one claim more after each.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

from shared.api import names
from shared.api.bindrequest import BindRequestSpec, ExtendedResourceClaimAllocation
from shared.api.meta import Object, ObjectKey, uid_of
from shared.api.quantity import parse_quantity
from shared.framework.status import Reason, Status
from shared.plugins.dynamic_resources.claim import results_of
from shared.plugins.dynamic_resources.rules import Wanted, wanted_claims

# The API server cuts the base of a name that it makes up so that the whole has 63 characters; so does this.
_NAME, _RANDOM, _LONGEST = 63, 10, 253


def wanted_extended(pod: Object, extended: ExtendedResourceClaimAllocation) -> Wanted:
    """Return the pod's claim: the one its status names, else the one to be made."""
    return _wanted(pod, told_status(pod).get("resourceClaimName") or claim_name(pod), extended)


def wanted_new(pod: Object, extended: ExtendedResourceClaimAllocation) -> Wanted:
    """Return the claim to be made, whatever the pod's status says."""
    return _wanted(pod, claim_name(pod), extended)


def told_status(pod: Object) -> Mapping[str, Any]:
    """Return what the pod's status says of such a claim; empty if it says nothing."""
    return (pod.get("status") or {}).get("extendedResourceClaimStatus") or {}


def claim_name(pod: Object) -> str:
    """Return the name of the claim: its visible part as Kubernetes generates it, then a digest of the pod's UID."""
    end = hashlib.sha256(uid_of(pod).encode()).hexdigest()[:_RANDOM]
    return _base(pod)[: _NAME - _RANDOM] + end


def claim_of(pod: Object, extended: ExtendedResourceClaimAllocation) -> dict[str, Any]:
    """Return the claim to create. It carries its finalizer from the start, and ends with the pod."""
    # Without blockOwnerDeletion, which some clusters grant only to those who may write the pod's finalizers.
    owner = {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": pod["metadata"]["name"],
        "uid": uid_of(pod),
        "controller": True,
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "name": claim_name(pod),
            "generateName": _base(pod)[:_LONGEST],
            "namespace": pod["metadata"]["namespace"],
            "annotations": {names.EXTENDED_RESOURCE_CLAIM: "true"},
            "finalizers": [names.RESOURCE_CLAIM_PROTECTION],
            "ownerReferences": [owner],
        },
        "spec": {"devices": {"requests": list(extended.device_requests)}},
    }


def claims_of(pod: Object, spec: BindRequestSpec) -> frozenset[ObjectKey]:
    """Return the keys of all claims that the pod needs, as far as they can be named yet."""
    named = {one.key for one in wanted_claims(pod, spec) if isinstance(one, Wanted)}
    extended = spec.extended_resource_claim_allocation
    if extended is not None and extended.allocation:
        named |= {wanted_extended(pod, extended).key, wanted_new(pod, extended).key}
    return frozenset(named)


def undecided(extended: ExtendedResourceClaimAllocation) -> Status | None:
    """Return why the allocation cannot be written: it has no device for the devices requested. None if it can."""
    if results_of(extended.allocation) or not extended.device_requests:
        return None
    why = (
        "spec.extendedResourceClaimAllocation.allocation decides no device for its deviceRequests; create a request "
        "with allocation.devices.results"
    )
    return Status.fatal(why, Reason.INVALID)


def not_offered(node: Object, extended: ExtendedResourceClaimAllocation) -> Status | None:
    """Return why the pod cannot do without a claim: the node itself does not offer the resources. None if it does.

    Without this check the pod would run without its devices: a kubelet ignores extended resources that its node does
    not have.
    """
    offered = (node.get("status") or {}).get("allocatable") or {}
    asked = {str(mapping.get("resourceName", "")) for mapping in extended.container_mappings}
    missing = sorted(resource for resource in asked if parse_quantity(offered.get(resource)) <= 0)
    if asked and not missing:
        return None
    name = node["metadata"]["name"]
    lacks = f"node {name} does not offer {', '.join(missing)}" if missing else "it maps them to no resource"
    why = (
        "spec.extendedResourceClaimAllocation has no allocation for the pod's extended resources, and "
        f"{lacks}; create a request with an allocation"
    )
    return Status.fatal(why, Reason.INVALID)


def pod_status(name: str, extended: ExtendedResourceClaimAllocation) -> dict[str, Any]:
    """Return what the pod's status says of the claim; the kubelet reads it."""
    return {"resourceClaimName": name, "requestMappings": list(extended.container_mappings)}


def _wanted(pod: Object, name: str, extended: ExtendedResourceClaimAllocation) -> Wanted:
    key = ObjectKey(pod["metadata"]["namespace"], name)
    return Wanted(f"the claim of the pod's extended resources ({name})", key, extended.allocation, of_pod=True)


def _base(pod: Object) -> str:
    return str(pod["metadata"]["name"]) + names.EXTENDED_RESOURCE_CLAIM_INFIX
