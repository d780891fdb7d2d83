"""Pods that need a volume or a device each: Bowline beside kube-scheduler.

Every drain has its own control plane with the controller that acts for these pods, and the sides take turns. Volumes,
claims and devices exist before the clock starts. It starts with the first decision: for Bowline the first request of
pods that exist, for kube-scheduler the first pod, which is when it may decide. A pod counts when a watch reports it
on its node.

All processes share the machine's CPU, so what a pod costs decides the rate: beside it there are, until the last pod
is on its node, the CPU time of each process and the calls that the API server has answered, whoever made them.
"""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from bowline.api import names
from bowline.api.meta import Object
from bowline.kube.client import KubeClient
from bowline.kube.resources import (
    BINDREQUESTS,
    PERSISTENTVOLUMECLAIMS,
    PERSISTENTVOLUMES,
    PODS,
    RESOURCECLAIMS,
    RESOURCESLICES,
    STORAGECLASSES,
    Resource,
)
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.scheduler import SCHEDULER as EXAMPLE
from bowline.localcluster.spec import ClusterSpec
from bowline.testing import builders
from tests.benchmarks.cpu import cpu_s
from tests.benchmarks.latency import bound_pods
from tests.benchmarks.load import create_all, requests_for
from tests.benchmarks.report import Figure, Report
from tests.benchmarks.rig import NAMESPACE, POLL_S, READY_S, rig

SCHEDULER, BOWLINE = "kube-scheduler", "Bowline"
CALLS = "apiserver_request_total"
# Of which fewer than this for each pod are made: leases, and lists and watches.
SELDOM = 0.1
DEVICECLASSES = Resource("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", namespaced=False)
DRIVER = "dra.example.com"


@dataclass(frozen=True, slots=True)
class SchedulerSizes:
    """How many pods onto how many nodes, and how often each side has its turn."""

    pods: int = 400
    nodes: int = 100
    turns: int = 3


@dataclass(frozen=True, slots=True)
class Need:
    """What each pod needs: how it is made, and what a pod's spec and a request have for it, by number."""

    name: str
    controller: str
    budget: str
    make: Callable[[KubeClient, SchedulerSizes], Awaitable[None]]
    pod: Callable[[int], dict[str, Any]]
    request: Callable[[Object, int, SchedulerSizes], dict[str, Any]]


async def bench_scheduler(sizes: SchedulerSizes) -> Report:
    """Measure both sides for the same final state; takes four minutes in full."""
    report = Report("Pods with a volume or a device each, beside kube-scheduler")
    for turn in range(sizes.turns):
        for need in NEEDS:
            rate = f"{sizes.pods} pods with a {need.name} each"
            # Neither is always the first.
            for side in (SCHEDULER, BOWLINE) if turn % 2 == 0 else (BOWLINE, SCHEDULER):
                against, budget = (f"{SCHEDULER}: ", need.budget) if side == BOWLINE else ("", "")
                drained = await _drain(need, sizes, by_scheduler=side == SCHEDULER)
                report.add(Figure(f"{side}: {rate}", "pods/s", (drained.rate,), against and against + rate, budget))
                for process, ms in drained.cpu_ms.items():
                    name = f"{need.name}: CPU of {process}"
                    report.add(Figure(f"{side}: {name}", "ms/pod", (ms,), against and against + name))
                for call, count in sorted(drained.calls.items()):
                    report.add(Figure(f"{side}: {need.name}: {call}", "calls/pod", (count,)))
    return report


@dataclass(frozen=True, slots=True)
class Drained:
    """The pods per second of one side, and for each pod milliseconds by process and calls by verb and resource."""

    rate: float
    cpu_ms: Mapping[str, float]
    calls: Mapping[str, float]


