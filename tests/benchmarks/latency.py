"""From a request's creation to its bound pod, at a steady rate: by the loading client, and by the reconciler.

Both run some seconds at that rate before measuring: connections are open, modules are loaded, and a reconciler has
processed the existing objects. Another checkout's reconciler takes turns with this one's, because the machine's speed
changes.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from bowline.api.meta import Object, version_of
from bowline.kube.client import KubeClient
from bowline.kube.resources import BINDREQUESTS, PODS, Selection
from tests.benchmarks.drain import NODES, warm_up
from tests.benchmarks.load import BindTarget, big_pod, bind, clear, create_all, requests_for
from tests.benchmarks.report import Figure, Report, percentile
from tests.benchmarks.rig import HERE, NAMESPACE, OTHER, READY_S, rig

WARM_S = 3.0
# Of p50 and p99 at 40 requests a second, divided by the floor's.
BUDGETS = ("<= 1.12", "<= 1.5")


async def _paced_pods(client: KubeClient, rate: int, seconds: float) -> list[Object]:
    count = int(rate * (WARM_S + seconds))
    return await create_all(client, PODS, [big_pod(f"paced-{number}") for number in range(count)])


async def floor_latency(client: KubeClient, bare: KubeClient, rate: int, seconds: float) -> list[float]:
    """The loading client binds each request itself as soon as it is created; milliseconds for each."""
    pods = await _paced_pods(client, rate, seconds)
    requests = requests_for(pods, NODES)
    milliseconds: dict[int, float] = {}

    async def create_and_bind(number: int) -> None:
        request = await client.create(BINDREQUESTS, NAMESPACE, requests[number])
        began = time.perf_counter()
        await bind(bare, BindTarget(pods[number], request))
        milliseconds[number] = (time.perf_counter() - began) * 1000

    await _run_at_rate(len(pods), rate, create_and_bind)
    return [milliseconds[number] for number in range(int(rate * WARM_S), len(pods))]


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds of each measured request; of ``all`` requests, how many were reported as Failed.

    ``gap_s``: the longest time in which none was completed.
    """

    milliseconds: list[float]
    failures: int
    all: int
    gap_s: float


async def our_latency(client: KubeClient, rate: int, seconds: float) -> list[float]:
    """``completion_latency`` of the reconciler. Raises RuntimeError if more than 1 % of the requests have Failed."""
    latency = await completion_latency(client, rate, seconds)
    if latency.failures > latency.all / 100:
        raise RuntimeError(f"{latency.failures} of {latency.all} requests have Failed")
    return latency.milliseconds


async def completion_latency(client: KubeClient, rate: int, seconds: float) -> Latency:
    """From the reply to each request's creation to its completion on a watch."""
    requests = requests_for(await _paced_pods(client, rate, seconds), NODES)
    creation_times: dict[str, float] = {}

    async def create_request(number: int) -> None:
        await client.create(BINDREQUESTS, NAMESPACE, requests[number])
        creation_times[requests[number]["metadata"]["name"]] = time.perf_counter()

    async with completed_requests(client, "paced-") as completions:
        await _run_at_rate(len(requests), rate, create_request)
        await completions.wait(len(requests), READY_S)
    # Bound before the creator had its reply counts as zero.
    names = [request["metadata"]["name"] for request in requests[int(rate * WARM_S) :]]
    milliseconds = [max(0.0, (completions.at[name] - creation_times[name]) * 1000) for name in names]
    gap_s = max(after - before for before, after in pairwise(sorted(completions.at.values())))
    return Latency(milliseconds, len(completions.failures), len(requests), gap_s)


def percentiles(name: str, values: list[float], floor: str = "", budgets: tuple[str, str] = ("", "")) -> list[Figure]:
    """Return p50 and p99; with a floor, compared with the floor's, and with the budgets for both ratios."""
    return [
        Figure(
            f"{name} {label}",
            "ms",
            (percentile(values, share),),
            f"{floor} {label}" if floor else "",
            budget if floor else "",
        )
        for share, label, budget in ((0.5, "p50", budgets[0]), (0.99, "p99", budgets[1]))
    ]


