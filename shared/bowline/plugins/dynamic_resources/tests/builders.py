"""Claims and pods for tables: only the fields that the rules read."""

from typing import Any

from bowline.api import names
from bowline.api.bindrequest import BindRequestSpec
from bowline.api.meta import ObjectKey, ObjectUID
from bowline.plugins.dynamic_resources.claim import Consumer, pod_consumer
from bowline.plugins.dynamic_resources.rules import RequiredClaim

POD_UID = "pod-uid"
GROUP_UID = ObjectUID("group-uid")
IN_GROUP: dict[str, Any] = {"schedulingGroup": {"podGroupName": "gang"}}
GROUP_REFERENCE = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "gang", "uid": GROUP_UID}


def pod(status: dict[str, Any] | None = None, name: str = "pod", **spec: Any) -> dict[str, Any]:
    """The pod in question."""
    return {
        "metadata": {"namespace": "ns", "name": name, "uid": POD_UID, "resourceVersion": "7"},
        "spec": spec,
        "status": status or {},
    }


def result(device: str = "d0", **fields: Any) -> dict[str, Any]:
    """One allocated device."""
    return {"request": "dev", "driver": "dra.example", "pool": "node", "device": device, **fields}


def allocation(*results: dict[str, Any]) -> dict[str, Any]:
    """An allocation of these devices; of one if none are given."""
    return {"devices": {"results": list(results) or [result()]}}


def user(uid: str = POD_UID) -> dict[str, Any]:
    """An entry of reservedFor."""
    return {"resource": "pods", "name": "pod" if uid == POD_UID else f"pod-{uid}", "uid": uid}


def claim(status: dict[str, Any] | None = None, *finalizers: str, **metadata: Any) -> dict[str, Any]:
    """A claim for one device, as stored."""
    requests = [{"name": "dev", "exactly": {"deviceClassName": "gpu.example.com"}}]
    stored: dict[str, Any] = {
        "metadata": {"namespace": "ns", "name": "one", "uid": "claim-uid", "resourceVersion": "5", **metadata},
        "spec": {"devices": {"requests": requests}},
    }
    if finalizers:
        stored["metadata"]["finalizers"] = list(finalizers)
    if status is not None:
        stored["status"] = status
    return stored


def protected_claim(status: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    """A claim with the finalizer."""
    return claim(status, names.RESOURCE_CLAIM_PROTECTION, **metadata)


def without_requests(stored: dict[str, Any]) -> dict[str, Any]:
    """The same claim, with a spec that requests no device."""
    return {**stored, "spec": {"devices": {}}}


def pod_group(*entries: dict[str, str]) -> dict[str, Any]:
    """The pod's PodGroup, with these shared claims."""
    return {"metadata": {"namespace": "ns", "name": "gang", "uid": GROUP_UID}, "spec": {"resourceClaims": [*entries]}}


def group_owner(uid: str = GROUP_UID, version: str = "v1beta1", kind: str = "PodGroup") -> dict[str, Any]:
    """Metadata of a claim that was created for a PodGroup."""
    api_version = f"scheduling.k8s.io/{version}"
    owner = {"apiVersion": api_version, "kind": kind, "name": "gang", "uid": uid, "controller": True}
    return {"ownerReferences": [owner]}


def owner_meta(by: str = POD_UID, controller: bool = True) -> dict[str, Any]:
    """Metadata of a claim that was created for a pod."""
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "pod", "uid": by, "controller": controller}
    return {"ownerReferences": [owner]}


def required_claim(
    of: dict[str, Any] | None, *, is_generated: bool = False, shared_by: dict[str, Any] | None = None
) -> RequiredClaim:
    """The request's entry for the claim; ``shared_by``: the reference of the PodGroup that shares it."""
    consumer = pod_consumer(pod()) if shared_by is None else Consumer(GROUP_UID, shared_by)
    key = ObjectKey("ns", "one")
    return RequiredClaim("claim dev of the pod (one)", key, of, consumer, ObjectUID(POD_UID), is_generated)


def spec(*decisions: tuple[str, dict[str, Any] | None]) -> BindRequestSpec:
    """A request's spec with these allocations; None leaves the field out."""
    return BindRequestSpec.model_validate(
        {
            "podName": "pod",
            "selectedNode": "node",
            "resourceClaimAllocations": [
                {"name": name} if of is None else {"name": name, "allocation": of} for name, of in decisions
            ],
        }
    )
