"""BindRequests as each version of KAI-Scheduler writes them: reviewed, bound, and returned as they were written."""

from typing import Any

import pytest

from bowline.api import names
from tests.api.kai import REQUESTS
from tests.live import Live
from tests.plugins import claims
from tests.plugins.sharing import HALF

EXTENDED = "gpu.example.com/gpu"
WRITTEN = [
    pytest.param(version, number, id=f"{version}-{number}")
    for version, bodies in REQUESTS.items()
    for number in range(len(bodies))
]


def with_live_claims(body: dict[str, Any]) -> dict[str, Any]:
    """The spec with the class, driver and devices that the test's cluster has."""
    spec = dict(body)
    if "resourceClaimAllocations" in spec:
        spec["resourceClaimAllocations"] = [{"name": "dev", "allocation": claims.allocation()}]
    if "extendedResourceClaimAllocation" in spec:
        spec |= claims.extended_decision(EXTENDED)
    return spec


def has_claims(spec: dict[str, Any]) -> bool:
    """Return whether the decision allocates claims."""
    return bool({"resourceClaimAllocations", "extendedResourceClaimAllocation"} & set(spec))


def create_pod(live: Live, name: str, spec: dict[str, Any]) -> str:
    """Create the pod that the request is about."""
    if "resourceClaimAllocations" in spec:
        live.create(claims.claim(name))
        container = {"name": "main", "image": "i", "resources": {"claims": [{"name": "dev"}]}}
        return live.create_pod(
            name, containers=[container], resourceClaims=[{"name": "dev", "resourceClaimName": name}]
        )
    if "extendedResourceClaimAllocation" in spec:
        container = {"name": "main", "image": "i", "resources": {"limits": {EXTENDED: "1"}}}
        return live.create_pod(name, containers=[container])
    return live.create_pod(name, HALF if spec["receivedResourceType"] == "Fraction" else None)


@pytest.mark.parametrize(("version", "number"), WRITTEN)
def test_a_request_of_kai_scheduler_is_bound_and_returned_without_loss(pair: Live, version: str, number: int) -> None:
    claims.publish(pair.cluster)
    name = f"v{version.replace('.', '-')}-{number}"
    spec = {**with_live_claims(REQUESTS[version][number]), "podName": name}
    uid = create_pod(pair, name, spec)
    owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}
    metadata = {
        "name": name,
        "labels": {"selected-node": spec["selectedNode"]},
        "annotations": {"example.kai.scheduler/key": "value"},
        "ownerReferences": [owner],
    }
    created_request = pair.cluster.api.post(
        pair.request_path("").rstrip("/") + "?fieldValidation=Strict",
        {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": metadata, "spec": spec},
    )
    finished = pair.phase(name, "Succeeded", "Failed")
    assert finished["status"]["phase"] == "Succeeded", finished["status"]
    # podUID is Bowline's own field, filled from the owner reference.
    assert finished["spec"] == created_request["spec"] == {**spec, "podUID": uid}
    for part in ("labels", "ownerReferences"):
        assert finished["metadata"][part] == metadata[part]
    # Bowline records there which plugins may have had side effects (decision 281).
    record = finished["metadata"]["annotations"].pop(names.EFFECTS, "")
    assert finished["metadata"]["annotations"] == metadata["annotations"]
    assert bool(record) == (spec["receivedResourceType"] == "Fraction" or has_claims(spec))
    bound = pair.pod(name)
    assert bound["spec"]["nodeName"] == spec["selectedNode"]
    annotations = bound["metadata"]["annotations"]
    assert annotations[names.RECEIVED_RESOURCE_TYPE] == spec["receivedResourceType"]
    assert (names.NUMA_PLACEMENT_PREDICTED in annotations) == ("predictedNUMAZones" in spec)
