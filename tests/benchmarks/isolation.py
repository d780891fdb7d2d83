"""Healthy requests beside others: of a namespace whose webhook for Bindings is down; of 8 and of 250 where it hangs.

The webhooks are real configurations. One endpoint refuses connections, the other accepts them and never replies, so
that the API server waits for 30 s. Each batch of healthy requests is measured alone first; then beside the rejected
ones, when each of those has been rejected at least once; then beside namespaces whose calls hang, which arrive one
after another.
"""

import asyncio
import time
from dataclasses import dataclass

from bowline.kube.client import KubeClient
from bowline.kube.reflector import Listener, Reflector
from bowline.kube.resources import BINDREQUESTS, NAMESPACES, PODS, VALIDATING_WEBHOOKS, Selection
from bowline.localcluster.workload import LocalProcess
from bowline.testing.builders import bind_request, pod
from tests.benchmarks.drain import NODES, SPOKEN, warm_up
from tests.benchmarks.load import clear, each
from tests.benchmarks.report import Figure, Report
from tests.benchmarks.rig import NAMESPACE, READY_S, rig
from tests.benchmarks.sides import Bound

BROKEN, HANGING = "bench-broken", "bench-hanging"
REJECTED = 'bowline_kube_requests_total{code="500",resource="pods/binding",verb="create"}'
POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class IsolationSizes:
    """How many requests are rejected, in how many namespaces they hang, how many in each, and the healthy ones."""

    rejected: int = 80
    hanging: tuple[int, ...] = (8, 250)
    hanging_requests: int = 10
    healthy: int = 80
    batches: int = 3


async def bench_isolation(sizes: IsolationSizes) -> Report:
    """Measure; takes two minutes."""
    report = Report("Healthy requests beside rejected ones of another namespace, one run on one machine")
    with rig(NODES) as stage:
        async with await stage.client() as client, await stage.bare() as bare:
            await warm_up(client, bare)
            with stage.reconciler(SPOKEN) as process:
                await asyncio.to_thread(process.wait_ready, READY_S)
                await batch(client, "warm", sizes.healthy)
                alone = tuple([await batch(client, f"alone-{n}", sizes.healthy) for n in range(sizes.batches)])
                await _reject(client, process, sizes.rejected)
                beside = tuple([await batch(client, f"beside-{n}", sizes.healthy) for n in range(sizes.batches)])
                rejections = await _count(process)
                hanging = await _beside_hanging(client, sizes)
    name = f"{sizes.healthy} healthy requests"
    report.add(Figure(f"{name}: all bound after", "s", alone))
    report.add(Figure(f"{name} beside {sizes.rejected} rejected ones: all bound after", "s", beside, "", "<= 3"))
    report.add(Figure(f"{name}: beside/alone", "x", beside, f"{name}: all bound after", "<= 2"))
    for number, batches in hanging.items():
        report.add(Figure(f"{name} beside {number} namespaces whose calls hang: all bound after", "s", batches))
        report.add(Figure(f"{name}: beside {number} hanging/alone", "x", batches, f"{name}: all bound after", "<= 2"))
    report.add(Figure("POSTs rejected meanwhile", "", (rejections,)))
    return report


async def batch(client: KubeClient, prefix: str, count: int) -> float:
    """Return the seconds from the first decision to the last bound pod."""
    uids: dict[int, str] = {}

    async def create(number: int) -> None:
        stored_pod = await client.create(PODS, NAMESPACE, pod(f"{prefix}-{number}", NAMESPACE))
        uids[number] = stored_pod["metadata"]["uid"]

    async def decide(number: int) -> None:
        name = f"{prefix}-{number}"
        body = bind_request(name, f"gpu-node-{number % NODES}", NAMESPACE, uids[number])
        await client.create(BINDREQUESTS, NAMESPACE, body)

    await each(count, create)
    bound = Bound()
    reflector = Reflector(
        client, Selection(PODS, NAMESPACE, field_selector="spec.nodeName!="), listener=Listener(bound.on_event)
    )
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
    await _guard(client, BROKEN, "https://127.0.0.1:1/")
    await _requests(client, BROKEN, BROKEN, count)
    async with asyncio.timeout(READY_S):
        while await _count(process) < count:  # noqa: ASYNC110 - another process's counter
            await asyncio.sleep(POLL_S)


async def _beside_hanging(client: KubeClient, sizes: IsolationSizes) -> dict[int, tuple[float, ...]]:
    """Return the durations of the batches beside each number of namespaces whose calls hang."""

    async def never_reply(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    silent = await asyncio.start_server(never_reply, "127.0.0.1", 0)
    url = f"https://127.0.0.1:{silent.sockets[0].getsockname()[1]}/"
    durations: dict[int, tuple[float, ...]] = {}
    await _guard(client, HANGING, url)
    try:
        for number in range(1, max(sizes.hanging) + 1):
            await _requests(client, f"{HANGING}-{number}", HANGING, sizes.hanging_requests)
            if number in sizes.hanging:
                batches = [await batch(client, f"hang-{number}-{n}", sizes.healthy) for n in range(sizes.batches)]
                durations[number] = tuple(batches)
    finally:
        silent.close()
    return durations


async def _guard(client: KubeClient, label: str, url: str) -> None:
    """Create a webhook on pods/binding of the namespaces with the label."""
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/binding"]}
    hook = {
        "name": "guard.bench.bowline.dev",
        "clientConfig": {"url": url},
        "rules": [rule],
        "namespaceSelector": {"matchLabels": {"bench": label}},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 30,
    }
    await client.create(VALIDATING_WEBHOOKS, "", {"metadata": {"name": label}, "webhooks": [hook]})
    # The API server watches the configurations.
    await asyncio.sleep(2)


async def _requests(client: KubeClient, namespace: str, label: str, count: int) -> None:
    """Create requests in a new namespace with the label."""
    await client.create(NAMESPACES, "", {"metadata": {"name": namespace, "labels": {"bench": label}}})

    async def create(number: int) -> None:
        name = f"broken-{number}"
        stored_pod = await client.create(PODS, namespace, pod(name, namespace))
        body = bind_request(name, f"gpu-node-{number % NODES}", namespace, stored_pod["metadata"]["uid"])
        await client.create(BINDREQUESTS, namespace, body)

    await each(count, create)


async def _count(process: LocalProcess) -> float:
    """Return how many Bindings got a 500."""
    _, text = await asyncio.to_thread(process.get, f"/metrics?name[]={REJECTED.partition('{')[0]}")
    line = next((line for line in text.splitlines() if line.startswith(REJECTED)), None)
    return float(line.rsplit(" ", 1)[1]) if line is not None else 0.0
