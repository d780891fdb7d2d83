"""Pods that wait for volumes: Bowline beside kube-scheduler, each with its own control plane.

The two sides that are compared take turns, because the machine's speed changes within a run. Volumes, claims and pods
exist before the clock starts; it starts with the first decision (for kube-scheduler: the first pod, which is when it
may decide).
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from bowline.api import names
from bowline.api.meta import Object, ObjectKey
from bowline.kube.client import KubeClient
from bowline.kube.reflector import EventType, Listener, Reflector
from bowline.kube.resources import (
    BINDREQUESTS,
    PERSISTENTVOLUMECLAIMS,
    PERSISTENTVOLUMES,
    PODS,
    STORAGECLASSES,
    Selection,
)
from bowline.testing.builders import bind_request, pod
from tests.benchmarks.bare_volumes import bare_binder, bind_and_report, bind_only
from tests.benchmarks.load import DECISIONS_AT_ONCE, each
from tests.benchmarks.report import Figure, Report, percentile
from tests.benchmarks.rig import NAMESPACE
from tests.benchmarks.sides import PATIENCE_S, Bound, Budgets, Side, bare, bowline, kube_scheduler

WHAT = "local volume"
PROVISIONER = "csi.example.com"
CONTROLLERS = ("persistentvolume-binder-controller",)


@dataclass(frozen=True, slots=True)
class VolumeSizes:
    """Sizes of all parts."""

    pods: int = 400
    nodes: int = 100
    repetitions: int = 3
    late_pods: int = 100
    late_rate: float = 20.0  # requests a second
    provisioner_s: float = 1.0


async def bench_volumes(sizes: VolumeSizes) -> Report:
    """Measure both schedulers for the same final state."""
    report = Report("Pods with a volume claim each, one run on one machine")
    async with kube_scheduler(sizes.nodes, CONTROLLERS) as side:
        await _drain_scheduler(side, sizes)
        side.report(report, WHAT, sizes.pods)
    async with bare("two writes", sizes.nodes, CONTROLLERS) as (side, client):
        await _drain_bare(side, client, sizes, report=False)
        side.report(report, WHAT, sizes.pods)
    for _ in range(sizes.repetitions):
        async with bare("all writes", sizes.nodes, CONTROLLERS) as (side, client):
            await _drain_bare(side, client, sizes, report=True)
            ceiling = side.report(report, WHAT, sizes.pods)
        async with bowline(sizes.nodes, CONTROLLERS) as side:
            await _drain_reconciler(side, sizes)
            side.report(report, WHAT, sizes.pods, Budgets(">= 0.95", "<= 300", ceiling))
    async with bowline(sizes.nodes, CONTROLLERS) as side:
        over = await _late(side.client, sizes, side.bound)
        for share, word in ((0.5, "median"), (0.99, "p99")):
            name = f"Bowline: volume made to pod bound, {word}"
            report.add(Figure(name, "ms", (1000 * percentile(over, share),), wanted="<= 100"))
    return report


# --- local volumes ---


async def _local_storage(client: KubeClient, sizes: VolumeSizes) -> None:
    await _make_class(client, names.NO_PROVISIONER)

    async def create_volume_and_claim(number: int) -> None:
        await client.create(PERSISTENTVOLUMES, "", _volume(number, f"gpu-node-{number % sizes.nodes}"))
        await client.create(PERSISTENTVOLUMECLAIMS, NAMESPACE, _claim(number))

    await each(sizes.pods, create_volume_and_claim)
    async with asyncio.timeout(PATIENCE_S):
        while True:
            volumes = await client.list_all(PERSISTENTVOLUMES)
            if all((volume.get("status") or {}).get("phase") == "Available" for volume in volumes):
                return
            await asyncio.sleep(0.1)


async def _drain_scheduler(side: Side, sizes: VolumeSizes) -> None:
    client = side.client
    await _local_storage(client, sizes)
    side.begin()

    async def create_pod(number: int) -> None:
        await client.create(PODS, NAMESPACE, _pod(number, "default-scheduler"))

    await each(sizes.pods, create_pod, DECISIONS_AT_ONCE)
    await side.bound.all_of(sizes.pods)


async def _drain_bare(side: Side, client: KubeClient, sizes: VolumeSizes, *, report: bool) -> None:
    await _local_storage(side.client, sizes)
    pods = await _make_pods(side.client, sizes.pods)
    async with bare_binder(client) as binder:
        side.begin()
        if report:
            await bind_and_report(binder, side.client, pods, _requests(pods, sizes.nodes))
        else:
            await bind_only(binder, pods, sizes.nodes)
        await side.bound.all_of(sizes.pods)


async def _drain_reconciler(side: Side, sizes: VolumeSizes) -> None:
    client = side.client
    await _local_storage(client, sizes)
    requests = _requests(await _make_pods(client, sizes.pods), sizes.nodes)
    side.begin()

    async def create_request(number: int) -> None:
        await client.create(BINDREQUESTS, NAMESPACE, requests[number])

    await each(sizes.pods, create_request, DECISIONS_AT_ONCE)
    await side.bound.all_of(sizes.pods)


# --- a slow provisioner ---


async def _late(client: KubeClient, sizes: VolumeSizes, bound: Bound) -> list[float]:
    """Return, for each pod, the seconds from the volume's creation to the pod on its node."""
    await _make_class(client, PROVISIONER)

    async def claim(number: int) -> None:
        await client.create(PERSISTENTVOLUMECLAIMS, NAMESPACE, _claim(number))

    await each(sizes.late_pods, claim)
    requests = _requests(await _make_pods(client, sizes.late_pods), sizes.nodes)
    creation_times: dict[str, float] = {}
    async with _provisioner(client, sizes.provisioner_s, creation_times):
        for request in requests:
            await client.create(BINDREQUESTS, NAMESPACE, request)
            await asyncio.sleep(1 / sizes.late_rate)
        await bound.all_of(sizes.late_pods)
    return [bound.at[name] - at for name, at in creation_times.items()]


