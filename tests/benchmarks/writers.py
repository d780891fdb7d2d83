"""Healthy requests beside tenants that keep writing pods of nearly the largest size.

Each writer changes an annotation of an unbound pod of 1.3 MB again and again, as fast as the API server replies; each
change is an event of the reconciler's watch. The API server works for the writers as well, so beside the batches that
the reconciler binds stand small writes of this process: what exceeds their ratio is the reconciler's part.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from bowline.kube.client import KubeClient
from bowline.kube.resources import NAMESPACES, PODS
from bowline.testing.builders import pod
from tests.benchmarks.drain import NODES, SPOKEN, warm_up
from tests.benchmarks.isolation import batch
from tests.benchmarks.load import clear, each
from tests.benchmarks.report import Figure, Report
from tests.benchmarks.rig import NAMESPACE, READY_S, rig

SIZE = 1_300_000
TENANTS = "bench-tenants"


@dataclass(frozen=True, slots=True)
class WriterSizes:
    """How many writers, how many healthy requests in a batch, and how many batches."""

    writers: int = 4
    healthy: int = 80
    batches: int = 3


async def bench_writers(sizes: WriterSizes) -> Report:
    """Measure; takes a minute."""
    report = Report("Healthy requests beside writers of large pods, one run on one machine")
    turns, count = range(sizes.batches), sizes.healthy
    with rig(NODES) as stage:
        async with await stage.client() as client, await stage.bare() as bare:
            await warm_up(client, bare)
            alone_bare = tuple([await _write_small(client, f"bare-{turn}", count) for turn in turns])
            async with _writers(client, sizes.writers):
                beside_bare = tuple([await _write_small(client, f"both-{turn}", count) for turn in turns])
            with stage.reconciler(SPOKEN) as process:
                await asyncio.to_thread(process.wait_ready, READY_S)
                await batch(client, "warm", count)
                alone = tuple([await batch(client, f"alone-{turn}", count) for turn in turns])
                async with _writers(client, sizes.writers) as changes:
                    beside = tuple([await batch(client, f"beside-{turn}", count) for turn in turns])
    writes, name = f"{sizes.healthy} small writes of this process", f"{sizes.healthy} healthy requests"
    report.add(Figure(f"{writes}: alone", "s", alone_bare))
    report.add(Figure(f"{writes}: beside {sizes.writers} writers", "s", beside_bare, f"{writes}: alone"))
    report.add(Figure(f"{name}: all bound after", "s", alone))
    report.add(
        Figure(f"{name}: beside {sizes.writers} writers", "s", beside, f"{name}: all bound after", wanted="<= 2")
    )
    report.add(Figure("changes of large pods meanwhile", "", (float(len(changes)),)))
    return report


@contextlib.asynccontextmanager
async def _writers(client: KubeClient, count: int) -> AsyncIterator[list[None]]:
    """Let so many writers change their pods meanwhile; yields the list to which each change is added."""
    with contextlib.suppress(Exception):
        await client.create(NAMESPACES, "", {"metadata": {"name": TENANTS}})
    changes: list[None] = []

    async def write(number: int) -> None:
        name, value = f"large-{number}", "x" * (SIZE // 10)
        body = pod(name, TENANTS)
        body["spec"]["containers"][0]["env"] = [{"name": f"A{part}", "value": value} for part in range(10)]
        await client.create(PODS, TENANTS, body)
        for change in range(1_000_000):
            await client.patch(PODS, TENANTS, name, {"metadata": {"annotations": {"change": str(change)}}})
            changes.append(None)

    writing = [asyncio.create_task(write(number)) for number in range(count)]
    await asyncio.sleep(1)
    try:
        yield changes
    finally:
        for task in writing:
            task.cancel()
        await asyncio.gather(*writing, return_exceptions=True)
        for number in range(count):
            await client.delete(PODS, TENANTS, f"large-{number}", grace_period_s=0)


async def _write_small(client: KubeClient, prefix: str, count: int) -> float:
    """Return the seconds in which this process changes so many small pods, as many at a time as the reconciler."""

    async def create(number: int) -> None:
        await client.create(PODS, NAMESPACE, pod(f"{prefix}-{number}", NAMESPACE))

    async def change(number: int) -> None:
        await client.patch(PODS, NAMESPACE, f"{prefix}-{number}", {"metadata": {"labels": {"changed": "yes"}}})

    await each(count, create)
    took = await each(count, change)
    await clear(client)
    return took
