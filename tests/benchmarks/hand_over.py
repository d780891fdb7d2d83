"""How long nothing is bound when the leader goes: stopped in order, killed, or silent as when its node is lost.

Requests are created at a steady rate by a client; a standby is ready. Measured are the longest time in which none is
completed, and the longest from a request's creation to its completion, which contains the backlog. A reconciler
without another one is measured from the start of its process: it waits for no predecessor, because there was none or
because that one has stopped in order.
"""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise

from bowline.kube.client import KubeClient
from bowline.kube.resources import BINDREQUESTS, PODS
from bowline.localcluster.workload import LocalProcess
from bowline.testing.builders import bind_request, pod
from tests.benchmarks.drain import NODES, SPOKEN
from tests.benchmarks.latency import WARM_S, completed_requests, our_latency
from tests.benchmarks.load import clear
from tests.benchmarks.report import Figure, Report
from tests.benchmarks.rig import NAMESPACE, READY_S, Rig, rig

RATE = 20
LEASE_S = 15.0  # the chart's default
# From the beginning of the load to the end of the leader.
_BEFORE_S = WARM_S + 1
# The longest gap that is wanted, and how long the load lasts, in seconds.
_BUDGETS = {"stopped in order": (1.0, 4.0), "killed": (1.2 * LEASE_S, 25.0), "silent": (1.2 * LEASE_S, 25.0)}


@dataclass(frozen=True, slots=True)
class HandOverSizes:
    """How often each is measured."""

    repetitions: int = 3


async def bench_hand_over(sizes: HandOverSizes) -> Report:
    """Measure; takes five minutes in full."""
    report = Report("From a request's creation to its bind while the leader goes, one run on one machine")
    with rig(NODES) as stage:
        async with await stage.client() as client:
            for _ in range(sizes.repetitions):
                seconds = await _first(stage, client)
                report.add(Figure("the only reconciler: start of its process to a bind", "s", (seconds,)))
            for how, end in (("stopped in order", _stop), ("killed", LocalProcess.kill), ("silent", _silence)):
                budget_s, load_s = _BUDGETS[how]
                for _ in range(sizes.repetitions):
                    milliseconds = await _latencies(stage, client, end, load_s)
                    times = sorted(number / RATE + late / 1000 for number, late in enumerate(milliseconds))
                    gap = max(after - before for before, after in pairwise(times))
                    report.add(Figure(f"leader {how}: nothing bound for", "s", (gap,), "", f"<= {budget_s:g}"))
                    report.add(Figure(f"leader {how}: longest time to a bind", "s", (max(milliseconds) / 1000,)))
    return report


async def _first(stage: Rig, client: KubeClient) -> float:
    """Return the seconds from the start of the only reconciler to the bind of a request that existed before."""
    stored_pod = await client.create(PODS, NAMESPACE, pod("first", NAMESPACE))
    body = bind_request("first", "gpu-node-0", NAMESPACE, stored_pod["metadata"]["uid"])
    async with completed_requests(client, "first") as completions:
        await client.create(BINDREQUESTS, NAMESPACE, body)
        began = time.perf_counter()
        with stage.reconciler(SPOKEN):
            await completions.wait(1, READY_S)
    await clear(client)
    return completions.at["first"] - began


async def _latencies(
    stage: Rig, client: KubeClient, end: Callable[[LocalProcess], object], load_s: float
) -> list[float]:
    with stage.reconciler(SPOKEN) as leader:
        await asyncio.to_thread(leader.wait_ready, READY_S)
        with stage.reconciler(SPOKEN) as standby:
            await asyncio.to_thread(standby.wait_ready, READY_S)
            milliseconds = await our_latency(client, RATE, load_s, _ending(leader, end))
        leader.process.signal(signal.SIGCONT)
    await clear(client)
    return milliseconds


@asynccontextmanager
async def _ending(leader: LocalProcess, end: Callable[[LocalProcess], object]) -> AsyncIterator[None]:
    async def later() -> None:
        await asyncio.sleep(_BEFORE_S)
        await asyncio.to_thread(end, leader)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(later(), name="end of the leader")
        yield


def _stop(leader: LocalProcess) -> None:
    leader.stop(60)


def _silence(leader: LocalProcess) -> None:
    leader.process.signal(signal.SIGSTOP)
