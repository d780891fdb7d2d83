"""The resources that a pod needs on a node, and whether it fits, as tables."""

import asyncio
from decimal import Decimal
from typing import Any

import pytest

from bowline.api.meta import ObjectKey
from bowline.framework.interface.status import Done, Fatal, Retriable, Status
from bowline.framework.reason import Reason, Suggestion
from bowline.plugins.node_fit import CONCURRENT_READS, allocated
from bowline.plugins.node_fit.rules import (
    MAX_CLAIMS,
    Amounts,
    allocatable,
    claims_of,
    exclusive_devices,
    occupied_by,
    pod_requests,
    shortages,
    total,
    verdict,
    without,
)

GPU, MIG = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"


def amounts(**quantities: str | int) -> dict[str, Decimal]:
    keys = {"gpu": GPU, "mig": MIG}
    return {keys.get(key, key): Decimal(value) for key, value in quantities.items()}


def pod_amounts(**quantities: str | int) -> dict[str, Decimal]:
    """The pod's requirements, itself included."""
    return amounts(**quantities) | {"pods": Decimal(1)}


def asks(name: str = "main", always: bool = False, **requests: Any) -> dict[str, Any]:
    keys = {"gpu": GPU, "mig": MIG, "disk": "ephemeral-storage", "nic": "example.com/nic"}
    container: dict[str, Any] = {"name": name}
    if requests:
        container["resources"] = {"requests": {keys.get(key, key): value for key, value in requests.items()}}
    return container | ({"restartPolicy": "Always"} if always else {})


def pod(*containers: dict[str, Any], init: tuple[dict[str, Any], ...] = (), **rest: Any) -> dict[str, Any]:
    spec = {"containers": list(containers), "initContainers": list(init), **rest}
    return {"metadata": {"name": "pod", "uid": "uid"}, "spec": spec}


def with_status(body: dict[str, Any], **status: Any) -> dict[str, Any]:
    return {**body, "status": status}


@pytest.mark.parametrize(
    ("body", "requests"),
    [
        pytest.param(pod(asks()), pod_amounts(), id="a pod that asks for nothing takes a place"),
        pytest.param(pod(asks(cpu="500m", memory="1Gi")), pod_amounts(cpu="0.5", memory=2**30), id="one container"),
        pytest.param(pod(asks(gpu="2"), asks("b", mig="1")), pod_amounts(gpu=2, mig=1), id="GPUs, whole and MIG"),
        pytest.param(pod(asks(disk="1Gi", nic="1")), pod_amounts(), id="what is not counted here"),
        pytest.param(pod(asks(cpu="1"), init=(asks("i", cpu="3"), asks("j", cpu="2"))), pod_amounts(cpu="3"),
            id="the highest step"),
        pytest.param(pod(asks(cpu="2"), init=(asks("i", cpu="1", memory="1Gi"),)), pod_amounts(cpu="2", memory=2**30),
            id="the highest of each resource, at whatever moment"),
        pytest.param(pod(asks(cpu="1"), init=(asks("s", always=True, cpu="1"),)), pod_amounts(cpu="2"),
            id="a sidecar keeps running"),
        pytest.param(pod(asks(cpu="1"), init=(asks("s", always=True, cpu="1"), asks("i", cpu="2"))),
            pod_amounts(cpu="3"), id="a step beside the sidecar started before it"),
        pytest.param(pod(asks(cpu="1"), init=(asks("i", cpu="2"), asks("s", always=True, cpu="1"))),
            pod_amounts(cpu="2"), id="a step before the sidecar is not beside it"),
        pytest.param(pod(asks(cpu="1"), overhead={"cpu": "100m", "memory": "64Mi"}), pod_amounts(cpu="1.1",
            memory=64 * 2**20), id="the overhead of its runtime class"),
        pytest.param(pod(asks(cpu="1", gpu="1"), resources={"requests": {"cpu": "4"}}), pod_amounts(cpu="4", gpu=1),
            id="resources of the whole pod take the place of the sum"),
        pytest.param(pod(asks(cpu="2"), resources={"requests": {"cpu": "1"}}, overhead={"cpu": "1"}),
            pod_amounts(cpu="2"), id="also when they are less, plus the overhead"),
        pytest.param(with_status(pod(asks(cpu="1")), containerStatuses=[{"name": "main",
            "allocatedResources": {"cpu": "2"}}]), pod_amounts(cpu="2"),
            id="a container that is being made smaller still has what it had"),
        pytest.param(with_status(pod(asks(cpu="1")), containerStatuses=[{"name": "main",
            "resources": {"requests": {"cpu": "3"}}}]), pod_amounts(cpu="3"), id="and what it really runs with"),
        pytest.param(with_status(pod(asks(cpu="8")), conditions=[{"type": "PodResizePending",
            "reason": "Infeasible"}], containerStatuses=[{"name": "main", "allocatedResources": {"cpu": "2"}}]),
            pod_amounts(cpu="2"), id="a resize that cannot be is not counted"),
        pytest.param(with_status(pod(asks(cpu="1"), init=(asks("s", always=True, cpu="1"),)),
            initContainerStatuses=[{"name": "s", "allocatedResources": {"cpu": "2"}}]), pod_amounts(cpu="3"),
            id="a sidecar that is being resized"),
        pytest.param(with_status(pod(asks(gpu="1", cpu="1")),
            extendedResourceClaimStatus={"requestMappings": [{"resourceName": GPU}]}), pod_amounts(cpu="1"),
            id="a claim's devices are not subtracted from the node's count"),
    ],
)  # fmt: skip
def test_the_resources_of_a_pod(body: dict[str, Any], requests: Amounts) -> None:
    assert pod_requests(body) == requests


