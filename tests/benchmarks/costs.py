"""The CPU time of a drain: per bind by process.

On one machine the CPU time of all processes together limits a drain. So beside the rate there is the CPU time per
bind of each process. Another checkout's reconciler takes turns with this one's, because the machine's speed changes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bowline.kube.client import KubeClient
from tests.benchmarks.cpu import cpu_s
from tests.benchmarks.drain import NODES, drain, warm_up
from tests.benchmarks.load import clear, make
from tests.benchmarks.report import Figure, Report
from tests.benchmarks.rig import HERE, OTHER, Rig, rig

BUDGET = "<= 1.6 ms"  # of this checkout's client


@dataclass(frozen=True, slots=True)
class CostSizes:
    """How much is drained."""

    pods: int = 2000
    turns: int = 8  # of each checkout


async def bench_costs(sizes: CostSizes, checkout: Path | None = None) -> Report:
    """Measure; takes five minutes in full, with another checkout ten."""
    report = Report("What a drain costs")
    sides = [(HERE, None), *([(OTHER, checkout)] if checkout is not None else [])]
    with rig(NODES) as stage:
        async with await stage.client() as client, await stage.bare() as bare:
            await warm_up(client, bare)
            for turn in range(sizes.turns):
                # Neither is always the first of its pair.
                for name, folder in sides if turn % 2 else reversed(sides):
                    against = OTHER if checkout is not None and name == HERE else ""
                    await _drain_cost(stage, client, sizes.pods, report, name, against, folder)
    return report


async def _drain_cost(
    stage: Rig, client: KubeClient, pods: int, report: Report, name: str, against: str, checkout: Path | None
) -> None:
    """Add the figures of a drain by the reconciler of a checkout; ``against``: the drain to compare them with."""
    await make(client, "drain", pods, NODES)
    with stage.reconciler(checkout=checkout) as process:
        processes = {**stage.servers, "client": process.pid}
        result = await drain(process, pods, began=lambda: cpu_s(processes))
        costs = _per_bind(result.began, cpu_s(processes), result.count)
    await clear(client)
    values = {"rate": result.rate, **{f"CPU of {process}": cost for process, cost in costs.items()}}
    values["CPU of all"] = sum(costs.values())
    for figure, value in values.items():
        unit = "binds/s" if figure == "rate" else "ms/bind"
        budget = BUDGET if (name, figure) == (HERE, "CPU of client") else ""
        report.add(Figure(f"{name}: {figure}", unit, (value,), f"{against}: {figure}" if against else "", budget))


def _per_bind(before: Mapping[str, float], after: Mapping[str, float], binds: int) -> dict[str, float]:
    """Return milliseconds by process."""
    return {name: 1000 * (after[name] - before[name]) / binds for name in after}
