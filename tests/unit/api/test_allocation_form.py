"""The form of a request's allocations: another one is refused with its path, and what is not refused can be read."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest

from bowline.api.bindrequest import BindRequestSpec, decode_bind_request, decode_spec
from bowline.api.selectors import Node
from bowline.plugins.dynamic_resources.claim import same_devices
from bowline.plugins.dynamic_resources.extended import resources_not_offered, undecided_allocation
from bowline.plugins.dynamic_resources.rules import request_warnings, required_claims, unreachable
from bowline.plugins.dynamic_resources.taints import untolerated_taints
from bowline.plugins.dynamic_resources.tests.builders import allocation, pod, result
from bowline.plugins.node_fit.rules import decided_requests
from bowline.testing.builders import bind_request, stored

TOLERATION = {"key": "k", "operator": "Lt", "value": "7", "effect": "NoSchedule"}
EXPRESSION = {"key": "zone", "operator": "In", "values": ["a"]}
ALLOCATION = {
    "devices": {
        "results": [
            result(
                shareID="s",
                adminAccess=False,
                consumedCapacity={"memory": "1Gi"},
                tolerations=[TOLERATION],
                bindingConditions=["Ready"],
                bindingFailureConditions=["Broken"],
            )
        ]
    },
    "nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [EXPRESSION], "matchFields": [EXPRESSION]}]},
}
SPEC = {
    "podName": "pod",
    "selectedNode": "node",
    "resourceClaimAllocations": [{"name": "a", "allocation": ALLOCATION}],
    "extendedResourceClaimAllocation": {
        "allocation": ALLOCATION,
        "deviceRequests": [
            {"name": "dev", "exactly": {"tolerations": [TOLERATION]}},
            {"name": "alternatives", "firstAvailable": [{"name": "first", "tolerations": [TOLERATION]}]},
        ],
        "containerMappings": [{"containerName": "main", "resourceName": "nvidia.com/gpu", "requestName": "dev"}],
    },
}
VALUES: list[Any] = [None, True, 7, 1.5, "x", "9" * 5000, "1e1000000", [], [None], ["x"], [[]], {}, {"x": None}]
# A tainted device, so that tolerations are read.
TAINT = {"key": "k", "value": "9", "effect": "NoSchedule"}
SLICE = {
    "metadata": {"name": "slice"},
    "spec": {"driver": "dra.example", "pool": {"name": "node"}, "devices": [{"name": "d0", "taints": [TAINT]}]},
}
NODE = {"metadata": {"name": "node"}}


def changed(value: Any) -> Iterator[Any]:
    """The same value with one part replaced by each of VALUES."""
    yield from VALUES
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        for replacement in changed(part):
            other = deepcopy(value)
            other[key] = replacement
            yield other


def read_all(spec: BindRequestSpec) -> None:
    """Call what reads the allocations before the API server has validated them."""
    request_warnings(spec)
    required_claims(pod(resourceClaims=[{"name": "a", "resourceClaimName": "one"}]), spec)
    decided_requests(pod(containers=[]), spec)
    extended = spec.extended_resource_claim_allocation
    if extended is not None:
        undecided_allocation(extended)
        resources_not_offered(NODE, extended)
    requests = extended.device_requests if extended is not None else ()
    for decided in (*spec.resource_claim_allocations, *([extended] if extended is not None else ())):
        if decided.allocation is not None:
            same_devices(ALLOCATION, decided.allocation)
            unreachable("a", decided.allocation, Node("node", {"zone": "b"}))
            untolerated_taints(decided.allocation, requests, [SLICE], [])


def test_what_is_not_refused_can_be_read() -> None:
    assert decode_spec(SPEC) == (BindRequestSpec.model_validate(SPEC), ())
    specs = [spec for raw in changed(SPEC) if (spec := decode_spec(raw)[0]) is not None]
    assert len(specs) > len(VALUES)
    for spec in specs:
        read_all(spec)


@pytest.mark.parametrize(
    ("form", "path"),
    [
        pytest.param({"devices": "x"}, "devices", id="devices that are no object"),
        pytest.param(allocation(result(pool=7)), "devices.results[0].pool", id="a name that is no string"),
        pytest.param(allocation(result(consumedCapacity={"memory": "much"})),
            "devices.results[0].consumedCapacity.memory", id="no quantity"),
        pytest.param(allocation(result(consumedCapacity={"memory": "1e1000000"})),
            "devices.results[0].consumedCapacity.memory", id="more than any device has"),
        pytest.param({"nodeSelector": {"nodeSelectorTerms": [None]}}, "nodeSelector.nodeSelectorTerms[0]",
            id="a term that is no object"),
    ],
)  # fmt: skip
def test_another_form_is_an_error_of_the_request(form: dict[str, Any], path: str) -> None:
    """It ends Invalid, and there is nothing to roll back: no plugin gets it."""
    decisions = [{"name": "a", "allocation": form}]
    request = decode_bind_request(stored(bind_request(resourceClaimAllocations=decisions)))
    assert request.spec is None
    assert [error.path for error in request.errors] == [f"spec.resourceClaimAllocations[0].allocation.{path}"]


@pytest.mark.parametrize("other", ["1e1000000", "1e2147483647"])
def test_a_capacity_that_no_device_has_is_compared_with_that_of_a_stored_claim(other: str) -> None:
    decided = allocation(result(consumedCapacity={"memory": "1Gi"}))
    assert not same_devices(allocation(result(consumedCapacity={"memory": other})), decided)
