"""Draining a backlog: by a bare client, and by the reconciler."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from bowline.kube.client import KubeClient
from bowline.localcluster.workload import LocalProcess
from tests.benchmarks.load import BindTarget, bind, clear, each, make
from tests.benchmarks.rig import POLL_S, READY_S, succeeded

NODES = 20
SELDOM_S = 0.5
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Drained(Generic[T]):
    """Binds per second from the first bound pod to the last, and their number; ``began``: see ``drain``."""

    rate: float
    count: int
    began: T


async def warm_up(client: KubeClient, bare: KubeClient) -> None:
    """Run everything that is measured once."""
    targets = await make(client, "warm", 200, NODES)
    await bare_drain(bare, targets)
    await clear(client)


async def bare_drain(bare: KubeClient, targets: list[BindTarget]) -> float:
    """Bind everything by a bare client; returns its rate."""

    async def bind_target(number: int) -> None:
        await bind(bare, targets[number])

    return len(targets) / await each(len(targets), bind_target)


async def drain(process: LocalProcess, count: int, began: Callable[[], T]) -> Drained[T]:
    """Wait until a reconciler that has just been started has bound so many.

    ``began`` is called when the first is bound: the start of the process is not measured.
    """
    first: tuple[int, float, T] | None = None
    deadline = time.perf_counter() + READY_S + count / 50
    while True:
        bound_count = await succeeded_or_none(process)
        now = time.perf_counter()
        if bound_count and first is None:
            first = (bound_count, now, began())
        if first is not None and bound_count is not None and bound_count >= count:
            before, since, note = first
            return Drained(
                (bound_count - before) / (now - since) if bound_count > before else float("nan"),
                bound_count - before,
                note,
            )
        if now > deadline:
            raise TimeoutError(f"{bound_count} of {count} are bound:\n{process.process.tail()}")
        # Reading the counter costs the process time: often only where begin and end are measured.
        await asyncio.sleep(SELDOM_S if bound_count and bound_count < 0.8 * count else POLL_S)


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
