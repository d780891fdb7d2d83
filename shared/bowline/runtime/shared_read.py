"""Coalesced reads: many concurrent callers share one read, and its result is reused for a while.

For results that may be some seconds old, such as hints in messages. A cancelled caller does not cancel the read that
others wait for. A failed read is not reused: the next caller reads again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class SharedReads(Generic[K, V]):
    """Reads by key, each valid for ``ttl_s`` seconds from its start. ``now`` is a monotonic clock."""

    def __init__(self, ttl_s: float, now: Callable[[], float]) -> None:
        self._ttl_s = ttl_s
        self._now = now
        self._reads: dict[K, tuple[float, asyncio.Task[V]]] = {}

    def __len__(self) -> int:
        return len(self._reads)

    async def get(self, key: K, read: Callable[[], Awaitable[V]], max_age_s: float = float("inf")) -> V:
        """Return the result of the key's current read; starts one if there is none. Raises the read's error.

        ``max_age_s``: a result of a read that has begun longer ago does not count either.
        """
        self._expire()
        entry = self._reads.get(key)
        is_old = entry is not None and entry[0] < self._now() - max_age_s
        if entry is not None and is_old and not entry[1].done():
            await asyncio.wait({entry[1]})  # one read of a key at a time
            return await self.get(key, read, max_age_s)
        if entry is None or is_old:
            task: asyncio.Task[V] = asyncio.ensure_future(_as_coroutine(read))
            entry = self._reads[key] = (self._now(), task)
            task.add_done_callback(lambda read_task: self._drop_failed(key, read_task))
        return await asyncio.shield(entry[1])

    def known(self, key: K) -> V | None:
        """Return the key's result that ``get`` would reuse; None without one."""
        self._expire()
        _, task = self._reads.get(key, (0.0, None))
        if task is None or not task.done() or task.cancelled() or task.exception() is not None:
            return None
        return task.result()

    def _expire(self) -> None:
        oldest = self._now() - self._ttl_s
        for key in [key for key, (at, task) in self._reads.items() if at <= oldest and task.done()]:
            del self._reads[key]

    def _drop_failed(self, key: K, read_task: "asyncio.Task[Any]") -> None:
        if read_task.cancelled() or read_task.exception() is not None:
            entry = self._reads.get(key)
            if entry is not None and entry[1] is read_task:
                del self._reads[key]


async def _as_coroutine(read: Callable[[], Awaitable[V]]) -> V:
    return await read()
