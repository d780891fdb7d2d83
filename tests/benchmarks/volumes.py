"""Pods that wait for volumes: Bowline beside kube-scheduler, each with its own control plane.

The two sides that are compared take turns, because the machine's speed changes within a run. Volumes, claims and pods
exist before the clock starts; it starts with the first decision (for kube-scheduler: the first pod, which is when it
may decide).
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bowline.api import names
from bowline.api.meta import Object
from bowline.kube.client import KubeClient
from bowline.kube.resources import (
    BINDREQUESTS,
    PERSISTENTVOLUMECLAIMS,
    PERSISTENTVOLUMES,
    PODS,
    STORAGECLASSES,
)
from bowline.testing.builders import bind_request, pod
from tests.benchmarks.load import DECISIONS_AT_ONCE, each
from tests.benchmarks.report import Report
from tests.benchmarks.rig import NAMESPACE
from tests.benchmarks.sides import PATIENCE_S, Budgets, Side, bowline, kube_scheduler

WHAT = "local volume"
CONTROLLERS = ("persistentvolume-binder-controller",)


@dataclass(frozen=True, slots=True)
class VolumeSizes:
    """Sizes of all parts."""

    pods: int = 400
    nodes: int = 100
    repetitions: int = 3


async def bench_volumes(sizes: VolumeSizes) -> Report:
    """Measure both schedulers for the same final state."""
    report = Report("Pods with a volume claim each, one run on one machine")
    for _ in range(sizes.repetitions):
        async with kube_scheduler(sizes.nodes, CONTROLLERS) as side:
            await _drain_scheduler(side, sizes)
            peer = side.report(report, WHAT, sizes.pods)
        async with bowline(sizes.nodes, CONTROLLERS) as side:
            await _drain_reconciler(side, sizes)
            side.report(report, WHAT, sizes.pods, Budgets(">= 3", against=peer))
    return report


# --- local volumes ---


async def _local_storage(client: KubeClient, sizes: VolumeSizes) -> None:
    mode = {"provisioner": names.NO_PROVISIONER, "volumeBindingMode": "WaitForFirstConsumer"}
    await client.create(STORAGECLASSES, "", {"metadata": {"name": "late"}, **mode})

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


async def _drain_reconciler(side: Side, sizes: VolumeSizes) -> None:
    client = side.client
    await _local_storage(client, sizes)
    requests = _requests(await _make_pods(client, sizes.pods), sizes.nodes)
    side.begin()

    async def create_request(number: int) -> None:
        await client.create(BINDREQUESTS, NAMESPACE, requests[number])

    await each(sizes.pods, create_request, DECISIONS_AT_ONCE)
    await side.bound.all_of(sizes.pods)


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


def _volume(number: int, node: str) -> dict[str, Any]:
    expression = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    return {
        "metadata": {"name": f"v-{number}"},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "late",
            "persistentVolumeReclaimPolicy": "Retain",
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}},
            "local": {"path": f"/mnt/{number}"},
        },
    }
