"""Taints of devices (KEP-5055), as tables."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from bowline.api.meta import ObjectKey, ObjectUID
from bowline.plugins.dynamic_resources.claim import pod_consumer
from bowline.plugins.dynamic_resources.rules import RequiredClaim, is_first_use
from bowline.plugins.dynamic_resources.taint_watch import TaintWatch
from bowline.plugins.dynamic_resources.taints import (
    newest_slices,
    pool_part,
    reduce_rule,
    reduce_slice,
    untolerated_taints,
)
from bowline.plugins.dynamic_resources.tests.builders import (
    GROUP_REFERENCE,
    POD_UID,
    allocation,
    pod,
    protected_claim,
    result,
    user,
)

IDENTITY = {"name": "slice", "uid": "slice-uid", "resourceVersion": "3"}
NO_SCHEDULE = {"key": "unhealthy", "value": "ecc", "effect": "NoSchedule"}
NO_EXECUTE = {"key": "unhealthy", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}


def resource_slice(*taints: dict[str, Any], device: str = "d0", **spec: Any) -> dict[str, Any]:
    devices = [{"name": device, "taints": [*taints], "attributes": {"large": {}}}, {"name": "other"}]
    body = {"driver": "dra.example", "pool": {"name": "node", "generation": 1}, "devices": devices, **spec}
    return {"metadata": {**IDENTITY, "annotations": {"a": "b"}}, "spec": body}


def taint_rule(taint: dict[str, Any], selector: dict[str, str] | None) -> dict[str, Any]:
    spec: dict[str, Any] = {"taint": taint}
    if selector is not None:
        spec["deviceSelector"] = selector
    return {"metadata": {**IDENTITY, "name": "rule"}, "spec": spec}


def found(
    *sources: dict[str, Any], requests: list[dict[str, Any]] | None = None, **fields: Any
) -> list[tuple[str, str, str]]:
    """The untolerated taints of the device d0, with these slices and rules: device, taint, source."""
    slices = [reduced for source in sources if "taint" not in source["spec"] and (reduced := reduce_slice(source))]
    rules = [reduced for source in sources if "taint" in source["spec"] and (reduced := reduce_rule(source))]
    tainted = untolerated_taints(allocation(result(**fields)), requests or [], slices, rules)
    return [(device.device, device.taint, f"{device.kind}/{device.source.name}") for device in tainted]


def test_only_tainted_devices_are_cached_without_their_attributes() -> None:
    reduced = reduce_slice(resource_slice(NO_EXECUTE))
    assert reduced is not None
    assert reduced["metadata"] == IDENTITY
    assert reduced["spec"]["devices"] == [{"name": "d0", "taints": [{"key": "unhealthy", "effect": "NoExecute"}]}]
    assert reduce_slice(resource_slice()) is None
    assert reduce_slice(resource_slice({"key": "x", "effect": "None"})) is None
    assert reduce_slice(resource_slice(devices=None)) is None


@pytest.mark.parametrize(
    ("taint", "selector", "is_cached"),
    [
        pytest.param(NO_SCHEDULE, {}, True, id="all devices"),
        pytest.param(NO_SCHEDULE, None, False, id="no selector selects no device"),
        pytest.param({"key": "x", "effect": "None"}, {}, False, id="an effect without meaning"),
    ],
)
def test_which_rules_are_cached(taint: dict[str, Any], selector: dict[str, str] | None, is_cached: bool) -> None:
    assert (reduce_rule(taint_rule(taint, selector)) is not None) is is_cached


BY_SLICE = [("dra.example/node/d0", "unhealthy=ecc:NoSchedule", "ResourceSlice/slice")]
BY_RULE = [("dra.example/node/d0", "unhealthy=ecc:NoSchedule", "DeviceTaintRule/rule")]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        pytest.param(resource_slice(NO_SCHEDULE), BY_SLICE, id="by its driver"),
        pytest.param(resource_slice(NO_SCHEDULE, device="d1"), [], id="another device"),
        pytest.param(resource_slice(NO_SCHEDULE, pool={"name": "b"}), [], id="another pool"),
        pytest.param(resource_slice(NO_SCHEDULE, driver="b"), [], id="another driver"),
        pytest.param(taint_rule(NO_SCHEDULE, {}), BY_RULE, id="a rule for all devices"),
        pytest.param(taint_rule(NO_SCHEDULE, {"driver": "dra.example", "pool": "node", "device": "d0"}), BY_RULE,
            id="a rule"),
        pytest.param(taint_rule(NO_SCHEDULE, {"device": "d1"}), [], id="a rule for another device"),
        pytest.param(taint_rule(NO_SCHEDULE, {"driver": "b", "device": "d0"}), [], id="a rule for another driver"),
    ],
)  # fmt: skip
def test_the_taints_of_an_allocated_device(source: dict[str, Any], expected: list[Any]) -> None:
    assert found(source) == expected


TOLERATIONS = [
    pytest.param({"operator": "Exists"}, True, id="every taint"),
    pytest.param({"key": "unhealthy", "value": "ecc"}, True, id="this value; Equal is the default"),
    pytest.param({"operator": "Exists", "effect": "NoExecute"}, False, id="another effect"),
]


@pytest.mark.parametrize(("toleration", "tolerates"), TOLERATIONS)
@pytest.mark.parametrize("place", ["allocation", "request", "alternative"])
def test_a_toleration_of_the_allocation_or_of_the_request_counts(
    toleration: dict[str, Any], tolerates: bool, place: str
) -> None:
    source = resource_slice(NO_SCHEDULE)
    if place == "allocation":
        remaining = found(source, tolerations=[toleration])
    elif place == "request":
        remaining = found(source, requests=[{"name": "dev", "exactly": {"tolerations": [toleration]}}])
    else:
        parts = [{"name": "a"}, {"name": "b", "tolerations": [toleration]}]
        remaining = found(source, requests=[{"name": "dev", "firstAvailable": parts}], request="dev/b")
    assert remaining == ([] if tolerates else BY_SLICE)


def test_a_toleration_of_another_request_does_not_count() -> None:
    requests = [{"name": "other", "exactly": {"tolerations": [{"operator": "Exists"}]}}]
    assert found(resource_slice(NO_SCHEDULE), requests=requests) == BY_SLICE


@pytest.mark.parametrize(
    ("status", "is_first"),
    [
        pytest.param(None, True, id="not allocated"),
        pytest.param({"allocation": allocation(), "reservedFor": [user()]}, True, id="the pod's own, while it waits"),
        pytest.param({"allocation": allocation(), "reservedFor": [user(), user("a")]}, False, id="shared"),
        pytest.param({"allocation": allocation(), "reservedFor": [GROUP_REFERENCE]}, False, id="a PodGroup's"),
        pytest.param({"allocation": allocation()}, False, id="allocated by another component"),
    ],
)
def test_only_a_claim_that_no_other_pod_has_may_be_refused(status: dict[str, Any] | None, is_first: bool) -> None:
    requirement = RequiredClaim(
        "claim", ObjectKey("ns", "one"), allocation(), pod_consumer(pod()), ObjectUID(POD_UID), is_generated=False
    )
    assert is_first_use(protected_claim(status), requirement) is is_first


def test_a_slice_that_a_newer_generation_of_its_pool_has_replaced_taints_nothing() -> None:
    old = resource_slice(NO_SCHEDULE)
    other = resource_slice(NO_SCHEDULE, pool={"name": "other", "generation": 1})
    new = resource_slice(pool={"name": "node", "generation": 2})
    assert newest_slices(map(pool_part, (old, other))) == [reduce_slice(old), reduce_slice(other)]
    assert newest_slices(map(pool_part, (old, other, new))) == [reduce_slice(other)]


class SlicesWithoutTaints:
    """A driver that has removed its taints since the cache was filled. Counts the lists."""

    def __init__(self) -> None:
        self.lists = 0

    async def list_reduced(self, *_: Any) -> list[Any]:
        self.lists += 1
        return []


def test_the_slices_of_a_driver_are_listed_once_for_all_tainted_devices() -> None:
    names = ("d0", "d1", "d2")
    client: Any = SlicesWithoutTaints()
    slices: Any = SimpleNamespace(
        store={name: reduce_slice(resource_slice(NO_SCHEDULE, device=name)) for name in names}
    )
    watch = TaintWatch()
    watch.watches["ResourceSlice"] = slices
    assert asyncio.run(watch.refusal(client, "claim", allocation(*map(result, names)), [])) is None
    assert client.lists == 1
