"""The plugin's checks of a request before the first write, and the claim it creates; no API server needed."""

from typing import Any

import pytest

from bowline.api import names
from bowline.api.bindrequest import AllocationKind, BindRequest, ExtendedResourceClaimAllocation, decode_bind_request
from bowline.api.meta import ObjectKey
from bowline.framework.admission import AdmissionChain
from bowline.framework.config import Settings
from bowline.framework.interface.plugin import AdmissionInfo
from bowline.framework.interface.status import Fatal, Status
from bowline.framework.interface.waiting import BindTimeoutConfig
from bowline.framework.reason import Reason
from bowline.kube.resources import RESOURCECLAIMS
from bowline.plugins.dynamic_resources.extended import (
    claim_name,
    claim_of,
    new_extended,
    required_extended,
    resources_not_offered,
    undecided_allocation,
)
from bowline.plugins.dynamic_resources.plugin import DynamicResources
from bowline.plugins.dynamic_resources.tests.builders import allocation, pod
from bowline.testing.builders import bind_request, stored

PLUGIN = DynamicResources(BindTimeoutConfig(), Settings())
CLAIMS: dict[str, Any] = {"resourceClaimAllocations": [{"name": "dev", "allocation": allocation()}]}
EXTENDED: dict[str, Any] = {
    "extendedResourceClaimAllocation": {"allocation": allocation(), "deviceRequests": [{"name": "r"}],
        "containerMappings": [{"containerName": "main", "resourceName": "gpu", "requestName": "r"}]},
}  # fmt: skip


def request(**spec: Any) -> BindRequest:
    return decode_bind_request(stored(bind_request(**spec)))


@pytest.mark.parametrize(
    ("spec", "leaves"),
    [
        pytest.param({}, False, id="a request without allocations"),
        pytest.param(CLAIMS, True, id="claims"),
        pytest.param(EXTENDED, True, id="extended resources"),
        pytest.param({"podName": ""}, False, id="an invalid request"),
    ],
)
def test_only_requests_with_allocations_have_side_effects(spec: dict[str, Any], leaves: bool) -> None:
    assert PLUGIN.has_side_effects(request(**spec), None) is leaves


def test_creation_adds_the_finalizer_and_denies_a_claim_given_twice() -> None:
    chain = AdmissionChain([PLUGIN], Settings())
    good = chain.admit_bind_request(bind_request(**CLAIMS), AdmissionInfo())
    assert good.allowed
    assert any(names.FINALIZER in (operation.get("value") or ()) for operation in good.patch)
    twice = bind_request(resourceClaimAllocations=CLAIMS["resourceClaimAllocations"] * 2)
    (fault,) = chain.admit_bind_request(twice, AdmissionInfo()).errors
    assert (fault.rule.id, fault.path) == (
        "dynamic_resources/allocation-duplicate",
        "spec.resourceClaimAllocations[1].name",
    )


def test_an_entry_without_an_allocation_is_admitted_with_a_warning() -> None:
    """Admission does not know whether its claim is allocated; the reconciler decides."""
    chain = AdmissionChain([PLUGIN], Settings())
    verdict = chain.admit_bind_request(bind_request(resourceClaimAllocations=[{"name": "dev"}]), AdmissionInfo())
    assert verdict.allowed
    (warning,) = verdict.warnings
    assert (warning.rule.id, warning.path) == (
        "dynamic_resources/allocation-missing",
        "spec.resourceClaimAllocations[0].allocation",
    )
    assert any(names.FINALIZER in (operation.get("value") or ()) for operation in verdict.patch)


@pytest.mark.parametrize("empty", [{}, {"allocation": None}, {"allocation": {}}])
def test_a_block_for_extended_resources_without_allocation_is_no_demand(empty: dict[str, Any]) -> None:
    block = {**EXTENDED["extendedResourceClaimAllocation"], **empty}
    if not empty:
        del block["allocation"]
    regular_request = request(extendedResourceClaimAllocation=block)
    assert regular_request.errors == ()
    assert regular_request.spec is not None
    assert regular_request.spec.demands == {AllocationKind.REGULAR}
    assert not PLUGIN.has_side_effects(regular_request, None)


