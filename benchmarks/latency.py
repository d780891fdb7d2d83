"""From a request's creation to its bound pod, at a steady rate: by the loading client, and by the reconciler.

Both run some seconds at that rate before measuring: connections are open, modules are loaded, and a reconciler has
processed the existing objects.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

from benchmarks.drain import NODES
from benchmarks.load import Made, big_pod, bind, each
from benchmarks.report import Figure, percentile
from benchmarks.rig import NAMESPACE, READY_S
from shared.kube.client import KubeClient
from shared.kube.resources import BINDREQUESTS, PODS, Selection
from shared.testing.builders import bind_request

WARM_S = 3.0
# Entered while requests are created at the rate.
During = AbstractAsyncContextManager[object]


async def _pods_for(client: KubeClient, count: int) -> list[dict[str, str]]:
    uids: list[dict[str, str]] = [{}] * count

    async def one(number: int) -> None:
        stored = await client.create(PODS, NAMESPACE, big_pod(f"paced-{number}"))
        uids[number] = {"name": f"paced-{number}", "uid": stored["metadata"]["uid"]}

    await each(count, one)
    return uids


async def floor_latency(
    client: KubeClient, bare: KubeClient, rate: int, seconds: float, during: During | None = None
) -> list[float]:
    """The loading client binds each request itself as soon as it is created; milliseconds for each."""
    pods = await _pods_for(client, int(rate * (WARM_S + seconds)))
    taken: dict[int, float] = {}

    async def one(number: int) -> None:
        request = bind_request(pods[number]["name"], f"gpu-node-{number % NODES}", NAMESPACE, pods[number]["uid"])
        stored = await client.create(BINDREQUESTS, NAMESPACE, request)
        began = time.perf_counter()
        await bind(bare, Made({"metadata": pods[number]}, stored), events=False)
        taken[number] = (time.perf_counter() - began) * 1000

    async with during or nullcontext():
        await _paced(len(pods), rate, one)
    return [taken[number] for number in range(int(rate * WARM_S), len(pods))]


async def our_latency(client: KubeClient, rate: int, seconds: float, during: During | None = None) -> list[float]:
    """From the reply to each request's creation to its Succeeded on a watch, in milliseconds."""
    pods = await _pods_for(client, int(rate * (WARM_S + seconds)))
    created: dict[str, float] = {}
    done: dict[str, float] = {}
    complete = asyncio.Event()
    listed = await client.list(BINDREQUESTS, NAMESPACE, limit=1)
    watching = asyncio.create_task(
        _watch_done(client, listed["metadata"]["resourceVersion"], done, len(pods), complete), name="watch"
    )

    async def one(number: int) -> None:
        name = pods[number]["name"]
        request = bind_request(name, f"gpu-node-{number % NODES}", NAMESPACE, pods[number]["uid"])
        await client.create(BINDREQUESTS, NAMESPACE, request)
        created[name] = time.perf_counter()

    try:
        async with during or nullcontext():
            await _paced(len(pods), rate, one)
        async with asyncio.timeout(READY_S):
            await complete.wait()
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    # Bound before the creator had its reply counts as zero.
    counted = [pod["name"] for pod in pods[int(rate * WARM_S) :]]
    return [max(0.0, (done[name] - created[name]) * 1000) for name in counted]


def percentiles(name: str, values: list[float], floor: str = "") -> list[Figure]:
    """Return p50 and p99; with a floor, compared with the floor's."""
    return [
        Figure(
            f"{name} {label}",
            "ms",
            (percentile(values, share),),
            f"{floor} {label}" if floor else "",
            wanted if floor else "",
        )
        for share, label, wanted in ((0.5, "p50", "<= 1.5"), (0.99, "p99", "<= 4"))
    ]


async def _watch_done(
    client: KubeClient, version: str, done: dict[str, float], count: int, complete: asyncio.Event
) -> None:
    async for event in client.watch(Selection(BINDREQUESTS, NAMESPACE), version, 600):
        stored = event["object"]
        name = stored["metadata"].get("name", "")
        if name.startswith("paced-") and (stored.get("status") or {}).get("phase") == "Succeeded":
            done.setdefault(name, time.perf_counter())
            if len(done) == count:
                complete.set()


async def _paced(count: int, rate: int, act: Callable[[int], Coroutine[Any, Any, None]]) -> None:
    """Start one every 1/rate seconds, independently of the others."""
    began = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for number in range(count):
            pause = began + number / rate - time.perf_counter()
            if pause > 0:
                await asyncio.sleep(pause)
            tasks.create_task(act(number))
