"""Binders compared: Bowline's reconciler and KAI-Scheduler's binder, in turns on one control plane.

A request counts when a watch reports it as Succeeded or Failed. KAI-Scheduler's binder runs without its rate limit,
with 100 workers, an administrator's rights and a log of errors only; the reconciler as the chart configures it.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from bowline.kube.client import KubeClient
from bowline.localcluster.assets.recipes import Tool
from bowline.localcluster.ports import free_ports
from bowline.localcluster.process import Launch
from tests.benchmarks.drain import NODES, warm_up
from tests.benchmarks.latency import completed_requests, completion_latency
from tests.benchmarks.load import clear, make
from tests.benchmarks.report import Figure, Report, percentile
from tests.benchmarks.rig import READY_S, Rig, rig
from tests.kai.team import peer_program

KAI, BOWLINE = "KAI-Scheduler's binder", "Bowline"
WORKERS = 100
# Runs a binder until the block ends.
Start = Callable[[], AbstractContextManager[object]]
# A drain slower than this ends the benchmark.
SLOWEST_PER_S = 10
# The first requests, before requests at a steady rate.
FIRST = 50


@dataclass(frozen=True, slots=True)
class BinderSizes:
    """The backlog, the steady rate in requests per second and its duration, and how often each is repeated."""

    backlog: int = 2000
    rate: int = 100
    seconds: float = 10.0
    repetitions: int = 3


async def bench_binders(sizes: BinderSizes) -> Report:
    """Measure; takes five minutes, on a slow machine nine."""
    report = Report("Binders beside each other")
    with rig(NODES) as stage:
        binders: dict[str, Start] = {KAI: lambda: _kai(stage), BOWLINE: stage.reconciler}
        async with await stage.client() as client, await stage.bare() as bare:
            await warm_up(client, bare)
            for number in range(sizes.repetitions):
                for name in binders if number % 2 == 0 else reversed(binders):
                    await _drain(client, name, binders[name], sizes, report)
                    await _latency(client, name, binders[name], sizes, report)
    return report


async def _drain(client: KubeClient, name: str, start: Start, sizes: BinderSizes, report: Report) -> None:
    """Start the binder on a backlog; from the first completed request to the last."""
    await make(client, "drain", sizes.backlog, NODES)
    async with completed_requests(client, "drain-") as completions:
        with start():
            await completions.wait(sizes.backlog, READY_S + sizes.backlog / SLOWEST_PER_S)
    await clear(client)
    took = max(completions.at.values()) - min(completions.at.values())
    _add(report, name, f"drain of {sizes.backlog}", "binds/s", (sizes.backlog - 1) / took, ">= 1.8")
    report.add(Figure(f"{name}: of the drain reported as Failed", "", (len(completions.failures),)))


async def _latency(client: KubeClient, name: str, start: Start, sizes: BinderSizes, report: Report) -> None:
    """From a request's creation to its completion, at a steady rate."""
    with start():
        async with completed_requests(client, "first-") as completions:
            await make(client, "first", FIRST, NODES)
            await completions.wait(FIRST, READY_S)
        latency = await completion_latency(client, sizes.rate, sizes.seconds)
    await clear(client)
    _add(report, name, f"at {sizes.rate}/s p50", "ms", percentile(latency.milliseconds, 0.5))
    _add(report, name, f"at {sizes.rate}/s p99", "ms", percentile(latency.milliseconds, 0.99), "<= 0.5")
    report.add(Figure(f"{name}: at {sizes.rate}/s reported as Failed", "", (latency.failures,)))


def _add(report: Report, name: str, figure: str, unit: str, value: float, limit: str = "") -> None:
    """Add a binder's figure; Bowline's is compared with KAI-Scheduler's."""
    against, budget = (f"{KAI}: {figure}", limit) if name == BOWLINE else ("", "")
    report.add(Figure(f"{name}: {figure}", unit, (value,), against, budget))


@contextmanager
def _kai(stage: Rig) -> Iterator[None]:
    program = peer_program(Tool.KAI_BINDER)
    metrics, probes = free_ports(2)
    argv = [str(program), "--qps=100000", "--burst=100000", f"--max-concurrent-reconciles={WORKERS}"]
    argv += [f"--metrics-bind-address=127.0.0.1:{metrics}", f"--health-probe-bind-address=127.0.0.1:{probes}"]
    argv += ["--zap-log-level=error"]
    cluster = stage.cluster
    env = {"PATH": os.environ["PATH"], "HOME": str(cluster.data_dir), "KUBECONFIG": str(cluster.kubeconfig)}
    log = cluster.layout.logs / "kai-binder.log"
    process = cluster.run_process(Launch("kai-binder", argv, log, cluster.data_dir, env))
    try:
        yield
    finally:
        process.stop()
