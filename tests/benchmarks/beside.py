"""Healthy requests beside others: beside namespaces and a GPU group whose calls hang, and beside thousands that wait.

A call hangs in a webhook that never replies, so that the API server waits for its 30 s. Beside those, kwok acts as
the kubelets, and as the agents of the groups.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from bowline.api import names
from bowline.api.meta import Object
from bowline.framework.interface.mutable import MutablePod
from bowline.kube.client import KubeClient
from bowline.kube.resources import BINDREQUESTS, NAMESPACES, PODS, VALIDATING_WEBHOOKS
from bowline.localcluster.spec import ClusterSpec
from bowline.plugins.gpu_sharing.admission import prepare
from bowline.testing.builders import namespace, pod
from tests.benchmarks.drain import NODES, warm_up
from tests.benchmarks.latency import bound_pods, our_latency, percentiles
from tests.benchmarks.load import clear, create_all, make, requests_for
from tests.benchmarks.report import Figure, Report
from tests.benchmarks.rig import NAMESPACE, READY_S, Rig, rig

HANGING = "hanging"
# Until the API server has seen a new configuration, and until calls of all kinds hang.
SETTLED_S = 2.0


@dataclass(frozen=True, slots=True)
class BesideSizes:
    """How many are healthy, how many namespaces hang with how many requests each, and how many requests wait."""

    healthy: int = 80
    namespaces: int = 100
    of_each: int = 2
    shares: int = 20  # of the hanging group, and healthy ones
    waiting: int = 10_000
    rate: int = 40
    seconds: float = 5.0
    turns: int = 3


async def bench_beside(sizes: BesideSizes) -> Report:
    """Measure; takes a minute and a half in full."""
    report = Report("Healthy requests beside others")
    for part, with_kubelets in ((_beside_hanging, True), (_beside_waiting, False)):
        with rig(NODES, ClusterSpec(kwok=with_kubelets, controllers=())) as stage:
            async with await stage.client() as client, await stage.bare() as bare:
                await warm_up(client, bare)
                await part(stage, client, sizes, report)
    return report


async def _beside_hanging(stage: Rig, client: KubeClient, sizes: BesideSizes, report: Report) -> None:
    """Requests beside namespaces whose Bindings hang; shares beside a group whose reservation pod is not created."""
    with stage.reconciler() as process:
        process.wait_ready(READY_S)
        async with _hanging(client, "pods/binding", {"namespaceSelector": {"matchLabels": {"bench": HANGING}}}):
            for number in range(sizes.namespaces):
                await create_all(client, NAMESPACES, [namespace(f"{HANGING}-{number}", bench=HANGING)])
                pods = [pod(f"p-{index}", f"{HANGING}-{number}") for index in range(sizes.of_each)]
                await create_all(client, BINDREQUESTS, requests_for(await create_all(client, PODS, pods), NODES))
            await asyncio.sleep(SETTLED_S)
            text = f"{sizes.healthy} requests beside {sizes.namespaces} hanging namespaces: all bound after"
            for turn in range(sizes.turns):
                pods = [pod(f"healthy-{turn}-{number}", NAMESPACE) for number in range(sizes.healthy)]
                requests = requests_for(await create_all(client, PODS, pods), NODES)
                report.add(Figure(text, "s", (await _bound_s(client, requests),), wanted="<= 3"))
        stage.cluster.make_runtime_class()
        async with _hanging(client, "pods", {"objectSelector": {"matchLabels": {names.LABEL_GPU_GROUP: HANGING}}}):
            await create_all(client, BINDREQUESTS, await _shares(client, HANGING, [HANGING] * sizes.shares))
            await asyncio.sleep(SETTLED_S)
            text = f"{sizes.shares} shares beside {sizes.shares} of a hanging group: all bound after"
            for turn in range(sizes.turns):
                groups = [f"group-{turn}-{number}" for number in range(sizes.shares)]
                requests = await _shares(client, f"share-{turn}", groups)
                report.add(Figure(text, "s", (await _bound_s(client, requests),), wanted="<= 2"))


async def _beside_waiting(stage: Rig, client: KubeClient, sizes: BesideSizes, report: Report) -> None:
    """Latency alone, and beside requests whose pods have a scheduling gate."""
    with stage.reconciler() as process:
        process.wait_ready(READY_S)
        alone = f"at {sizes.rate}/s alone"
        for figure in percentiles(alone, await our_latency(client, sizes.rate, sizes.seconds)):
            report.add(figure)
        await clear(client)
        await make(client, "waiting", sizes.waiting, NODES, schedulingGates=[{"name": "bench/hold"}])
        beside = await our_latency(client, sizes.rate, sizes.seconds)
        name = f"at {sizes.rate}/s beside {sizes.waiting} waiting"
        for figure in percentiles(name, beside, alone, ("<= 2", "<= 2")):
            report.add(figure)


async def _bound_s(client: KubeClient, requests: Sequence[Object]) -> float:
    """Create the requests; return the seconds from the first of them to the last bound pod."""
    async with bound_pods(client) as bound:
        began = time.perf_counter()
        await create_all(client, BINDREQUESTS, requests)
        await bound.wait(len(requests), READY_S)
        return max(bound.at.values()) - began


async def _shares(client: KubeClient, prefix: str, groups: Sequence[str]) -> list[Object]:
    """Create a pod with half a GPU for each group, as the webhook prepares it; return their requests."""
    pods = []
    for number in range(len(groups)):
        body = pod(f"{prefix}-{number}", NAMESPACE, runtimeClassName="nvidia")
        body["metadata"]["annotations"] = {names.GPU_FRACTION: "0.5"}
        prepare(MutablePod(body), NAMESPACE)
        pods.append(body)
    received = {"receivedResourceType": "Fraction", "receivedGPU": {"count": 1, "portion": "0.50"}}
    requests = requests_for(await create_all(client, PODS, pods), 1 if len(set(groups)) == 1 else NODES)
    return [
        {**request, "spec": {**request["spec"], **received, "selectedGPUGroups": [group]}}
        for request, group in zip(requests, groups, strict=True)
    ]


@asynccontextmanager
async def _hanging(client: KubeClient, resource: str, selector: dict[str, Any]) -> AsyncIterator[None]:
    """Until the block ends, creating what the selector matches is reviewed by a webhook that never replies."""
    connections: list[asyncio.StreamWriter] = []

    async def never_reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        await reader.read()

    async with await asyncio.start_server(never_reply, "127.0.0.1", 0) as server:
        rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": [resource]}
        hook = {
            "name": "hanging.bench.bowline.dev",
            "clientConfig": {"url": f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/"},
            "rules": [rule],
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "timeoutSeconds": 30,
            **selector,
        }
        await create_all(client, VALIDATING_WEBHOOKS, [{"metadata": {"name": HANGING}, "webhooks": [hook]}])
        await asyncio.sleep(SETTLED_S)
        try:
            yield
            if not connections:
                raise RuntimeError("no call has reached the webhook that never replies")
        finally:
            await client.delete(VALIDATING_WEBHOOKS, "", HANGING)
            for connection in connections:
                connection.close()
