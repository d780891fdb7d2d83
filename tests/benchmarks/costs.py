"""The CPU time of a drain: per bind by process.

On one machine the CPU time of all processes together limits a drain. So beside the rate there is the CPU time per
bind of each process, in the reconciler's drain and in that of a bare client which does the same writes.

With another checkout its reconciler is compared instead: the two take turns, because the machine's speed changes.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bowline.kube.client import KubeClient
from tests.benchmarks.cpu import cpu_s
from tests.benchmarks.drain import NODES, bare_drain, drain, warm_up
from tests.benchmarks.load import clear, make
from tests.benchmarks.report import Figure, Report
from tests.benchmarks.rig import HERE, OTHER, Rig, rig

# By drain and figure.
BUDGETS = {(name, "CPU of client"): "<= 1.6 ms" for name in (HERE, "reconciler")}


@dataclass(frozen=True, slots=True)
class CostSizes:
    """How much is drained."""

    pods: int = 2000
    turns: int = 8  # of each checkout


async def bench_costs(sizes: CostSizes, checkout: Path | None = None) -> Report:
    """Measure; takes a minute in full, with another checkout ten."""
    report = Report("What a drain costs")
    with rig(NODES) as stage:
        async with await stage.client() as client, await stage.bare() as bare:
            await warm_up(client, bare)
            if checkout is None:
                await _bare_cost(stage, client, bare, sizes, report)
                await drain_cost(stage, client, sizes, report, "reconciler", "bare client")
                return report
            for turn in range(2 * sizes.turns):
                # A, B, B, A: neither is always the first of its pair.
                if turn % 4 in (0, 3):
                    await drain_cost(stage, client, sizes, report, OTHER, checkout=checkout)
                else:
                    await drain_cost(stage, client, sizes, report, HERE, OTHER)
    return report


async def _bare_cost(stage: Rig, client: KubeClient, bare: KubeClient, sizes: CostSizes, report: Report) -> None:
    targets = await make(client, "drain", sizes.pods, NODES)
    processes = {**stage.servers, "client": os.getpid()}
    before = cpu_s(processes)
    rate = await bare_drain(bare, targets)
    _add(report, "bare client", rate, _per_bind(before, cpu_s(processes), sizes.pods))
    await clear(client)


async def drain_cost(
    stage: Rig,
    client: KubeClient,
    sizes: CostSizes,
    report: Report,
    name: str,
    against: str = "",
    checkout: Path | None = None,
) -> None:
    """Add the figures of a drain by the reconciler of a checkout, this one by default."""
    await make(client, "drain", sizes.pods, NODES)
    with stage.reconciler(checkout=checkout) as process:
        processes = {**stage.servers, "client": process.pid}
        result = await drain(process, sizes.pods, began=lambda: cpu_s(processes))
        _add(report, name, result.rate, _per_bind(result.began, cpu_s(processes), result.count), against)
    await clear(client)


def _add(report: Report, name: str, rate: float, costs: Mapping[str, float], against: str = "") -> None:
    """Add the figures of a drain; ``against``: the drain to compare them with."""
    values = {"rate": rate, **{f"CPU of {process}": cost for process, cost in costs.items()}}
    values["CPU of all"] = sum(costs.values())
    for figure, value in values.items():
        unit, budget = ("binds/s" if figure == "rate" else "ms/bind"), BUDGETS.get((name, figure), "")
        report.add(Figure(f"{name}: {figure}", unit, (value,), f"{against}: {figure}" if against else "", budget))


def _per_bind(before: Mapping[str, float], after: Mapping[str, float], binds: int) -> dict[str, float]:
    """Return milliseconds by process."""
    return {name: 1000 * (after[name] - before[name]) / binds for name in after}
