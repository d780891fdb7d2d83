"""Healthy requests beside others that are rejected: 80 in one namespace whose webhook on pods/binding is down.

The webhook is a real configuration whose endpoint refuses connections. Each batch of healthy requests is measured
alone first, then beside the rejected ones, when each of those has been rejected at least once.
"""

import asyncio
import time
from dataclasses import dataclass

from benchmarks.drain import NODES, SPOKEN, warm_up
from benchmarks.load import clear, each
from benchmarks.report import Figure, Report
from benchmarks.rig import NAMESPACE, READY_S, rig
from benchmarks.sides import Bound
from localcluster.workload import LocalProcess
from shared.kube.client import KubeClient
from shared.kube.reflector import Reflector
from shared.kube.resources import BINDREQUESTS, NAMESPACES, PODS, VALIDATING_WEBHOOKS, Selection
from shared.testing.builders import bind_request, pod

BROKEN = "bench-broken"
REJECTED = 'bowline_kube_requests_total{code="500",resource="pods/binding",verb="create"}'
POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class IsolationSizes:
    """How many requests are rejected, how many are healthy, and the repetitions."""

    rejected: int = 80
    healthy: int = 80
    batches: int = 3


async def bench_isolation(sizes: IsolationSizes) -> Report:
    """Measure; takes a minute."""
    report = Report("Healthy requests beside rejected ones of another namespace, one run on one machine")
    with rig(NODES) as stage:
        async with await stage.client() as client, await stage.bare() as bare:
            await warm_up(client, bare)
            with stage.reconciler(SPOKEN) as process:
                await asyncio.to_thread(process.wait_ready, READY_S)
                await _batch(client, "warm", sizes.healthy)
                alone = tuple([await _batch(client, f"alone-{n}", sizes.healthy) for n in range(sizes.batches)])
                await _reject(client, process, sizes.rejected)
                beside = tuple([await _batch(client, f"beside-{n}", sizes.healthy) for n in range(sizes.batches)])
                rejected = await _count(process)
    name = f"{sizes.healthy} healthy requests"
    report.add(Figure(f"{name}: all bound after", "s", alone))
    report.add(Figure(f"{name} beside {sizes.rejected} rejected ones: all bound after", "s", beside, "", "<= 3"))
    report.add(Figure(f"{name}: beside/alone", "x", beside, f"{name}: all bound after", "<= 2"))
    report.add(Figure("POSTs rejected meanwhile", "", (rejected,)))
    return report


async def _batch(client: KubeClient, prefix: str, count: int) -> float:
    """Return the seconds from the first decision to the last bound pod."""
    uids: dict[int, str] = {}

    async def create(number: int) -> None:
        made = await client.create(PODS, NAMESPACE, pod(f"{prefix}-{number}", NAMESPACE))
        uids[number] = made["metadata"]["uid"]

    async def decide(number: int) -> None:
        name = f"{prefix}-{number}"
        body = bind_request(name, f"gpu-node-{number % NODES}", NAMESPACE, uids[number])
        await client.create(BINDREQUESTS, NAMESPACE, body)

    await each(count, create)
    bound = Bound()
    reflector = Reflector(client, Selection(PODS, NAMESPACE, field_selector="spec.nodeName!="), on_event=bound.seen)
    watching = asyncio.create_task(reflector.run())
    try:
        await reflector.synced.wait()
        began = time.perf_counter()
        await each(count, decide)
        await bound.all_of(count)
        return max(bound.at.values()) - began
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await clear(client)


async def _reject(client: KubeClient, process: LocalProcess, count: int) -> None:
    """Create requests that are rejected, and wait until each has been."""
    labels = {"bench": BROKEN}
    await client.create(NAMESPACES, "", {"metadata": {"name": BROKEN, "labels": labels}})
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/binding"]}
    hook = {
        "name": "guard.bench.bowline.dev",
        "clientConfig": {"url": "https://127.0.0.1:1/"},
        "rules": [rule],
        "namespaceSelector": {"matchLabels": labels},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    await client.create(VALIDATING_WEBHOOKS, "", {"metadata": {"name": BROKEN}, "webhooks": [hook]})
    # The API server watches the configurations.
    await asyncio.sleep(2)

    async def create(number: int) -> None:
        name = f"broken-{number}"
        made = await client.create(PODS, BROKEN, pod(name, BROKEN))
        body = bind_request(name, f"gpu-node-{number % NODES}", BROKEN, made["metadata"]["uid"])
        await client.create(BINDREQUESTS, BROKEN, body)

    await each(count, create)
    async with asyncio.timeout(READY_S):
        while await _count(process) < count:  # noqa: ASYNC110 - another process's counter
            await asyncio.sleep(POLL_S)


async def _count(process: LocalProcess) -> float:
    """Return how many Bindings got a 500."""
    _, text = await asyncio.to_thread(process.get, f"/metrics?name[]={REJECTED.partition('{')[0]}")
    line = next((line for line in text.splitlines() if line.startswith(REJECTED)), None)
    return float(line.rsplit(" ", 1)[1]) if line is not None else 0.0
