"""ResourceClaims, classes, slices and allocations for tests, and checks that nothing is left of a use."""

from collections.abc import Mapping
from typing import Any

import pytest

from bowline.api import names
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.errors import LocalApiError
from bowline.testing import builders
from tests.live import LiveCluster

API = "/apis/resource.k8s.io/v1"
CLASS = "gpu.example.com"
DRIVER = "dra.example.com"
NODE = "gpu-node-0"


def has_api(cluster: Cluster) -> bool:
    """Whether the API server serves ResourceClaims in Bowline's version: from 1.34 on."""
    try:
        cluster.api.get(API)
    except LocalApiError as error:
        if error.status != 404:
            raise
        return False
    return True


def require_api(cluster: Cluster) -> None:
    """Skip the test if the API server does not serve ResourceClaims in Bowline's version."""
    if not has_api(cluster):
        pytest.skip("this Kubernetes does not serve resource.k8s.io/v1")


def publish(cluster: Cluster, devices: int = 4) -> None:
    """Publish a device class, and a slice of devices on the node, unless they exist."""
    require_api(cluster)
    for plural, body in (
        ("deviceclasses", builders.device_class(CLASS, DRIVER)),
        ("resourceslices", builders.resource_slice(NODE, [f"d{index}" for index in range(devices)], DRIVER)),
    ):
        path = f"{API}/{plural}/{body['metadata']['name']}?fieldManager=test&force=true"
        cluster.api.request("PATCH", path, body, "application/apply-patch+yaml")


def claim_spec() -> dict[str, Any]:
    """One device of the class, as the request `dev`."""
    return {"devices": {"requests": [{"name": "dev", "exactly": {"deviceClassName": CLASS}}]}}


def claim(name: str) -> dict[str, Any]:
    """A claim for one device."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": claim_spec(),
    }


def template(name: str) -> dict[str, Any]:
    """A ResourceClaimTemplate for one device."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": claim_spec()},
    }


def allocation(device: str = "d0", request: str = "dev", **result: Any) -> dict[str, Any]:
    """The allocation that a scheduler writes into a request: one device of the node."""
    result_entry = {"request": request, "driver": DRIVER, "pool": NODE, "device": device, **result}
    on_node = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [NODE]}]}
    return {"devices": {"results": [result_entry]}, "nodeSelector": {"nodeSelectorTerms": [on_node]}}


def claim_decisions(*devices: str, **result: Any) -> dict[str, Any]:
    """The part of a BindRequest's spec that allocates the pod's claims `dev`, `dev-1` and on."""
    decisions = [
        {"name": "dev" if index == 0 else f"dev-{index}", "allocation": allocation(device, **result)}
        for index, device in enumerate(devices)
    ]
    return {"resourceClaimAllocations": decisions}


def extended_decision(resource: str) -> dict[str, Any]:
    """The part of a BindRequest's spec that allocates the container's extended resource."""
    name = "container-0-request-0"
    return {
        "extendedResourceClaimAllocation": {
            "allocation": allocation(request=name),
            "deviceRequests": [{"name": name, "exactly": {"deviceClassName": CLASS}}],
            "containerMappings": [{"containerName": "main", "resourceName": resource, "requestName": name}],
        }
    }


def get_claim(live: LiveCluster, name: str) -> Any:
    """The claim as stored."""
    return live.cluster.api.get(f"{API}/namespaces/{live.namespace}/resourceclaims/{name}")


def claims(live: LiveCluster) -> list[Any]:
    """All claims of the test's namespace."""
    if not has_api(live.cluster):
        return []
    items: list[Any] = live.cluster.api.get(f"{API}/namespaces/{live.namespace}/resourceclaims")["items"]
    return items


def reserved_by(stored: Mapping[str, Any]) -> set[str]:
    """UIDs of the pods that have the claim reserved."""
    return {entry["uid"] for entry in (stored.get("status") or {}).get("reservedFor") or ()}


def is_free(stored: Mapping[str, Any]) -> bool:
    """Whether nothing is left of any user: no allocation, no reservation, no finalizer."""
    return not stored.get("status") and not stored["metadata"].get("finalizers")


def is_protected(stored: Mapping[str, Any]) -> bool:
    """Whether the claim has the finalizer with which Kubernetes frees it after its last user."""
    return names.RESOURCE_CLAIM_PROTECTION in (stored["metadata"].get("finalizers") or ())