@dataclass(frozen=True, slots=True)
class LatencySizes:
    """Requests a second, for how many seconds, and the turns of each side."""

    rate: int = 40
    seconds: float = 15.0
    turns: int = 6


async def bench_latency(sizes: LatencySizes, checkout: Path | None = None) -> Report:
    """Measure floor and reconciler in turns; takes five minutes in full, with another checkout eight."""
    report = Report(f"Latency at {sizes.rate} requests a second, in turns")
    sides = [(HERE, None), *([(OTHER, checkout)] if checkout is not None else [])]
    with rig(NODES) as stage:
        async with await stage.client() as client, await stage.bare() as bare:
            await warm_up(client, bare)
            for turn in range(sizes.turns):
                for figure in percentiles("floor", await floor_latency(client, bare, sizes.rate, sizes.seconds)):
                    report.add(figure)
                await clear(client)
                # Neither is always the first of its pair.
                for name, folder in sides if turn % 2 else reversed(sides):
                    with stage.reconciler(checkout=folder) as process:
                        process.wait_ready(READY_S)
                        values = await our_latency(client, sizes.rate, sizes.seconds)
                    await clear(client)
                    for figure in percentiles(name, values, "floor", BUDGETS):
                        report.add(figure)
    return report


@dataclass(slots=True)
class Completed:
    """The time at which each request was observed as Succeeded or Failed, and the names of the failed ones.

    Of pods: the time at which each was observed on its node.
    """

    at: dict[str, float] = field(default_factory=dict)
    failures: set[str] = field(default_factory=set)
    change: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait(self, count: int, timeout_s: float) -> None:
        """Wait until so many are complete. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while len(self.at) < count:
                self.change.clear()
                await self.change.wait()


@asynccontextmanager
async def completed_requests(client: KubeClient, prefix: str) -> AsyncIterator[Completed]:
    """Watch the requests whose name starts with ``prefix`` until the block ends."""

    def phase_of(request: Object) -> str | None:
        return (request.get("status") or {}).get("phase") if request["metadata"]["name"].startswith(prefix) else None

    async with _completed(client, Selection(BINDREQUESTS, NAMESPACE), phase_of) as completions:
        yield completions


@asynccontextmanager
async def bound_pods(client: KubeClient) -> AsyncIterator[Completed]:
    """Watch the pods that come onto a node until the block ends."""
    on_node = Selection(PODS, NAMESPACE, field_selector="spec.nodeName!=")
    async with _completed(client, on_node, lambda pod: "Succeeded") as completions:
        yield completions


@asynccontextmanager
async def _completed(
    client: KubeClient, selection: Selection, phase_of: Callable[[Object], str | None]
) -> AsyncIterator[Completed]:
    completions = Completed()
    version = version_of(await client.list(selection.resource, NAMESPACE, limit=1))

    def observe(event: Mapping[str, Any]) -> None:
        name, phase = event["object"]["metadata"]["name"], phase_of(event["object"])
        if phase in ("Succeeded", "Failed"):
            completions.at.setdefault(name, time.perf_counter())
            completions.change.set()
            if phase == "Failed":
                completions.failures.add(name)

    async def watch() -> None:
        nonlocal version
        while True:  # a busy API server ends watches that it cannot write to
            async for event in client.watch(selection, version, 600):
                version = version_of(event["object"])
                if event["type"] in ("ADDED", "MODIFIED"):
                    observe(event)

    async with asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(watch(), name="watch")
        try:
            yield completions
        finally:
            watching.cancel()


async def _run_at_rate(count: int, rate: int, act: Callable[[int], Coroutine[Any, Any, None]]) -> None:
    """Start one every 1/rate seconds, independently of the others."""
    began = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for number in range(count):
            pause = began + number / rate - time.perf_counter()
            if pause > 0:
                await asyncio.sleep(pause)
            tasks.create_task(act(number))