@asynccontextmanager
async def _provisioner(client: KubeClient, takes_s: float, creation_times: dict[str, float]) -> AsyncIterator[None]:
    """Create the requested volumes after ``takes_s``; record the times, by the common name of claim and pod."""
    claim_names: set[str] = set()
    async with asyncio.TaskGroup() as tasks:

        async def make(claim: Object, node: str) -> None:
            await asyncio.sleep(takes_s)
            name = claim["metadata"]["name"]
            await client.create(PERSISTENTVOLUMES, "", _made_volume(claim, node))
            creation_times[name] = time.perf_counter()

        def on_event(_: EventType, key: ObjectKey, __: Object | None, new: Object | None) -> None:
            node = ((new or {}).get("metadata") or {}).get("annotations", {}).get(names.SELECTED_NODE)
            if new is not None and node and key.name not in claim_names:
                claim_names.add(key.name)
                tasks.create_task(make(new, node))

        reflector = Reflector(client, Selection(PERSISTENTVOLUMECLAIMS, NAMESPACE), listener=Listener(on_event))
        watching = tasks.create_task(reflector.run())
        try:
            yield
        finally:
            watching.cancel()


# --- objects ---


def _requests(pods: Sequence[Object], nodes: int) -> list[dict[str, Any]]:
    return [
        bind_request(f"p-{number}", f"gpu-node-{number % nodes}", NAMESPACE, pod["metadata"]["uid"])
        for number, pod in enumerate(pods)
    ]


async def _make_pods(client: KubeClient, count: int) -> list[Object]:
    pods: dict[int, Object] = {}

    async def create_pod(number: int) -> None:
        pods[number] = await client.create(PODS, NAMESPACE, _pod(number, "bowline"))

    await each(count, create_pod)
    return [pods[number] for number in range(count)]


async def _make_class(client: KubeClient, provisioner: str) -> None:
    body = {"metadata": {"name": "late"}, "provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer"}
    await client.create(STORAGECLASSES, "", body)


def _pod(number: int, scheduler: str) -> dict[str, Any]:
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": f"p-{number}"}}]
    return pod(f"p-{number}", NAMESPACE, schedulerName=scheduler, volumes=volumes)


def _claim(number: int) -> dict[str, Any]:
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "late",
        "resources": {"requests": {"storage": "1Gi"}},
    }
    return {"metadata": {"name": f"p-{number}"}, "spec": spec}


def _volume(number: int, node: str, **spec: Any) -> dict[str, Any]:
    expression = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    source = {} if spec else {"local": {"path": f"/mnt/{number}"}}
    return {
        "metadata": {"name": f"v-{number}"},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "late",
            "persistentVolumeReclaimPolicy": "Retain",
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}},
            **source,
            **spec,
        },
    }


def _made_volume(claim: Object, node: str) -> dict[str, Any]:
    metadata = claim["metadata"]
    reference = {"apiVersion": "v1", "kind": "PersistentVolumeClaim"} | {
        key: metadata[key] for key in ("namespace", "name", "uid", "resourceVersion")
    }
    volume = _volume(0, node, csi={"driver": PROVISIONER, "volumeHandle": metadata["uid"]}, claimRef=reference)
    volume["metadata"] = {
        "name": f"pvc-{metadata['uid']}",
        "annotations": {"pv.kubernetes.io/provisioned-by": PROVISIONER},
    }
    return volume
