"""Fresh requests while thousands wait for something else, and what limits how soon they are bound.

On a shared machine the free CPU limits a binder. So everything is measured twice: with the API server as it is, which
every few seconds uses all available cores for garbage collection, and with one that has enough memory to avoid it.
The number of busy cores is a second indication.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

from bowline.kube.client import KubeClient
from tests.benchmarks.cpu import cores_busy
from tests.benchmarks.drain import NODES, SPOKEN, warm_up
from tests.benchmarks.latency import floor_latency, our_latency, percentiles
from tests.benchmarks.load import clear, make
from tests.benchmarks.report import Figure, Report
from tests.benchmarks.rig import READY_S, Rig, rig

# Fresh requests a second.
RATE = 100
# For Go: no garbage collection below this memory use.
NO_COLLECTION = {"GOGC": "off", "GOMEMLIMIT": "6GiB"}


@dataclass(frozen=True, slots=True)
class WaitingSizes:
    """How many requests wait, and for how many seconds others are bound beside them."""

    waiting: int = 5000
    seconds: float = 20.0


async def bench_waiting(sizes: WaitingSizes) -> Report:
    """Measure; takes three minutes in full."""
    report = Report("Fresh requests beside waiting ones, one run on one machine")
    await _measure(sizes, report, "")
    with _environment(NO_COLLECTION):
        await _measure(sizes, report, "no garbage collected: ")
    return report


async def _measure(sizes: WaitingSizes, report: Report, prefix: str) -> None:
    with rig(NODES) as stage:
        async with await stage.client() as client, await stage.bare() as bare:
            await warm_up(client, bare)
            busy: list[float] = []
            pids = {**stage.servers, "client": os.getpid()}
            floor = await floor_latency(client, bare, RATE, sizes.seconds, cores_busy(pids, busy))
            await clear(client)
            name = f"{prefix}at {RATE}/s: floor"
            for figure in (*percentiles(name, floor), *_busy(name, busy)):
                report.add(figure)
            await beside_waiting(stage, client, sizes, report, prefix)


async def beside_waiting(
    stage: Rig, client: KubeClient, sizes: WaitingSizes, report: Report, prefix: str = ""
) -> None:
    """Create waiting requests and measure the latency of others. The floor is in the report."""
    await make(client, "waiting", sizes.waiting, NODES, schedulingGates=[{"name": "bench/hold"}])
    with stage.reconciler(SPOKEN) as process:
        process.wait_ready(READY_S)
        busy: list[float] = []
        pids = {**stage.servers, "client": os.getpid(), "reconciler": process.pid}
        ours = await our_latency(client, RATE, sizes.seconds, cores_busy(pids, busy))
    name = f"{prefix}beside {sizes.waiting} waiting, at {RATE}/s:"
    for figure in (*percentiles(name, ours, f"{prefix}at {RATE}/s: floor"), *_busy(name, busy)):
        report.add(figure)
    await clear(client)


def _busy(name: str, busy: list[float]) -> list[Figure]:
    return [
        Figure(f"{name} cores busy, in most seconds", "cores", (median(busy),)),
        Figure(f"{name} cores busy, in the busiest", "cores", (max(busy),)),
    ]


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Start the block's processes with these environment variables."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
