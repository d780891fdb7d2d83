"""Accessors for ResourceClaims and the PodGroups that share them, on raw objects. Pure; decides nothing.

Absent and null fields read as empty, as in the API. A claim that is an entry of a PodGroup's ``spec.resourceClaims``
is one claim for all pods of the group (KEP-5729): it is reserved for the PodGroup, never for a pod, and its lifecycle
is the PodGroup's. A pod knows only its PodGroup's name.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bowline.api import names
from bowline.api.meta import Object, ObjectKey, ObjectRef, ObjectUID, key_of, status_of, uid_of, version_of
from bowline.api.quantity import parse_quantity

_CLAIM = ("resource.k8s.io/v1", "ResourceClaim")
# An entry of a pod and one of its PodGroup are the same claim if all of these are equal.
_IDENTITY = ("name", "resourceClaimName", "resourceClaimTemplateName")


@dataclass(frozen=True, slots=True)
class Consumer:
    """What a claim is reserved for: the pod, or the PodGroup that shares the claim among its pods.

    ``reference`` is its entry of ``status.reservedFor``.
    """

    uid: ObjectUID
    reference: Mapping[str, Any]


def pod_consumer(pod: Object) -> Consumer:
    """Return the pod as a consumer."""
    # Without apiGroup: pods belong to the core group.
    uid = uid_of(pod)
    return Consumer(uid, {"resource": "pods", "name": pod["metadata"]["name"], "uid": uid})


def pod_group_name(pod: Object) -> str:
    """Return the name of the pod's PodGroup; empty if it has none."""
    return str((pod["spec"].get("schedulingGroup") or {}).get("podGroupName") or "")


def claim_consumer(pod: Object, entry: Mapping[str, Any], pod_group: Object | None) -> Consumer:
    """Return what a claim of the pod is reserved for. ``entry``: of the pod's ``spec.resourceClaims``.

    ``pod_group``: the pod's PodGroup; None if it has none.
    """
    if pod_group is None or _identity(entry) not in map(_identity, pod_group["spec"].get("resourceClaims") or ()):
        return pod_consumer(pod)
    uid = uid_of(pod_group)
    return Consumer(
        uid,
        {
            "apiGroup": names.POD_GROUP_GROUP,
            "resource": names.POD_GROUP_PLURAL,
            "name": pod_group["metadata"]["name"],
            "uid": uid,
        },
    )


def is_pod_group(owner: Mapping[str, Any]) -> bool:
    """Return whether an owner reference names a PodGroup of Kubernetes, in any version of its API."""
    group = str(owner.get("apiVersion") or "").partition("/")[0]
    return owner.get("kind") == names.POD_GROUP_KIND and group == names.POD_GROUP_GROUP


def _identity(entry: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(entry.get(field) or "") for field in _IDENTITY)


def claim_ref(key: ObjectKey, claim: Object | None = None) -> ObjectRef:
    """Return a reference to wait for a change of the claim: after its version if it was read, else any change."""
    if claim is None:
        return ObjectRef(*_CLAIM, key)
    return ObjectRef(*_CLAIM, key, uid_of(claim), version_of(claim))


def pod_ref(pod: Object) -> ObjectRef:
    """Return a reference to wait for a change of the pod from this version on."""
    return ObjectRef("v1", "Pod", key_of(pod), uid_of(pod), version_of(pod))


def controller_of(claim: Object) -> Mapping[str, Any]:
    """Return the claim's controller owner; empty if there is none."""
    owners = claim["metadata"].get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), {})


def is_controlled_by(claim: Object, uid: ObjectUID) -> bool:
    """Return whether the object of that UID is the claim's controller owner."""
    return controller_of(claim).get("uid") == uid


def same_devices(allocation: Mapping[str, Any], decision: Mapping[str, Any]) -> bool:
    """Return whether two allocations give the same devices, in the same shares, to the same requests.

    That is what a scheduler decides. The other fields follow from it (node selector, configuration of class and
    claim) or are filled in and rewritten by the API server (timestamp, defaults, format of quantities), so they are
    not compared.
    """
    return sorted(map(_share_of, results_of(allocation))) == sorted(map(_share_of, results_of(decision)))


def _share_of(result: Mapping[str, Any]) -> tuple[str, ...]:
    words = [str(result.get(field) or "") for field in ("request", "driver", "pool", "device", "shareID")]
    capacity = result.get("consumedCapacity") or {}
    shares = [f"{name}={_amount(capacity[name])}" for name in sorted(capacity)]
    return (*words, str(bool(result.get("adminAccess"))), *shares)


def _amount(value: Any) -> str:
    try:
        return str(parse_quantity(value).normalize())
    except (ValueError, ArithmeticError):  # of a claim that another client has allocated: 1e1000000
        return str(value)


def allocation_of(claim: Object) -> Mapping[str, Any] | None:
    """Return the allocation; None while there is none."""
    return status_of(claim).get("allocation")


def consumers_of(claim: Object) -> Sequence[Mapping[str, Any]]:
    """Return the claim's consumers (``status.reservedFor``)."""
    return status_of(claim).get("reservedFor") or ()


def finalizers_of(claim: Object) -> tuple[str, ...]:
    """Return the finalizers."""
    return tuple(claim["metadata"].get("finalizers") or ())


def results_of(allocation: Mapping[str, Any] | None) -> Sequence[Mapping[str, Any]]:
    """Return the allocated devices; empty without an allocation."""
    return ((allocation or {}).get("devices") or {}).get("results") or ()


def requests_of(claim: Object) -> Sequence[Mapping[str, Any]]:
    """Return the device requests of the claim's spec."""
    return ((claim.get("spec") or {}).get("devices") or {}).get("requests") or ()


def requests_devices(claim: Object) -> bool:
    """Return whether the claim's spec requests any device; one that requests none is allocated without devices."""
    return bool(requests_of(claim))


def uids_of(consumers: Sequence[Mapping[str, Any]]) -> Collection[str]:
    """Return the UIDs of the consumers."""
    return {str(entry.get("uid")) for entry in consumers}


def true_conditions(claim: Object, result: Mapping[str, Any]) -> set[str]:
    """Return the conditions that the driver of an allocated device reports as True."""
    for device_status in status_of(claim).get("devices") or ():
        if device_of(device_status) == device_of(result):
            conditions = device_status.get("conditions") or ()
            return {c["type"] for c in conditions if c.get("status") == "True"}
    return set()


def device_of(result: Mapping[str, Any]) -> str:
    """Return the device's full name, from an allocation result or a driver's device status."""
    words = [str(result.get(field) or "") for field in ("driver", "pool", "device", "shareID")]
    return "/".join(word for word in words if word)


def shown_devices(allocation: Mapping[str, Any]) -> str:
    """Return the devices as a text for messages."""
    return ", ".join(device_of(result) for result in results_of(allocation)) or "no device"
