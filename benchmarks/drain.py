"""Draining a backlog: by a bare client, and by the reconciler."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from benchmarks.load import Made, bind, clear, each, make
from benchmarks.rig import POLL_S, READY_S, succeeded
from localcluster.workload import LocalProcess
from shared.kube.client import KubeClient

NODES = 20
SELDOM_S = 0.5
SILENT = {"config.binding.boundEvents": False}
SPOKEN = {"config.binding.boundEvents": True}
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Drained(Generic[T]):
    """Binds per second from the first bound pod to the last, and their number; ``began``: see ``drain``."""

    rate: float
    counted: int
    began: T


async def warm_up(client: KubeClient, bare: KubeClient) -> None:
    """Run everything that is measured once."""
    made = await make(client, "warm", 200, NODES)
    await bare_drain(bare, made, events=True)
    await clear(client)


async def bare_drain(bare: KubeClient, made: list[Made], events: bool) -> float:
    """Bind everything by a bare client; returns its rate."""

    async def one(number: int) -> None:
        await bind(bare, made[number], events)

    return len(made) / await each(len(made), one)


async def drain(process: LocalProcess, count: int, began: Callable[[], T]) -> Drained[T]:
    """Wait until a reconciler that has just been started has bound so many.

    ``began`` is called when the first is bound: the start of the process is not measured.
    """
    first: tuple[int, float, T] | None = None
    deadline = time.perf_counter() + READY_S + count / 50
    while True:
        done = await succeeded_or_none(process)
        now = time.perf_counter()
        if done and first is None:
            first = (done, now, began())
        if first is not None and done is not None and done >= count:
            before, since, noted = first
            return Drained((done - before) / (now - since) if done > before else float("nan"), done - before, noted)
        if now > deadline:
            raise TimeoutError(f"{done} of {count} are bound:\n{process.process.tail()}")
        # Reading the counter costs the process time: often only where begin and end are measured.
        await asyncio.sleep(SELDOM_S if done and done < 0.8 * count else POLL_S)


async def succeeded_or_none(process: LocalProcess) -> int | None:
    """The number of Succeeded requests; None while the process is not listening yet."""
    try:
        return await succeeded(process)
    except OSError:
        return None


async def until_succeeded(process: LocalProcess, count: int) -> None:
    """Wait until so many have Succeeded."""
    async with asyncio.timeout(READY_S):
        while (await succeeded_or_none(process) or 0) < count:  # noqa: ASYNC110 - another process's counter
            await asyncio.sleep(POLL_S)
