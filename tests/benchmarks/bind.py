"""Binding compared with the limits of the API server: throughput, latency, memory.

One control plane, one run: ceilings and floors are measured with a bare client next to the reconciler's own
figures, so that a slow machine slows both. Leader election is on, all default plugins are on, the chart's
ServiceAccount is used on both sides.
"""

import itertools
from dataclasses import dataclass

from bowline.kube.client import KubeClient
from bowline.localcluster.podsplace import has_pods_place
from tests.benchmarks.drain import NODES, bare_drain, drain, until_succeeded, warm_up
from tests.benchmarks.latency import BUDGETS, floor_latency, our_latency, percentiles
from tests.benchmarks.load import clear, make, make_bound, make_nodes, make_pending
from tests.benchmarks.report import Figure, Report
from tests.benchmarks.rig import READY_S, Rig, resident_mb, rig


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of all parts."""

    drain: int
    long_drain: int
    repetitions: int
    rates: tuple[int, ...]  # requests a second
    seconds: float  # at each rate
    bound: tuple[int, ...]  # pods on nodes, for memory
    pending: tuple[int, ...]  # pods that wait for their scheduler, for memory
    nodes: int


FULL = Sizes(2000, 20000, 3, (40, 100, 300), 10.0, (0, 30_000, 100_000), (20_000, 50_000), 5000)
# For a quick run: fewer repetitions, and no 100,000 pods.
MEDIUM = Sizes(2000, 5000, 2, (40, 100, 300), 5.0, (0, 30_000), (20_000,), 5000)
QUICK = Sizes(300, 600, 2, (40, 100), 3.0, (0, 1000), (1000,), 100)


async def bench_bind(sizes: Sizes) -> Report:
    """Measure everything; takes a quarter of an hour in full."""
    report = Report("Binding")
    with rig(NODES) as stage:
        async with await stage.client() as client, await stage.bare() as bare:
            await warm_up(client, bare)
            await _throughput(stage, client, bare, sizes, report)
            await _latency(stage, client, bare, sizes, report)
            await _memory(stage, client, sizes, report)
    return report


async def _throughput(stage: Rig, client: KubeClient, bare: KubeClient, sizes: Sizes, report: Report) -> None:
    ceiling = "ceiling: the same writes, bare client"
    for _ in range(sizes.repetitions):
        targets = await make(client, "drain", sizes.drain, NODES)
        report.add(Figure(ceiling, "binds/s", (await bare_drain(bare, targets),)))
        await clear(client)
        await _drain(stage, client, sizes.drain, ceiling, report)
    await _drain(stage, client, sizes.long_drain, ceiling, report)


async def _drain(stage: Rig, client: KubeClient, count: int, ceiling: str, report: Report) -> None:
    """Start the reconciler on a backlog."""
    await make(client, "drain", count, NODES)
    with stage.reconciler() as process:
        rate = (await drain(process, count, began=lambda: None)).rate
    report.add(Figure(f"drain of {count}", "binds/s", (rate,), ceiling, ">= 0.9"))
    await clear(client)


async def _latency(stage: Rig, client: KubeClient, bare: KubeClient, sizes: Sizes, report: Report) -> None:
    for rate in sizes.rates:
        name = f"at {rate}/s: floor"
        floor = percentiles(name, await floor_latency(client, bare, rate, sizes.seconds))
        await clear(client)
        with stage.reconciler() as process:
            process.wait_ready(READY_S)
            milliseconds = await our_latency(client, rate, sizes.seconds)
        await clear(client)
        ours = percentiles(f"at {rate}/s: ours", milliseconds, name, BUDGETS if rate == 40 else ("", ""))
        for figure in itertools.chain.from_iterable(zip(floor, ours, strict=True)):
            report.add(figure)


async def _memory(stage: Rig, client: KubeClient, sizes: Sizes, report: Report) -> None:
    """The resident memory beside bound pods, then beside pods without a request, with the part that each adds."""
    # As in a pod where mount namespaces are available: parsing a kubeconfig takes 20 MB that no pod needs.
    place = "memory in a pod" if has_pods_place() else "memory with a kubeconfig"
    count, empty = 0, ""
    for bound in sizes.bound:
        if bound and not count:
            await make_nodes(client, sizes.nodes - NODES)
        await make_bound(client, count, bound - count, NODES)
        count = bound
        name = f"{place} at {bound} bound pods" + (f", {sizes.nodes} nodes" if bound else "")
        budget = "<= 90 MB" if bound == 30_000 else ""
        report.add(Figure(name, "MB", (await _used_mb(stage, client, f"memory-{bound}"),), empty, budget))
        empty = empty or name
    before_mb = await _used_mb(stage, client, "pending-0")
    count = 0
    for pending in sizes.pending:
        size = await make_pending(client, count, pending - count)
        count = pending
        used_mb = await _used_mb(stage, client, f"pending-{pending}")
        name = f"{pending} pending pods of {size} bytes"
        report.add(Figure(f"{place} at {name}", "MB", (used_mb,), "", "<= 110 MB" if pending == 20_000 else ""))
        each_b = (used_mb - before_mb) * 1e6 / pending
        report.add(Figure(f"of that for each of {name}", "bytes", (each_b,)))


async def _used_mb(stage: Rig, client: KubeClient, prefix: str) -> float:
    """Start a reconciler; a first bind loads every module of a working process."""
    with stage.reconciler(in_pod=has_pods_place()) as process:
        process.wait_ready(READY_S)
        await make(client, prefix, 50, NODES)
        await until_succeeded(process, 50)
        return resident_mb(process.pid)