async def _drain(need: Need, sizes: SchedulerSizes, *, by_scheduler: bool) -> Drained:
    """Measure one side."""
    spec = ClusterSpec(kwok=False, controllers=(need.controller,), scheduler=by_scheduler)
    with rig(sizes.nodes, spec) as stage, ExitStack() as stack:
        processes = {**stage.servers, "kube-controller-manager": stage.cluster.process("kube-controller-manager").pid}
        if by_scheduler:
            processes["binder"] = stage.cluster.process("kube-scheduler").pid
        else:
            reconciler = stack.enter_context(stage.reconciler())
            reconciler.wait_ready(READY_S)
            processes["binder"] = reconciler.pid
        processes["load"] = os.getpid()
        async with await stage.client() as client, bound_pods(client) as bound:
            await need.make(client, sizes)
            scheduler = "default-scheduler" if by_scheduler else EXAMPLE
            resource, bodies = (
                PODS,
                [
                    builders.pod(_name(number), NAMESPACE, schedulerName=scheduler, **need.pod(number))
                    for number in range(sizes.pods)
                ],
            )
            if not by_scheduler:
                requests = requests_for(await create_all(client, PODS, bodies), sizes.nodes)
                resource, bodies = (
                    BINDREQUESTS,
                    [{**request, **need.request(request, number, sizes)} for number, request in enumerate(requests)],
                )
            calls, cpu, began = _calls(stage.cluster), cpu_s(processes), time.perf_counter()
            await create_all(client, resource, bodies)
            await bound.wait(sizes.pods, READY_S)
            cpu_ms = {name: 1000 * (now - cpu[name]) / sizes.pods for name, now in cpu_s(processes).items()}
            each = {call: (now - calls[call]) / sizes.pods for call, now in _calls(stage.cluster).items()}
            seconds = max(bound.at.values()) - began
            return Drained(
                sizes.pods / seconds, cpu_ms, {call: count for call, count in each.items() if count >= SELDOM}
            )


def _calls(cluster: Cluster) -> Counter[str]:
    """The calls that the API server has answered so far, by verb and resource."""
    calls: Counter[str] = Counter()
    lines = (line for line in cluster.api.get("/metrics").splitlines() if line.startswith(CALLS))
    for metric in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in metric.samples:
            resource = "/".join(filter(None, (sample.labels["resource"], sample.labels["subresource"])))
            calls[f"{sample.labels['verb']} {resource}"] += int(sample.value)
    return calls


async def _make_volumes(client: KubeClient, sizes: SchedulerSizes) -> None:
    await create_all(client, STORAGECLASSES, [builders.storage_class("late")])
    volumes, claims = [], []
    for number in range(sizes.pods):
        node = f"gpu-node-{number % sizes.nodes}"
        volumes.append(builders.persistent_volume(_name(number), node=node, storageClassName="late"))
        claims.append(builders.persistent_volume_claim(_name(number), NAMESPACE, storageClassName="late"))
    await create_all(client, PERSISTENTVOLUMES, volumes)
    await create_all(client, PERSISTENTVOLUMECLAIMS, claims)
    async with asyncio.timeout(READY_S):
        while not await _all_available(client):  # noqa: ASYNC110 - written by another process
            await asyncio.sleep(POLL_S)


async def _all_available(client: KubeClient) -> bool:
    volumes = await client.list_all(PERSISTENTVOLUMES, "")
    return all((volume.get("status") or {}).get("phase") == "Available" for volume in volumes)


async def _make_devices(client: KubeClient, sizes: SchedulerSizes) -> None:
    await create_all(client, DEVICECLASSES, [{"metadata": {"name": "gpu.example.com"}, "spec": {}}])
    devices = [f"d{number}" for number in range(-(-sizes.pods // sizes.nodes))]
    slices = [builders.resource_slice(f"gpu-node-{number}", devices, DRIVER) for number in range(sizes.nodes)]
    await create_all(client, RESOURCESLICES, slices)
    claims = [builders.resource_claim(_name(number), NAMESPACE) for number in range(sizes.pods)]
    await create_all(client, RESOURCECLAIMS, claims)


def _with_allocation(request: Object, number: int, sizes: SchedulerSizes) -> dict[str, Any]:
    """The decision, and the finalizer that the webhook sets for a request which decides devices."""
    node = f"gpu-node-{number % sizes.nodes}"
    device = {"request": "dev", "driver": DRIVER, "pool": node, "device": f"d{number // sizes.nodes}"}
    on_node = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    allocation = {"devices": {"results": [device]}, "nodeSelector": {"nodeSelectorTerms": [on_node]}}
    spec = {**request["spec"], "resourceClaimAllocations": [{"name": "dev", "allocation": allocation}]}
    return {"metadata": {**request["metadata"], "finalizers": [names.FINALIZER]}, "spec": spec}


def _name(number: int) -> str:
    return f"p-{number}"


NEEDS = (
    Need(
        "local volume",
        "persistentvolume-binder-controller",
        ">= 3",
        _make_volumes,
        lambda number: {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": _name(number)}}]},
        lambda request, number, sizes: {},
    ),
    Need(
        "device",
        "resourceclaim-controller",
        ">= 1.1",
        _make_devices,
        lambda number: {"resourceClaims": [{"name": "dev", "resourceClaimName": _name(number)}]},
        _with_allocation,
    ),
)
