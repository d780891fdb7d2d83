"""The CRD on the real API server: what it accepts, what it rejects with which message, what watches can select."""

from typing import Any

import pytest

from bowline.localcluster.cluster import Cluster
from bowline.localcluster.errors import LocalApiError
from tests.api.samples import ALL, ALLOCATION, FRACTION, GROUP, STRICT, bind_request, spec


def denial(cluster: Cluster, body: dict[str, Any]) -> str:
    with pytest.raises(LocalApiError) as error_info:
        cluster.api.post(ALL + STRICT, bind_request("bad", body))
    assert error_info.value.status == 422
    return str(error_info.value)


# --- creation ---


REFUSED = [
    pytest.param(spec(podName=None), "spec.podName", "Required", id="no pod"),
    pytest.param(spec(podName=""), "spec.podName", "at least 1", id="an empty pod name"),
    pytest.param(spec(podName="p" * 254), "spec.podName", "253", id="a pod name no pod can have"),
    pytest.param(spec(podName=7), "spec.podName", "string", id="a pod name that is a number"),
    pytest.param(spec(receivedGPU={"count": -1}), "spec.receivedGPU.count", "0", id="a negative count"),
    pytest.param(spec(receivedGPU={"count": 2**31}), "spec.receivedGPU.count", "2147483647", id="a count too large"),
    pytest.param(spec(receivedGPU={"portion": 0.5}), "spec.receivedGPU.portion", "string", id="a number"),
    pytest.param(spec(receivedGPU={"portion": "-0.5"}), "spec.receivedGPU.portion", "match", id="less than zero"),
    pytest.param(spec(receivedResourceType="Shared"), "spec.receivedResourceType", '"MigInstance"',
        id="an unknown type"),
    pytest.param(spec(receivedResourceType="Fraction", receivedGPU={"count": 1, "portion": "0.50"}),
        "spec.selectedGPUGroups", "name at least one", id="a share without groups"),
    pytest.param(spec(receivedResourceType="Fraction", selectedGPUGroups=[GROUP]), "spec.receivedGPU.count",
        "set count to 1 or more", id="a share without devices"),
    pytest.param(spec(resourceClaimAllocations=[{"allocation": ALLOCATION}]),
        "spec.resourceClaimAllocations[0].name", "Required", id="an allocation of no claim"),
    pytest.param(spec(predictedNUMAZones=[{"zone": "node-0", "amount": {"cpu": "many"}}]),
        "spec.predictedNUMAZones[0].amount.cpu", "match", id="an amount that is no quantity"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "field", "word"), REFUSED)
def test_an_invalid_spec_is_rejected_with_its_field(
    crd_cluster: Cluster, body: dict[str, Any], field: str, word: str
) -> None:
    message = denial(crd_cluster, body)
    assert f"{field}:" in message
    assert word in message


def test_an_object_without_a_spec_is_rejected(crd_cluster: Cluster) -> None:
    body = bind_request("bad", {})
    del body["spec"]
    with pytest.raises(LocalApiError, match="spec: Required value"):
        crd_cluster.api.post(ALL, body)


def test_all_errors_are_reported_together(crd_cluster: Cluster) -> None:
    message = denial(crd_cluster, {"receivedGPU": {"count": -1, "portion": "2"}, "backoffLimit": -1})
    for field in ("spec.podName", "spec.selectedNode", "spec.receivedGPU.count", "spec.receivedGPU.portion"):
        assert f"{field}:" in message


def test_a_field_of_a_newer_scheduler_is_stored_and_returned(crd_cluster: Cluster) -> None:
    newer = spec(somethingNew={"a": [1, {"b": None}]}, receivedGPU={"count": 1, "portion": "1.00"})
    stored_request = crd_cluster.api.post(ALL, bind_request("newer", newer))
    assert stored_request["spec"] == {**newer, "podName": "newer"}
    path = f"{ALL}/newer"
    crd_cluster.api.patch(f"{path}/status", {"status": {"phase": "Pending", "reason": "Waiting: x"}})
    crd_cluster.api.patch(path, {"spec": {"backoffLimit": 3}})
    assert crd_cluster.api.get(path)["spec"] == {**newer, "podName": "newer", "backoffLimit": 3}
    with pytest.raises(LocalApiError, match="cannot change: selectedNode"):
        crd_cluster.api.patch(path, {"spec": {"selectedNode": "another"}})


