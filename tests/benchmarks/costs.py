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
from tests.benchmarks.drain import NODES, SILENT, SPOKEN, bare_drain, drain, warm_up
from tests.benchmarks.load import clear, make
from tests.benchmarks.report import Figure, Report
from tests.benchmarks.rig import HERE, OTHER, Rig, rig


@dataclass(frozen=True, slots=True)
class CostSizes:
    """How much is drained."""

    pods: int = 2000
    turns: int = 8  # of each checkout


QUICK = CostSizes(pods=300, turns=1)


async def bench_costs(sizes: CostSizes, checkout: Path | None = None) -> Report:
    """Measure; takes two minutes in full, with another checkout ten."""
    report = Report("What a drain costs, one run on one machine")
    with rig(NODES) as stage:
        servers = stage.servers
        async with await stage.client() as client, await stage.bare() as bare:
            await warm_up(client, bare)
            if checkout is not None:
                await _compare(stage, client, checkout, sizes, report)
                return report
            for events in (False, True):
                word = "with events" if events else "without events"
                await _bare_cost(client, bare, servers, events, (report, f"bare client, {word}", sizes.pods))
                await _our_cost(stage, client, servers, events, (report, f"reconciler, {word}", sizes.pods))
    return report


async def _bare_cost(
    client: KubeClient,
    bare: KubeClient,
    servers: Mapping[str, int],
    events: bool,
    figure_options: tuple[Report, str, int],
) -> None:
    report, name, pods = figure_options
    targets = await make(client, "drain", pods, NODES)
    processes = {**servers, "client": os.getpid()}
    before = cpu_s(processes)
    rate = await bare_drain(bare, targets, events)
    _add(report, name, rate, _per_bind(before, cpu_s(processes), pods))
    await clear(client)


async def _our_cost(
    stage: Rig,
    client: KubeClient,
    servers: Mapping[str, int],
    events: bool,
    figure_options: tuple[Report, str, int],
    checkout: Path | None = None,
    against: str = "",
) -> None:
    report, name, pods = figure_options
    await make(client, "drain", pods, NODES)
    with stage.reconciler(SPOKEN if events else SILENT, checkout=checkout) as process:
        processes = {**servers, "client": process.pid}
        result = await drain(process, pods, began=lambda: cpu_s(processes))
        _add(report, name, result.rate, _per_bind(result.began, cpu_s(processes), result.count), against)
    await clear(client)


async def _compare(stage: Rig, client: KubeClient, checkout: Path, sizes: CostSizes, report: Report) -> None:
    for turn in range(2 * sizes.turns):
        # A, B, B, A: neither is always the first of its pair.
        is_other = turn % 4 in (0, 3)
        figure_options = (report, OTHER if is_other else HERE, sizes.pods)
        folder, against = (checkout, "") if is_other else (None, OTHER)
        await _our_cost(stage, client, stage.servers, True, figure_options, folder, against)


def _add(report: Report, name: str, rate: float, costs: Mapping[str, float], against: str = "") -> None:
    """Add the figures of a drain; ``against``: the drain to compare them with."""

    def add(figure: str, unit: str, value: float) -> None:
        report.add(Figure(f"{name}: {figure}", unit, (value,), f"{against}: {figure}" if against else ""))

    add("rate", "binds/s", rate)
    for process, cost in costs.items():
        add(f"CPU of {process}", "ms/bind", cost)
    add("CPU of all", "ms/bind", sum(costs.values()))


def _per_bind(before: Mapping[str, float], after: Mapping[str, float], binds: int) -> dict[str, float]:
    """Return milliseconds by process."""
    return {name: 1000 * (after[name] - before[name]) / binds for name in after}
