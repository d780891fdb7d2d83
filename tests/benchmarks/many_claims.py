"""The cost of claims without work: those of bound pods, and those whose volumes are not provisioned yet.

Memory is compared with the same reconciler on an empty cluster. Calls are counted by the reconciler itself, once
every request waits: reads and writes to the API server, without the renewals of its Lease.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bowline.api import names
from bowline.kube.client import KubeClient
from bowline.kube.resources import (
    BINDREQUESTS,
    CSIDRIVERS,
    CSISTORAGECAPACITIES,
    PERSISTENTVOLUMECLAIMS,
    PODS,
    RESOURCECLAIMS,
    STORAGECLASSES,
)
from bowline.localcluster.workload import LocalProcess
from bowline.testing.builders import bind_request, pod
from tests.benchmarks.drain import NODES, SPOKEN
from tests.benchmarks.load import each
from tests.benchmarks.report import Figure, Report
from tests.benchmarks.rig import NAMESPACE, POLL_S, READY_S, Rig, resident_mb, rig

PROVISIONER = "csi.example.com"
CALLS = "bowline_kube_requests_total"
PATIENCE_S = 600.0


@dataclass(frozen=True, slots=True)
class ManySizes:
    """Sizes of all parts."""

    bound: int = 100_000  # pods on nodes, each with a resource claim
    waiting: int = 5000  # requests, each for a pod with a volume claim
    seconds: float = 60.0  # in which calls are counted
    waited: tuple[float, ...] = (15.0, 60.0)  # from the last claim's first pass until calls are counted


async def bench_many_claims(sizes: ManySizes) -> Report:
    """Measure both."""
    report = Report("Claims that nothing has to be done for, one run on one machine")
    with rig(NODES) as stage:
        async with await stage.client() as client:
            await _bound(stage, client, sizes, report)
    with rig(NODES) as stage:
        async with await stage.client() as client:
            await _waiting(stage, client, sizes, report)
    return report


async def _bound(stage: Rig, client: KubeClient, sizes: ManySizes, report: Report) -> None:
    empty = "memory of the reconciler beside no claims"
    name = f"memory of the reconciler beside {sizes.bound} bound pods with a resource claim each"
    for figure, count, against in ((empty, 0, ""), (name, sizes.bound, empty)):
        await each(count, lambda number: _bound_pod(client, number))
        with stage.reconciler(SPOKEN) as process:
            process.wait_ready(READY_S)
            report.add(Figure(figure, "MB", (resident_mb(process),), against))
    if sizes.bound:
        growth = (report.value(name) - report.value(empty)) * 1e6 / sizes.bound
        report.add(Figure("of that for each bound pod and its claim", "bytes", (growth,)))


async def _bound_pod(client: KubeClient, number: int) -> None:
    requests = [{"name": "dev", "exactly": {"deviceClassName": "gpu.example.com"}}]
    claim = {"metadata": {"name": f"p-{number}"}, "spec": {"devices": {"requests": requests}}}
    claims = [{"name": "dev", "resourceClaimName": f"p-{number}"}]
    node = f"gpu-node-{number % NODES}"
    await client.create(RESOURCECLAIMS, NAMESPACE, claim)
    await client.create(PODS, NAMESPACE, pod(f"p-{number}", NAMESPACE, nodeName=node, resourceClaims=claims))


async def _waiting(stage: Rig, client: KubeClient, sizes: ManySizes, report: Report) -> None:
    mode = {"provisioner": PROVISIONER, "volumeBindingMode": "WaitForFirstConsumer"}
    await client.create(STORAGECLASSES, "", {"metadata": {"name": "late"}, **mode})
    driver = {"storageCapacity": True, "attachRequired": False}
    await client.create(CSIDRIVERS, "", {"metadata": {"name": PROVISIONER}, "spec": driver})
    await each(NODES, lambda number: _capacity(client, number))
    await each(sizes.waiting, lambda number: _waiting_pod(client, number))
    with stage.reconciler(SPOKEN) as process:
        process.wait_ready(READY_S)
        await _until_asked(client, sizes.waiting)
        for wait in sizes.waited:
            await asyncio.sleep(wait)
            before = await _calls(process)
            await asyncio.sleep(sizes.seconds)
            after = await _calls(process)
            where = f"beside {sizes.waiting} waiting volume claims, {wait:g} s on"
            report.add(Figure(f"calls {where}", "a minute", (_per_minute(before, after, sizes.seconds),)))
            lists = {key: value for key, value in after.items() if 'resource="csistoragecapacities"' in key}
            lists_per_minute = _per_minute(before, lists, sizes.seconds)
            report.add(Figure(f"of them for storage capacities {where}", "a minute", (lists_per_minute,)))
        report.add(Figure(f"memory of the reconciler beside {sizes.waiting} of them", "MB", (resident_mb(process),)))


def _per_minute(before: Mapping[str, float], after: Mapping[str, float], seconds: float) -> float:
    return sum(value - before.get(key, 0.0) for key, value in after.items()) * 60 / seconds


async def _capacity(client: KubeClient, number: int) -> None:
    here = {"matchLabels": {names.NODE_HOSTNAME: f"gpu-node-{number}"}}
    body: dict[str, Any] = {"metadata": {"name": f"room-{number}"}, "storageClassName": "late", "nodeTopology": here}
    await client.create(CSISTORAGECAPACITIES, NAMESPACE, body | {"maximumVolumeSize": "1Mi"})


async def _waiting_pod(client: KubeClient, number: int) -> None:
    name = f"w-{number}"
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "late",
        "resources": {"requests": {"storage": "1Gi"}},
    }
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": name}}]
    await client.create(PERSISTENTVOLUMECLAIMS, NAMESPACE, {"metadata": {"name": name}, "spec": spec})
    stored_pod = await client.create(PODS, NAMESPACE, pod(name, NAMESPACE, schedulerName="bowline", volumes=volumes))
    request = bind_request(name, f"gpu-node-{number % NODES}", NAMESPACE, stored_pod["metadata"]["uid"])
    await client.create(BINDREQUESTS, NAMESPACE, request)


async def _until_asked(client: KubeClient, count: int) -> None:
    """Wait until a volume was requested for every claim."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            claims = await client.list_all(PERSISTENTVOLUMECLAIMS.as_metadata(), NAMESPACE)
            claim_count = sum(names.SELECTED_NODE in (claim["metadata"].get("annotations") or {}) for claim in claims)
            if claim_count == count:
                return
            await asyncio.sleep(POLL_S * 10)


async def _calls(process: LocalProcess) -> dict[str, float]:
    """Calls so far by series, without those for Leases."""
    status, text = await asyncio.to_thread(process.get, f"/metrics?name[]={CALLS}")
    if status != 200:
        raise RuntimeError(f"/metrics answered {status}")
    lines = [line for line in text.splitlines() if line.startswith(CALLS) and 'resource="leases"' not in line]
    return {series: float(value) for series, value in (line.rsplit(" ", 1) for line in lines)}