@pytest.mark.parametrize("quantity", ["1e900000", "1e1000000", "1e2147483647"])
def test_a_pod_that_requests_more_than_any_node_has_leaves_no_room(quantity: str) -> None:
    """Also beside another such pod; and a message has no number of a million digits."""
    usage = total(map(occupied_by, [pod(asks(cpu=quantity), asks("b", cpu=quantity)), pod(asks(cpu=quantity))]))
    node = {"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "8", "pods": "110"}}}
    status = verdict(node, pod_requests(pod(asks(cpu="1"))), usage, {})
    assert isinstance(status, Fatal)
    assert status.reason is Reason.REJECTED
    assert len(status.message) < 200


def test_ended_pods_use_no_resources() -> None:
    running = with_status(pod(asks(cpu="1")), phase="Running")
    pending = pod(asks(cpu="2"))
    ended_pods = [with_status(pod(asks(cpu="4")), phase=phase) for phase in ("Succeeded", "Failed")]
    leaving = with_status(pod(asks(cpu="8")), phase="Running")
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    pods = [running, pending, *ended_pods, leaving]
    assert total(map(occupied_by, pods)) == amounts(cpu=11, pods=3)


def test_the_resources_of_a_node() -> None:
    offered = {"cpu": "4", "memory": "1Ki", "pods": "110", GPU: "8", "hugepages-2Mi": "0"}
    assert allocatable({"status": {"allocatable": offered}}) == amounts(cpu=4, memory=1024, pods=110, gpu=8)
    assert allocatable({"status": {"allocatable": {}}}) == amounts(pods=0), "it has no capacity"


def test_resources_of_claims_are_excluded_and_sums_keep_every_resource() -> None:
    assert without(pod_amounts(gpu=1, cpu=2), [GPU, "other"]) == pod_amounts(cpu=2)
    assert total([amounts(cpu=1), amounts(gpu=1), amounts(cpu=2)]) == amounts(cpu=3, gpu=1)
    assert total([]) == {}


NODE = amounts(cpu=4, memory=8, pods=2, gpu=2)


@pytest.mark.parametrize(
    ("requests", "usage", "short"),
    [
        pytest.param(pod_amounts(cpu=4, memory=8, gpu=2), {}, [], id="all of it"),
        pytest.param(pod_amounts(cpu=1), amounts(cpu=3, pods=1), [], id="what is left, to the last"),
        pytest.param(pod_amounts(cpu="1.5"), amounts(cpu=3), ["cpu (requests 1.5, free 1 of 4)"],
            id="a little more than is left"),
        pytest.param(pod_amounts(), amounts(pods=2), ["pods (requests 1, free 0 of 2)"], id="no place for a pod"),
        pytest.param(pod_amounts(mig=1), {}, [f"{MIG} (requests 1, free 0 of 0)"], id="a device the node has not"),
        pytest.param(pod_amounts(cpu=1), amounts(memory=9, cpu=0), [], id="a shortage of what is not asked for"),
        pytest.param(pod_amounts(memory=1, cpu=1), amounts(memory=9, cpu=9), ["cpu (requests 1, free -5 of 4)",
            "memory (requests 1, free -1 of 8)"], id="every shortage, also of an overfull node"),
    ],
)  # fmt: skip
def test_insufficient_resources(requests: Amounts, usage: Amounts, short: list[str]) -> None:
    assert list(shortages(requests, NODE, usage).values()) == short


FULL: dict[str, Any] = {"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "4", "pods": "10"}}}


@pytest.mark.parametrize(
    ("usage", "assumed_usage", "kind", "suggestion"),
    [
        pytest.param(amounts(cpu=2), amounts(cpu=1), Done, None, id="room beside both"),
        pytest.param(amounts(cpu=4), {}, Fatal, Suggestion.RESCHEDULE_ELSEWHERE, id="pods on the node remain"),
        pytest.param(amounts(cpu=2), amounts(cpu=2), Retriable, Suggestion.RESCHEDULE_ELSEWHERE,
            id="pods on their way may never arrive"),
        pytest.param(amounts(cpu=4), amounts(cpu=2), Fatal, Suggestion.RESCHEDULE_ELSEWHERE,
            id="both: the worse counts"),
    ],
)  # fmt: skip
def test_the_verdict_on_a_node(
    usage: Amounts, assumed_usage: Amounts, kind: type[Status], suggestion: Suggestion | None
) -> None:
    status = verdict(FULL, pod_amounts(cpu=1), usage, assumed_usage)
    assert (type(status), getattr(status, "suggestion", None)) == (kind, suggestion)


def test_a_device_of_another_pods_claim_is_a_conflict() -> None:
    taken = exclusive_devices([{"devices": {"results": [{"driver": "d", "pool": "p", "device": "d0"}]}}, None])
    status = verdict(FULL, {**pod_amounts(), **taken}, taken, {})
    assert isinstance(status, Fatal)
    assert status.reason is Reason.DEVICE_CONFLICT
    assert "device d/p/d0 (requests 1, free 0 of 1)" in status.message
    assert isinstance(verdict(FULL, {**pod_amounts(), **taken}, {}, taken), Retriable)
    assert verdict(FULL, {**pod_amounts(), **taken}, {}, {}) == Status.ok()


@pytest.mark.parametrize("field", ["shareID", "adminAccess"])
def test_a_device_that_claims_may_share_is_not_counted(field: str) -> None:
    device = {"driver": "d", "pool": "p", "device": "d0", field: "x"}
    assert exclusive_devices([{"devices": {"results": [device]}}]) == {}


def test_the_claims_of_a_pod() -> None:
    status = {
        "resourceClaimStatuses": [{"name": "a", "resourceClaimName": "made"}, {"name": "b"}],
        "extendedResourceClaimStatus": {"resourceClaimName": "extended"},
    }
    entries = [{"name": "a"}, {"name": "n", "resourceClaimName": "named"}]
    pod = {"metadata": {"namespace": "ns"}, "spec": {"resourceClaims": entries}, "status": status}
    assert claims_of(pod) == {ObjectKey("ns", name) for name in ("made", "extended", "named")}
    assert claims_of({**pod, "status": {"phase": "Failed"}}) == frozenset()


def test_the_claims_of_a_pod_are_limited() -> None:
    entries = [{"name": f"c{number}", "resourceClaimName": f"c{number}"} for number in range(5000)]
    body = pod(asks(), resourceClaims=entries)
    body["metadata"]["namespace"] = "ns"
    assert len(claims_of(body)) == MAX_CLAIMS


class Claims:
    """Claims that all have the same device for themselves. Counts the reads, and how many are concurrent."""

    def __init__(self) -> None:
        self.reads = self.running = self.most = 0

    async def get(self, *_: Any) -> dict[str, Any]:
        self.reads, self.running = self.reads + 1, self.running + 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0)  # lets the other reads begin
        self.running -= 1
        return {"status": {"allocation": {"devices": {"results": [{"driver": "d", "pool": "p", "device": "0"}]}}}}


@pytest.mark.parametrize(("device", "reads"), [("device d/p/0", CONCURRENT_READS), ("device d/p/1", 100)])
def test_claims_are_read_concurrently_until_one_has_the_device(device: str, reads: int) -> None:
    client: Any = Claims()
    keys = [ObjectKey("ns", f"c{number}") for number in range(100)]
    assert asyncio.run(allocated(client, keys, [device])) == {"device d/p/0": Decimal(1)}
    assert (client.reads, client.most) == (reads, CONCURRENT_READS)