def test_a_misspelt_field_beside_the_spec_is_rejected_under_strict_validation(crd_cluster: Cluster) -> None:
    with pytest.raises(LocalApiError, match=r'unknown field "spek"'):
        crd_cluster.api.post(ALL + STRICT, {**bind_request("typo", spec()), "spek": {}})


def test_a_request_has_the_name_of_its_pod(crd_cluster: Cluster) -> None:
    rule = r"spec.podName: Invalid value.*a pod has one BindRequest, and that has its name: name it other"
    with pytest.raises(LocalApiError, match=rule):
        crd_cluster.api.post(ALL, bind_request("misnamed", spec(podName="other")))


# --- change ---

EVERYTHING = {
    **FRACTION,
    "podUID": "6dd9cbb5-7a7f-4a7f-9f6e-4f8a9b0c1d2e",
    "resourceClaimAllocations": [{"name": "dev", "allocation": ALLOCATION}],
    "extendedResourceClaimAllocation": {
        "allocation": ALLOCATION,
        "deviceRequests": [{"name": "a", "exactly": {"count": 1}}],
        "containerMappings": [{"containerName": "main"}],
    },
    "predictedNUMAZones": [{"zone": "node-0", "amount": {"cpu": "4"}}],
}
CHANGED = [
    pytest.param("podName", "other", id="another pod"),
    pytest.param("podUID", None, id="the UID removed"),
    pytest.param("resourceClaimAllocations", [{"name": "dev", "allocation": {"gadgets": ALLOCATION["devices"],
        "nodeSelector": ALLOCATION["nodeSelector"]}}],
        id="a key of an allocation renamed, which a comparison key by key would miss"),
    pytest.param("extendedResourceClaimAllocation", {**EVERYTHING["extendedResourceClaimAllocation"],
        "deviceRequests": [{"nam": "a", "exactly": {"count": 1}}]}, id="a key of a device request renamed"),
    pytest.param("predictedNUMAZones", [{"zone": "node-0", "amount": {"cpu": "5"}}], id="another amount"),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value"), CHANGED)
def test_the_decision_cannot_change(crd_cluster: Cluster, field: str, value: Any) -> None:
    stored_request = crd_cluster.api.post(ALL, bind_request("fixed", EVERYTHING))
    changed_spec = {key: v for key, v in {**stored_request["spec"], field: value}.items() if v is not None}
    with pytest.raises(LocalApiError) as error_info:
        crd_cluster.api.request("PUT", f"{ALL}/fixed", {**stored_request, "spec": changed_spec})
    assert error_info.value.status == 422
    assert f"spec: Forbidden: cannot change: {field}; a decision cannot be changed" in str(error_info.value)


@pytest.mark.parametrize("field", ["podUID", "resourceClaimAllocations"])
def test_the_decision_cannot_grow(crd_cluster: Cluster, field: str) -> None:
    crd_cluster.api.post(ALL, bind_request("fixed", spec()))
    with pytest.raises(LocalApiError, match=f"spec: Forbidden: cannot change: {field};"):
        crd_cluster.api.patch(f"{ALL}/fixed", {"spec": {field: EVERYTHING[field]}})


ALLOWED = [
    pytest.param({"spec": {"backoffLimit": 3}}, id="the limit is set"),
    pytest.param({"spec": {"podName": "open", "receivedGPU": {"count": 1}}}, id="an unchanged write"),
    pytest.param({"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}}, id="labels and annotations"),
    pytest.param({"metadata": {"finalizers": ["bowline.dev/rollback"]}}, id="the finalizer"),
    pytest.param({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "pod", "uid": "u"}]}},
        id="the owner reference that pins a request"),
]  # fmt: skip


@pytest.mark.parametrize("patch", ALLOWED)
def test_fields_outside_the_decision_may_change(crd_cluster: Cluster, patch: dict[str, Any]) -> None:
    crd_cluster.api.post(ALL, bind_request("open", {**EVERYTHING, "backoffLimit": 1}))
    crd_cluster.api.patch(f"{ALL}/open", patch)
    # No controller here removes a finalizer, which would keep the object.
    crd_cluster.api.patch(f"{ALL}/open", {"metadata": {"finalizers": None}})
