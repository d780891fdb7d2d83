"""Pods with a ResourceClaim each: Bowline beside kube-scheduler, each with its own control plane.

The two sides take turns, because the machine's speed changes within a run. Devices, claims and pods exist before the
clock starts; it starts with the first decision (for kube-scheduler: the first pod, which is when it may decide).
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from bowline.api import names
from bowline.kube.client import KubeClient
from bowline.kube.resources import BINDREQUESTS, PODS, RESOURCECLAIMS, Resource
from bowline.testing.builders import bind_request, pod
from tests.benchmarks.load import each
from tests.benchmarks.report import Report
from tests.benchmarks.rig import NAMESPACE
from tests.benchmarks.sides import Budgets, Side, bowline, kube_scheduler

DRIVER, CLASS = "dra.example.com", "gpu.example.com"
CONTROLLERS = ("resourceclaim-controller",)
DEVICECLASSES = Resource("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", namespaced=False)
RESOURCESLICES = Resource("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", namespaced=False)


@dataclass(frozen=True, slots=True)
class ClaimSizes:
    """Sizes of all parts."""

    pods: int = 400
    nodes: int = 100
    repetitions: int = 3


async def bench_claims(sizes: ClaimSizes) -> Report:
    """Measure both schedulers for the same final state."""
    report = Report("Pods with a resource claim each, one run on one machine")
    for _ in range(sizes.repetitions):
        async with kube_scheduler(sizes.nodes, CONTROLLERS) as side:
            await _drain_scheduler(side, sizes)
            peer = side.report(report, "resource claim", sizes.pods)
        async with bowline(sizes.nodes, CONTROLLERS) as side:
            await _drain_reconciler(side, sizes)
            side.report(report, "resource claim", sizes.pods, Budgets(">= 1.1", against=peer))
    return report


async def _drain_scheduler(side: Side, sizes: ClaimSizes) -> None:
    client = side.client
    await _make_devices(client, sizes)
    side.begin()

    async def create_pod(number: int) -> None:
        await client.create(PODS, NAMESPACE, _pod(number, "default-scheduler"))

    await each(sizes.pods, create_pod)
    await side.bound.all_of(sizes.pods)


async def _drain_reconciler(side: Side, sizes: ClaimSizes) -> None:
    client = side.client
    await _make_devices(client, sizes)
    uids: dict[int, str] = {}

    async def create_pod(number: int) -> None:
        uids[number] = (await client.create(PODS, NAMESPACE, _pod(number, "bowline")))["metadata"]["uid"]

    await each(sizes.pods, create_pod)
    side.begin()
    await each(sizes.pods, _requests(client, uids, sizes.nodes))
    await side.bound.all_of(sizes.pods)


async def _make_devices(client: KubeClient, sizes: ClaimSizes) -> None:
    await client.create(DEVICECLASSES, "", {"metadata": {"name": CLASS}, "spec": {}})
    per_node = -(-sizes.pods // sizes.nodes)

    async def publish(number: int) -> None:
        await client.create(RESOURCESLICES, "", _slice(f"gpu-node-{number}", per_node))

    async def claim(number: int) -> None:
        requests = [{"name": "dev", "exactly": {"deviceClassName": CLASS}}]
        body = {"metadata": {"name": f"p-{number}"}, "spec": {"devices": {"requests": requests}}}
        await client.create(RESOURCECLAIMS, NAMESPACE, body)

    await each(sizes.nodes, publish)
    await each(sizes.pods, claim)


def _slice(node: str, devices: int) -> dict[str, Any]:
    return {
        "metadata": {"name": node},
        "spec": {
            "driver": DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": f"d{number}"} for number in range(devices)],
        },
    }


def _pod(number: int, scheduler: str) -> dict[str, Any]:
    claims = [{"name": "dev", "resourceClaimName": f"p-{number}"}]
    return pod(f"p-{number}", NAMESPACE, schedulerName=scheduler, resourceClaims=claims)


def _requests(client: KubeClient, uids: dict[int, str], nodes: int) -> Callable[[int], Awaitable[None]]:
    async def create_request(number: int) -> None:
        node = f"gpu-node-{number % nodes}"
        device = {"request": "dev", "driver": DRIVER, "pool": node, "device": f"d{number // nodes}"}
        on_node = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
        allocation = {"devices": {"results": [device]}, "nodeSelector": {"nodeSelectorTerms": [on_node]}}
        decisions = [{"name": "dev", "allocation": allocation}]
        request = bind_request(f"p-{number}", node, NAMESPACE, uids[number], resourceClaimAllocations=decisions)
        # As the webhook would set it, which does not run here.
        request["metadata"]["finalizers"] = [names.FINALIZER]
        await client.create(BINDREQUESTS, NAMESPACE, request)

    return create_request
