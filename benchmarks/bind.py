"""Binding beside what the API server can do at all: throughput, latency, memory.

One control plane, one run: ceilings and floors are measured with a bare client right beside the reconciler's own
figures, so that a slow machine slows both. Leader election is on, all default plugins are on, the chart's
ServiceAccount is used on both sides.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.load import Made, big_pod, bind, clear, each, make, make_bound, make_nodes
from benchmarks.report import Figure, Report, percentile
from benchmarks.rig import NAMESPACE, POLL_S, READY_S, Rig, finished, resident_mb, rig
from localcluster.workload import LocalProcess
from shared.kube.client import KubeClient
from shared.kube.resources import BINDREQUESTS, PODS, Selection
from shared.testing.builders import bind_request

NODES = 20
SELDOM_S = 0.5
SILENT = {"config.binding.boundEvents": False}
SPOKEN = {"config.binding.boundEvents": True}


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of everything."""

    drain: int
    long_drain: int
    repetitions: int
    rates: tuple[int, ...]  # requests a second
    seconds: float  # at each rate
    bound: tuple[int, ...]  # pods on nodes, for memory
    nodes: int
    waiting: int


FULL = Sizes(2000, 20000, 3, (20, 100, 300), 10.0, (0, 30_000, 100_000), 5000, 5000)
# What fits into a coffee break: fewer repetitions, and no 100,000 pods.
MEDIUM = Sizes(2000, 5000, 2, (20, 100, 300), 5.0, (0, 30_000), 5000, 1000)
QUICK = Sizes(300, 600, 2, (20, 100), 3.0, (0, 1000), 100, 200)


async def bench_bind(sizes: Sizes) -> Report:
    """Measure everything; takes a quarter of an hour in full."""
    report = Report("Binding, one run on one machine")
    with rig(NODES) as stage:
        async with await stage.client() as client, await stage.bare() as bare:
            await _warm_up(client, bare)
            await _throughput(stage, client, bare, sizes, report)
            await _latency(stage, client, bare, sizes, report)
            await _memory(stage, client, sizes, report)
    return report


async def _warm_up(client: KubeClient, bare: KubeClient) -> None:
    made = await make(client, "warm", 200, NODES)
    await _bare_drain(bare, made, events=True)
    await clear(client)


async def _throughput(stage: Rig, client: KubeClient, bare: KubeClient, sizes: Sizes, report: Report) -> None:
    ceilings: dict[bool, list[float]] = {False: [], True: []}
    ours: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(sizes.repetitions):
        for events, values in ((False, SILENT), (True, SPOKEN)):
            made = await make(client, "drain", sizes.drain, NODES)
            ceilings[events].append(await _bare_drain(bare, made, events))
            await clear(client)
            await make(client, "drain", sizes.drain, NODES)
            ours[events].append(await _drain(stage, values, sizes.drain))
            await clear(client)
    two, three = "ceiling: two writes, bare client", "ceiling: three writes, bare client"
    report.add(Figure(two, "binds/s", tuple(ceilings[False])))
    report.add(Figure(f"drain of {sizes.drain}, without Bound events", "binds/s", tuple(ours[False]), two, ">= 0.95"))
    report.add(Figure(three, "binds/s", tuple(ceilings[True])))
    report.add(Figure(f"drain of {sizes.drain}, with events", "binds/s", tuple(ours[True]), three, ">= 0.90"))
    await make(client, "drain", sizes.long_drain, NODES)
    long = await _drain(stage, SPOKEN, sizes.long_drain)
    report.add(Figure(f"drain of {sizes.long_drain}, with events", "binds/s", (long,), three, ">= 0.90"))
    await clear(client)


async def _bare_drain(bare: KubeClient, made: list[Made], events: bool) -> float:
    async def one(number: int) -> None:
        await bind(bare, made[number], events)

    return len(made) / await each(len(made), one)


async def _drain(stage: Rig, values: Mapping[str, object], count: int) -> float:
    """Start the reconciler on a backlog; its rate from the first bound pod seen to the last."""
    with stage.reconciler(values) as process:
        first, first_at = 0, 0.0
        deadline = time.perf_counter() + READY_S + count / 50
        while True:
            done = await _finished_or_none(process)
            now = time.perf_counter()
            if done and not first:
                first, first_at = done, now
            if done is not None and done >= count:
                return (done - first) / (now - first_at) if done > first else float("nan")
            if now > deadline:
                raise TimeoutError(f"{done} of {count} are bound:\n{process.process.tail()}")
            # A look at /metrics costs the process some milliseconds: often only where begin and end are told.
            await asyncio.sleep(SELDOM_S if done and done < 0.8 * count else POLL_S)


async def _finished_or_none(process: LocalProcess) -> int | None:
    try:
        return await finished(process)
    except OSError:
        return None  # not listening yet


async def _until_finished(process: LocalProcess, count: int) -> None:
    async with asyncio.timeout(READY_S):
        while (await _finished_or_none(process) or 0) < count:  # noqa: ASYNC110 - another process's counter
            await asyncio.sleep(POLL_S)


async def _latency(stage: Rig, client: KubeClient, bare: KubeClient, sizes: Sizes, report: Report) -> None:
    for rate in sizes.rates:
        floor = await _floor_latency(client, bare, rate, sizes.seconds)
        await clear(client)
        with stage.reconciler(SPOKEN) as process:
            process.wait_ready(READY_S)
            ours = await _our_latency(client, rate, sizes.seconds)
        await clear(client)
        _add_latency(report, f"at {rate}/s", floor, ours)
    await _latency_beside_waiting(stage, client, sizes, report)


