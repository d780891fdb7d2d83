"""Pods created at a steady rate, and the result of each.

They are dry runs: the API server calls every webhook as for other requests, and stores nothing. The rate is kept
independently of the replies, up to a number of pods at a time: beyond it the machine is measured, not the webhook,
and the rate that was reached is reported.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from bowline.kube.client import KubeClient
from bowline.kube.errors import KubeError
from bowline.kube.resources import PODS
from bowline.testing.builders import pod

AT_A_TIME = 100


@dataclass(slots=True)
class Load:
    """A run of calls."""

    client: KubeClient
    rate: float
    begun_count: int = 0
    ended_count: int = 0
    elapsed_s: float = 0.0
    latencies: list[float] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    _pending: "set[asyncio.Task[None]]" = field(default_factory=set)

    @property
    def in_flight(self) -> int:
        """Return how many calls are in flight."""
        return len(self._pending)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Create pods until the block ends; then wait for the last replies."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        pace = asyncio.create_task(self._pace(), name="pace")
        try:
            yield
        finally:
            pace.cancel()
            await asyncio.gather(pace, return_exceptions=True)
            self.elapsed_s = loop.time() - began
            await asyncio.gather(*self._pending)

    async def _pace(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            await asyncio.sleep(max(0.0, due - loop.time()))
            if len(self._pending) >= AT_A_TIME:
                await asyncio.wait(self._pending, return_when=asyncio.FIRST_COMPLETED)
            # Missed calls are not caught up: a burst would be another load.
            due = max(due, loop.time() - 1 / self.rate) + 1 / self.rate
            self.begun_count += 1
            task = loop.create_task(self._call(self.begun_count))
            self._pending.add(task)
            task.add_done_callback(self._pending.discard)

    async def _call(self, number: int) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            await self.client.create(PODS, "default", pod(f"load-{number}"), params={"dryRun": "All"})
        except KubeError as error:
            self.failures[str(error)[:300]] += 1
        self.ended_count += 1
        self.latencies.append(loop.time() - began)

    def percentile(self, part: float) -> float:
        """Return a latency in milliseconds."""
        ascending = sorted(self.latencies)
        return 1000 * ascending[min(len(ascending) - 1, int(len(ascending) * part))] if ascending else 0.0
