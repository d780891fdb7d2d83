"""How long nothing is bound when the leader goes, in a rolling update or killed; and until the first leader binds.

Requests are created at a steady rate while a standby is ready. Measured is the longest time in which none is
completed: in a rolling update the leader is stopped in order, as its pod is when the new one is ready.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from bowline.kube.client import KubeClient
from bowline.localcluster.workload import LocalProcess
from tests.benchmarks.drain import NODES, warm_up
from tests.benchmarks.latency import WARM_S, completed_requests, completion_latency
from tests.benchmarks.load import clear, make
from tests.benchmarks.report import Figure, Report
from tests.benchmarks.rig import READY_S, Rig, rig

RATE = 20
LOAD_S = 3.0
LEASE_S = 15.0  # the chart's default
# How the leader ends, and for how long nothing may be bound then.
ENDS: tuple[tuple[str, Callable[[LocalProcess], object], float], ...] = (
    ("rolling update", LocalProcess.stop, 1.0),
    ("kill -9", LocalProcess.kill, 1.2 * LEASE_S),
)


@dataclass(frozen=True, slots=True)
class HandOverSizes:
    """How often each is measured."""

    turns: int = 2


async def bench_hand_over(sizes: HandOverSizes) -> Report:
    """Measure; takes two minutes in full."""
    report = Report("Changes of the leader")
    with rig(NODES) as stage:
        async with await stage.client() as client, await stage.bare() as bare:
            await warm_up(client, bare)
            for _ in range(sizes.turns):
                seconds = await _first(stage, client)
                report.add(Figure("first leader: from ready to its first bind", "s", (seconds,), wanted="<= 0.1"))
            for name, end, budget_s in ENDS:
                for _ in range(sizes.turns):
                    gap_s = await _gap_s(stage, client, end)
                    report.add(Figure(f"{name}: nothing bound for", "s", (gap_s,), wanted=f"<= {budget_s:g}"))
    return report


async def _first(stage: Rig, client: KubeClient) -> float:
    """Return the seconds from the readiness of the only reconciler to the bind of a request that existed before."""
    await make(client, "first", 1, NODES)
    async with completed_requests(client, "first") as completions:
        with stage.reconciler() as process:
            await asyncio.to_thread(process.wait_ready, READY_S)
            ready = time.perf_counter()
            await completions.wait(1, READY_S)
    await clear(client)
    return max(0.0, completions.at["first-0"] - ready)


async def _gap_s(stage: Rig, client: KubeClient, end: Callable[[LocalProcess], object]) -> float:
    """Return the longest time in which nothing is bound while the leader ends."""
    with stage.reconciler(name="leader") as leader:
        await asyncio.to_thread(leader.wait_ready, READY_S)
        with stage.reconciler(name="standby") as standby:
            await asyncio.to_thread(standby.wait_ready, READY_S)
            async with asyncio.TaskGroup() as tasks:
                load = tasks.create_task(completion_latency(client, RATE, LOAD_S), name="load")
                # While requests arrive; those that arrive until the next bind are bound then.
                await asyncio.sleep(WARM_S)
                await asyncio.to_thread(end, leader)
    await clear(client)
    return load.result().gap_s
