"""CPU time of processes, as the kernel counts it."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path


def cpu_s(pids: Mapping[str, int]) -> dict[str, float]:
    """Return the CPU time that each process has taken so far, user and system."""
    ticks = os.sysconf("SC_CLK_TCK")
    times = {}
    for name, pid in pids.items():
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        times[name] = (int(after_name[11]) + int(after_name[12])) / ticks
    return times


@asynccontextmanager
async def cores_busy(pids: Mapping[str, int], busy: list[float]) -> AsyncIterator[None]:
    """While the block runs, add to ``busy`` every second how many cores the processes have kept busy together."""

    async def watch() -> None:
        before, since = sum(cpu_s(pids).values()), time.perf_counter()
        while True:
            await asyncio.sleep(1)
            now, at = sum(cpu_s(pids).values()), time.perf_counter()
            busy.append((now - before) / (at - since))
            before, since = now, at

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
