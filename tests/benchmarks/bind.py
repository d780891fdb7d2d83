"""Binding compared with the limits of the API server: throughput, latency, memory.

One control plane, one run: ceilings and floors are measured with a bare client next to the reconciler's own
figures, so that a slow machine slows both. Leader election is on, all default plugins are on, the chart's
ServiceAccount is used on both sides.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from bowline.kube.client import KubeClient
from bowline.localcluster.podsplace import has_pods_place
from tests.benchmarks.drain import NODES, SILENT, SPOKEN, bare_drain, drain, until_succeeded, warm_up
from tests.benchmarks.latency import floor_latency, our_latency, percentiles
from tests.benchmarks.load import clear, make, make_bound, make_nodes, make_pending
from tests.benchmarks.report import Figure, Report
from tests.benchmarks.rig import READY_S, Rig, resident_mb, rig
from tests.benchmarks.waiting import WaitingSizes, beside_waiting


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
    waiting: int


FULL = Sizes(2000, 20000, 3, (40, 100, 300), 10.0, (0, 30_000, 100_000), (20_000, 50_000), 5000, 5000)
# For a quick run: fewer repetitions, and no 100,000 pods.
MEDIUM = Sizes(2000, 5000, 2, (40, 100, 300), 5.0, (0, 30_000), (20_000,), 5000, 1000)
QUICK = Sizes(300, 600, 2, (40, 100), 3.0, (0, 1000), (1000,), 100, 200)


async def bench_bind(sizes: Sizes) -> Report:
    """Measure everything; takes a quarter of an hour in full."""
    report = Report("Binding, one run on one machine")
    with rig(NODES) as stage:
        async with await stage.client() as client, await stage.bare() as bare:
            await warm_up(client, bare)
            await _throughput(stage, client, bare, sizes, report)
            await _latency(stage, client, bare, sizes, report)
            await _memory(stage, client, sizes, report)
    return report


async def bench_memory(sizes: Sizes) -> Report:
    """Measure only memory, which other work on the machine does not change."""
    report = Report("Memory of the reconciler")
    with rig(NODES) as stage:
        async with await stage.client() as client:
            await _memory(stage, client, sizes, report)
    return report


async def _throughput(stage: Rig, client: KubeClient, bare: KubeClient, sizes: Sizes, report: Report) -> None:
    ceilings: dict[bool, list[float]] = {False: [], True: []}
    ours: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(sizes.repetitions):
        for events, values in ((False, SILENT), (True, SPOKEN)):
            targets = await make(client, "drain", sizes.drain, NODES)
            ceilings[events].append(await bare_drain(bare, targets, events))
            await clear(client)
            await make(client, "drain", sizes.drain, NODES)
            ours[events].append(await _drain(stage, values, sizes.drain))
            await clear(client)
    two, three = "ceiling: two writes, bare client", "ceiling: three writes, bare client"
    report.add(Figure(two, "binds/s", tuple(ceilings[False])))
    report.add(Figure(f"drain of {sizes.drain}, without Bound events", "binds/s", tuple(ours[False]), two, ">= 0.95"))
    report.add(Figure(three, "binds/s", tuple(ceilings[True])))
    report.add(Figure(f"drain of {sizes.drain}, with events", "binds/s", tuple(ours[True]), three, ">= 0.85"))
    await make(client, "drain", sizes.long_drain, NODES)
    long = await _drain(stage, SPOKEN, sizes.long_drain)
    report.add(Figure(f"drain of {sizes.long_drain}, with events", "binds/s", (long,), three, ">= 0.85"))
    await clear(client)


async def _drain(stage: Rig, values: Mapping[str, object], count: int) -> float:
    """Start the reconciler on a backlog; returns its rate."""
    with stage.reconciler(values) as process:
        return (await drain(process, count, began=lambda: None)).rate


async def _latency(stage: Rig, client: KubeClient, bare: KubeClient, sizes: Sizes, report: Report) -> None:
    for rate in sizes.rates:
        floor = await floor_latency(client, bare, rate, sizes.seconds)
        await clear(client)
        with stage.reconciler(SPOKEN) as process:
            process.wait_ready(READY_S)
            ours = await our_latency(client, rate, sizes.seconds)
        await clear(client)
        name = f"at {rate}/s: floor"
        pairs = zip(percentiles(name, floor), percentiles(f"at {rate}/s: ours", ours, name), strict=True)
        for figure in itertools.chain.from_iterable(pairs):
            report.add(figure)
    await beside_waiting(stage, client, WaitingSizes(sizes.waiting, sizes.seconds), report)


async def _memory(stage: Rig, client: KubeClient, sizes: Sizes, report: Report) -> None:
    count, empty = 0, ""
    # As in a pod where mount namespaces are available: parsing a kubeconfig takes 20 MB that no pod needs.
    in_pod = has_pods_place()
    where = "in a pod" if in_pod else "with a kubeconfig"
    for bound in sizes.bound:
        if bound and not count:
            await make_nodes(client, sizes.nodes - NODES)
        await make_bound(client, count, bound - count, NODES)
        count = bound
        with stage.reconciler(SPOKEN, in_pod) as process:
            process.wait_ready(READY_S)
            # A first bind, so that every module of a working process is loaded.
            await make(client, f"memory-{bound}", 50, NODES)
            await until_succeeded(process, 50)
            name = f"memory {where} at {bound} bound pods" + (f", {sizes.nodes} nodes" if bound else "")
            budget = "<= 90 MB" if bound == 30_000 else "<= 105 MB" if bound else ""
            report.add(Figure(name, "MB", (resident_mb(process),), empty, budget))
            empty = empty or name
    await _pending(stage, client, sizes, in_pod, report)


async def bench_pending(sizes: Sizes) -> Report:
    """Measure only the memory of pods that wait for their scheduler."""
    report = Report("Memory of the reconciler beside pending pods")
    with rig(NODES) as stage:
        async with await stage.client() as client:
            await _pending(stage, client, sizes, has_pods_place(), report)
    return report


async def _pending(stage: Rig, client: KubeClient, sizes: Sizes, in_pod: bool, report: Report) -> None:
    """The cost of pods without a request: the resident memory, and the part that each pod adds."""
    where = "in a pod" if in_pod else "with a kubeconfig"
    count, empty_mb = 0, 0.0
    for pending in (0, *sizes.pending):
        size = await make_pending(client, count, pending - count)
        count = pending
        with stage.reconciler(SPOKEN, in_pod) as process:
            process.wait_ready(READY_S)
            await make(client, f"pending-{pending}", 50, NODES)
            await until_succeeded(process, 50)
            used_mb = resident_mb(process)
        empty_mb = empty_mb or used_mb
        if pending:
            budget = "<= 110 MB" if pending == 20_000 else ""
            name = f"{pending} pending pods of {size} bytes"
            report.add(Figure(f"memory {where} at {name}", "MB", (used_mb,), "", budget))
            each_b = (used_mb - empty_mb) * 1e6 / pending
            report.add(Figure(f"of that for each of {name}", "bytes", (each_b,), "", "<= 1024"))
