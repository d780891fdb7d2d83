"""Tens of thousands of requests through one reconciler process: what it takes for each, and what it keeps of them.

The requests come in rounds, each of which is deleted after it was bound, as users delete pods. Memory, CPU time of a
request and remembered entries after each round are flat unless something is kept or grows with what has been. Every
fourth request is for a node that does not exist: it fails, so that the states of failures are passed as well.
"""

import asyncio
import re
from dataclasses import dataclass

from bowline.kube.client import KubeClient
from bowline.kube.resources import BINDREQUESTS, PODS
from bowline.localcluster.workload import LocalProcess
from bowline.testing.builders import bind_request
from tests.benchmarks.cpu import cpu_s
from tests.benchmarks.load import big_pod, clear, each
from tests.benchmarks.report import Figure, Report
from tests.benchmarks.rig import NAMESPACE, READY_S, resident_mb, rig

NODES = 10
POLL_S = 0.2
ROUND_S = 300
# Rounds until caches and allocators have their size.
WARM_UP = 2
_FINISHED = re.compile(r"^bowline_requests_finished_total\{.*\} (\S+)$", re.MULTILINE)
_REMEMBERED = re.compile(r"^bowline(?:_plugin)?_remembered\{(.*)\} (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class SoakSizes:
    """How many requests, in how many rounds."""

    requests: int = 50_000
    rounds: int = 50

    @property
    def of_round(self) -> int:
        """The requests of one round."""
        return self.requests // self.rounds


async def bench_soak(sizes: SoakSizes) -> Report:
    """Run all rounds; prints each, and at the end how much the last ones differ from the first ones."""
    report = Report(f"{sizes.requests} requests through one process, in {sizes.rounds} rounds")
    memory: list[float] = []
    cpu: list[float] = []
    with rig(NODES) as stage:
        async with await stage.client() as client:
            with stage.reconciler() as process:
                process.wait_ready(READY_S)
                for number in range(1, sizes.rounds + 1):
                    before = cpu_s({"": process.pid})[""]
                    await _round(client, process, number, sizes.of_round)
                    cpu.append((cpu_s({"": process.pid})[""] - before) / sizes.of_round * 1000)
                    memory.append(resident_mb(process.pid))
                    print(f"round {number}: {memory[-1]:.1f} MB, {cpu[-1]:.2f} ms a request", flush=True)
                remembered = await _remembered(process)
    part = max(1, (sizes.rounds - WARM_UP) // 4)
    for name, unit, values in (("memory", "MB", memory), ("CPU time of a request", "ms", cpu)):
        first = Figure(f"{name}, rounds {WARM_UP + 1} to {WARM_UP + part}", unit, tuple(values[WARM_UP:][:part]))
        report.add(first)
        report.add(Figure(f"{name}, last {part} rounds", unit, tuple(values[-part:]), first.name, "1.0"))
    report.add(Figure("entries remembered at the end", "", (float(sum(remembered.values())),), wanted="0"))
    return report


async def _round(client: KubeClient, process: LocalProcess, number: int, count: int) -> None:
    """Make requests, wait until all have ended and nothing is remembered of them after their deletion."""

    async def request(index: int) -> None:
        name = f"soak-{number}-{index}"
        pod = await client.create(PODS, NAMESPACE, big_pod(name))
        node = f"gpu-node-{index % NODES}" if index % 4 else "gpu-node-none"
        body = bind_request(name, node, NAMESPACE, pod["metadata"]["uid"])
        await client.create(BINDREQUESTS, NAMESPACE, body)

    await each(count, request)
    async with asyncio.timeout(ROUND_S):
        while await _finished(process) < number * count:  # noqa: ASYNC110 - another process's counter
            await asyncio.sleep(POLL_S)
        await clear(client)
        while any((await _remembered(process)).values()):  # noqa: ASYNC110 - another process's counter
            await asyncio.sleep(POLL_S)


async def _finished(process: LocalProcess) -> float:
    _, text = await asyncio.to_thread(process.get, "/metrics?name[]=bowline_requests_finished_total")
    return sum(float(value) for value in _FINISHED.findall(text))


async def _remembered(process: LocalProcess) -> dict[str, float]:
    """Return what is remembered of requests, by the labels of its series."""
    query = "/metrics?name[]=bowline_remembered&name[]=bowline_plugin_remembered"
    _, text = await asyncio.to_thread(process.get, query)
    return {labels: float(value) for labels, value in _REMEMBERED.findall(text)}