def without_allocation(**fields: Any) -> ExtendedResourceClaimAllocation:
    return ExtendedResourceClaimAllocation.model_validate(
        {**EXTENDED["extendedResourceClaimAllocation"], "allocation": None, **fields}
    )


OFFERS: list[Any] = [
    pytest.param({"gpu": "1"}, None, "", id="a node with a device plugin needs no claim"),
    pytest.param({"gpu": "0"}, None, "node n does not offer gpu", id="a node without devices"),
    pytest.param({}, None, "node n does not offer gpu", id="a node that does not know the resource"),
    pytest.param({"gpu": "1"}, [], "it maps them to no resource", id="requests that belong to no resource"),
]


def offer(allocatable: dict[str, str], mappings: list[Any] | None) -> Status | None:
    block = without_allocation() if mappings is None else without_allocation(containerMappings=mappings)
    return resources_not_offered({"metadata": {"name": "n"}, "status": {"allocatable": allocatable}}, block)


@pytest.mark.parametrize(("allocatable", "mappings", "words"), OFFERS)
def test_without_a_claim_the_node_must_offer_the_resources(
    allocatable: dict[str, str], mappings: list[Any] | None, words: str
) -> None:
    against = offer(allocatable, mappings)
    assert (against is None) is (not words)
    if against is not None:
        assert isinstance(against, Fatal)
        assert against.reason is Reason.INVALID
        assert words in against.message


def test_an_allocation_without_devices_is_no_decision_for_extended_resources() -> None:
    against = undecided_allocation(without_allocation(allocation={"devices": {}}))
    assert against is not None
    assert isinstance(against, Fatal)
    assert against.reason is Reason.INVALID
    assert undecided_allocation(ASKED) is None


def test_only_the_identity_of_awaited_claims_is_cached() -> None:
    plugin = DynamicResources(BindTimeoutConfig(), Settings())
    source, *_ = plugin.event_sources()
    assert source.resource == RESOURCECLAIMS.as_metadata()
    assert source.transform is not None
    metadata = {"namespace": "ns", "name": "one", "uid": "u", "resourceVersion": "1", "labels": {"much": "more"}}
    assert source.transform({"metadata": metadata}) is None
    plugin._awaited_claims.expect(ObjectKey("ns", "request"), [ObjectKey("ns", "one")])
    cached = source.transform({"metadata": metadata})
    assert cached == {"metadata": {"namespace": "ns", "name": "one", "uid": "u", "resourceVersion": "1"}}
    assert not list(source.keys(cached))


# --- the claim of extended resources ---

ASKED = ExtendedResourceClaimAllocation.model_validate(EXTENDED["extendedResourceClaimAllocation"])


@pytest.mark.parametrize(
    ("name", "visible", "base"),
    [
        pytest.param("pod", "pod-extended-resources-", "pod-extended-resources-", id="a short name is kept whole"),
        pytest.param("p" * 60, "p" * 53, "p" * 60 + "-extended-resources-", id="a long one is cut to 63 characters"),
        pytest.param("p" * 253, "p" * 53, "p" * 253, id="the longest leaves no room for more"),
    ],
)  # fmt: skip
def test_the_claims_name_is_valid_and_contains_its_pods(name: str, visible: str, base: str) -> None:
    metadata = claim_of(pod(name=name), ASKED)["metadata"]
    assert metadata["name"].startswith(visible)
    assert len(metadata["name"]) == len(visible) + 10
    assert len(metadata["name"]) <= 63
    assert metadata["generateName"] == base


def test_the_claim_that_the_pods_status_names_is_the_claim() -> None:
    pod_with_claim = pod({"extendedResourceClaimStatus": {"resourceClaimName": "made-by-a-scheduler"}})
    assert required_extended(pod_with_claim, ASKED).key.name == "made-by-a-scheduler"
    assert required_extended(pod(), ASKED).key.name == claim_name(pod())
    assert new_extended(pod_with_claim, ASKED).key.name == claim_name(pod())