async def _latency_beside_waiting(stage: Rig, client: KubeClient, sizes: Sizes, report: Report) -> None:
    """Fresh requests while thousands wait for something else."""
    rate = 100
    await make(client, "waiting", sizes.waiting, NODES, schedulingGates=[{"name": "bench/hold"}])
    with stage.reconciler(SPOKEN) as process:
        process.wait_ready(READY_S)
        ours = await _our_latency(client, rate, sizes.seconds)
    name = f"beside {sizes.waiting} waiting, at {rate}/s"
    report.add(Figure(f"{name}: p50", "ms", (percentile(ours, 0.5),), f"at {rate}/s: floor p50", "<= 1.5"))
    report.add(Figure(f"{name}: p99", "ms", (percentile(ours, 0.99),), f"at {rate}/s: floor p99", "<= 3"))
    await clear(client)


def _add_latency(report: Report, name: str, floor: list[float], ours: list[float]) -> None:
    for share, label, wanted in ((0.5, "p50", "<= 1.5"), (0.99, "p99", "<= 3")):
        report.add(Figure(f"{name}: floor {label}", "ms", (percentile(floor, share),)))
        mine = percentile(ours, share)
        report.add(Figure(f"{name}: ours {label}", "ms", (mine,), f"{name}: floor {label}", wanted))


async def _pods_for(client: KubeClient, count: int) -> list[dict[str, str]]:
    uids: list[dict[str, str]] = [{}] * count

    async def one(number: int) -> None:
        stored = await client.create(PODS, NAMESPACE, big_pod(f"paced-{number}"))
        uids[number] = {"name": f"paced-{number}", "uid": stored["metadata"]["uid"]}

    await each(count, one)
    return uids


async def _floor_latency(client: KubeClient, bare: KubeClient, rate: int, seconds: float) -> list[float]:
    """The loading client binds each request itself as soon as it is created."""
    pods = await _pods_for(client, int(rate * seconds))
    taken: list[float] = []

    async def one(number: int) -> None:
        request = bind_request(pods[number]["name"], f"gpu-node-{number % NODES}", NAMESPACE, pods[number]["uid"])
        stored = await client.create(BINDREQUESTS, NAMESPACE, request)
        began = time.perf_counter()
        await bind(bare, Made({"metadata": pods[number]}, stored), events=False)
        taken.append((time.perf_counter() - began) * 1000)

    await _paced(len(pods), rate, one)
    return taken


async def _our_latency(client: KubeClient, rate: int, seconds: float) -> list[float]:
    """From the answer to the request's creation to its Succeeded on a watch."""
    pods = await _pods_for(client, int(rate * seconds))
    created: dict[str, float] = {}
    done: dict[str, float] = {}
    complete = asyncio.Event()
    listed = await client.list(BINDREQUESTS, NAMESPACE, limit=1)
    watching = asyncio.create_task(
        _watch_done(client, listed["metadata"]["resourceVersion"], done, len(pods), complete), name="watch"
    )

    async def one(number: int) -> None:
        name = pods[number]["name"]
        request = bind_request(name, f"gpu-node-{number % NODES}", NAMESPACE, pods[number]["uid"])
        await client.create(BINDREQUESTS, NAMESPACE, request)
        created[name] = time.perf_counter()

    try:
        await _paced(len(pods), rate, one)
        async with asyncio.timeout(READY_S):
            await complete.wait()
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    # Bound before the creator had its answer counts as no time at all.
    return [max(0.0, (done[name] - at) * 1000) for name, at in created.items()]


async def _watch_done(
    client: KubeClient, version: str, done: dict[str, float], count: int, complete: asyncio.Event
) -> None:
    async for event in client.watch(Selection(BINDREQUESTS, NAMESPACE), version, 600):
        stored = event["object"]
        name = stored["metadata"].get("name", "")
        if name.startswith("paced-") and (stored.get("status") or {}).get("phase") == "Succeeded":
            done.setdefault(name, time.perf_counter())
            if len(done) == count:
                complete.set()


async def _paced(count: int, rate: int, act: Callable[[int], Coroutine[Any, Any, None]]) -> None:
    """Start one every 1/rate seconds, whatever the others do."""
    began = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for number in range(count):
            pause = began + number / rate - time.perf_counter()
            if pause > 0:
                await asyncio.sleep(pause)
            tasks.create_task(act(number))


async def _memory(stage: Rig, client: KubeClient, sizes: Sizes, report: Report) -> None:
    made, empty = 0, ""
    for bound in sizes.bound:
        if bound and not made:
            await make_nodes(client, sizes.nodes - NODES)
        await make_bound(client, made, bound - made, NODES)
        made = bound
        with stage.reconciler(SPOKEN) as process:
            process.wait_ready(READY_S)
            # A first bind, so that everything is loaded that a working process has.
            await make(client, f"memory-{bound}", 50, NODES)
            await _until_finished(process, 50)
            name = f"memory at {bound} bound pods" + (f", {sizes.nodes} nodes" if bound else "")
            wanted = "<= 90 MB" if bound == 30_000 else "<= 105 MB" if bound else ""
            report.add(Figure(name, "MB", (resident_mb(process),), empty, wanted))
            empty = empty or name
