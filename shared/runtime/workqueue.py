"""A queue of keys for a level-triggered controller, on one event loop.

A key stands for "look at this object", not for an event, so that any number of adds before a look are one look. Where
a key can be:

- *ready*: in line to be handed out, once;
- *processing*: handed out and not yet done; added meanwhile, it gets back in line when done, so that no two workers
  ever look at the same object;
- *delayed*: to be added later; the earliest wish wins, and an explicit ``add`` takes its place. With a
  ``late_limit``, keys whose delay is over stand in a line of their own: whatever comes fresh goes before them, and
  only that many of them are processed at a time, so that thousands of waits that come due together hold nobody up.
  Half as many are served in any case, in turn with fresh ones, so that a flood of fresh keys does not hold them up
  for ever either, nor they, where there is a single worker, the fresh ones.

One heap and one timer serve all delays: 100,000 waiting keys cost no tasks. Nothing is kept across processes; what a
queue forgets when shut down, the next process finds by listing.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

# Superseded heap entries are dropped when they outnumber the live ones, but not for a handful.
_SLACK = 64


class QueueShutDown(Exception):  # noqa: N818 - not an error: the end of the work
    """There will be no more keys."""


@dataclass(frozen=True, slots=True)
class QueueView(Generic[K]):
    """A look at a queue: the first of the ready with their age, those being processed, the next of the delayed."""

    ready: tuple[tuple[K, float], ...]
    processing: tuple[K, ...]
    delayed: tuple[tuple[K, float], ...]


class WorkQueue(Generic[K]):
    """A de-duplicating queue of keys with delays. Not thread-safe."""

    def __init__(self, late_limit: int | None = None) -> None:
        # The line, and when each key got into it. (The front of a dict alone would cost more with every deletion.)
        self._line: deque[K] = deque()
        self._ready: dict[K, float] = {}
        # The line of keys whose delay is over. One that is added meanwhile changes lines and stays here as a gap.
        self._late_limit = late_limit
        self._late: deque[K] = deque()
        self._late_ready: set[K] = set()
        self._late_processing: set[K] = set()
        self._late_was_last = False
        self._processing: set[K] = set()
        # Added while processing, and when.
        self._again: dict[K, float] = {}
        self._delayed: dict[K, tuple[float, int]] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._sequence = 0
        # uvloop's handle of a call that is due at once does not know when: kept beside it.
        self._timer: tuple[float, asyncio.Handle] | None = None
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._shut_down = False

    @property
    def depth(self) -> int:
        """Keys that could be handed out now."""
        return len(self._ready)

    @property
    def fresh(self) -> int:
        """Keys that could be handed out now and were added, not brought by a clock."""
        return len(self._line)

    @property
    def processing(self) -> int:
        """Keys handed out and not yet done."""
        return len(self._processing)

    @property
    def delayed(self) -> int:
        """Keys to be added later."""
        return len(self._delayed)

    @property
    def oldest_age(self) -> timedelta:
        """How long the first in line has been there; zero if the line is empty."""
        if not self._ready:
            return timedelta()
        while self._late and self._late[0] not in self._late_ready:
            self._late.popleft()
        first = min(self._ready[line[0]] for line in (self._line, self._late) if line)
        return timedelta(seconds=self._now() - first)

    def view(self, limit: int) -> QueueView[K]:
        """Return up to ``limit`` keys of each kind; for people to look at."""
        now = self._now()
        # The order in which they got ready; a late one may go after those that follow it here.
        ready = tuple((key, now - since) for key, since in islice(self._ready.items(), limit))
        soonest = heapq.nsmallest(limit, self._delayed.items(), key=lambda item: item[1])
        delayed = tuple((key, due - now) for key, (due, _) in soonest)
        return QueueView(ready, tuple(islice(self._processing, limit)), delayed)

    def place(self, key: K) -> str | None:
        """Return where a key is, in words; None if it is not in the queue. For people to look at."""
        if key in self._processing:
            return "processing" + (", added again meanwhile" if key in self._again else "")
        if key in self._ready:
            return f"ready since {self._now() - self._ready[key]:.3f} s"
        delayed = self._delayed.get(key)
        return f"due in {delayed[0] - self._now():.3f} s" if delayed is not None else None

    def holds(self, key: K) -> bool:
        """Return whether the key will be handed out again without being added or waited for."""
        return key in self._ready or key in self._again

    def add(self, key: K) -> None:
        """Have the key looked at as soon as possible; its delay, if any, is over."""
        if self._shut_down:
            return
        self._delayed.pop(key, None)
        if key in self._processing:
            self._again.setdefault(key, self._now())
        elif key not in self._ready:
            self._enqueue(key, self._now())
        elif key in self._late_ready:
            self._late_ready.discard(key)
            self._line.append(key)
            self._wake_one()

    def add_after(self, key: K, delay: timedelta) -> None:
        """Have the key looked at after ``delay``, or sooner if an earlier wish is pending."""
        if delay <= timedelta():
            self.add(key)
            return
        if self._shut_down:
            return
        due = self._now() + delay.total_seconds()
        pending = self._delayed.get(key)
        if pending is not None and pending[0] <= due:
            return
        self._sequence += 1
        self._delayed[key] = (due, self._sequence)
        heapq.heappush(self._heap, (due, self._sequence, key))
        if len(self._heap) > 2 * len(self._delayed) + _SLACK:
            self._heap = [(at, number, waiting) for waiting, (at, number) in self._delayed.items()]
            heapq.heapify(self._heap)
        self._set_timer()

    async def get(self) -> K:
        """Wait for a key and take it; call ``done`` when finished. Raises QueueShutDown after ``shut_down``."""
        while (key := self._next()) is None:
            if self._shut_down:
                raise QueueShutDown
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                # Woken for a key and cancelled in the same turn: the key goes to somebody else.
                if waiter.done() and not waiter.cancelled():
                    self._wake_one()
                raise
        del self._ready[key]
        self._processing.add(key)
        return key

    def done(self, key: K) -> None:
        """End the processing of a key; if it was added meanwhile, it gets back in line."""
        self._processing.discard(key)
        if key in self._late_processing:
            self._late_processing.discard(key)
            if self._late_ready:
                self._wake_one()
        added = self._again.pop(key, None)
        if added is not None and not self._shut_down:
            self._enqueue(key, added)

    def shut_down(self) -> None:
        """Hand out no more keys and take none; those being processed are still to be marked done."""
        self._shut_down = True
        self._ready.clear()
        self._line.clear()
        self._late.clear()
        self._late_ready.clear()
        self._again.clear()
        self._delayed.clear()
        self._heap.clear()
        if self._timer is not None:
            self._timer[1].cancel()
            self._timer = None
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _next(self) -> K | None:
        """Take the key that is to be handed out now; None if there is none or all late ones have to wait."""
        limit = self._late_limit or 0
        share = -(-limit // 2) if self._line else limit
        in_turn = not (self._late_was_last and self._line)
        self._late_was_last = False
        if self._late_ready and len(self._late_processing) < share and in_turn:
            self._late_was_last = True
            while (key := self._late.popleft()) not in self._late_ready:
                pass
            self._late_ready.discard(key)
            self._late_processing.add(key)
            return key
        return self._line.popleft() if self._line else None

    def _enqueue_late(self, key: K) -> None:
        """The key's delay is over: put it in line, behind everything fresh."""
        if self._late_limit is None or key in self._processing:
            self.add(key)
            return
        self._delayed.pop(key, None)
        if key not in self._ready:
            self._ready[key] = self._now()
            self._late.append(key)
            self._late_ready.add(key)
            self._wake_one()

    def _enqueue(self, key: K, since: float) -> None:
        self._ready[key] = since
        self._line.append(key)
        self._wake_one()

    def _wake_one(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _set_timer(self) -> None:
        """Have ``_release`` called when the earliest live delay is over."""
        while self._heap and self._delayed.get(self._heap[0][2]) != self._heap[0][:2]:
            heapq.heappop(self._heap)
        due = self._heap[0][0] if self._heap else None
        if self._timer is not None:
            if self._timer[0] == due:
                return
            self._timer[1].cancel()
            self._timer = None
        if due is not None:
            self._timer = (due, asyncio.get_running_loop().call_at(due, self._release))

    def _release(self) -> None:
        self._timer = None
        # Timers may fire early by the clock's resolution; the next one is set for what is left.
        now = self._now()
        while self._heap and self._heap[0][0] <= now:
            due, number, key = heapq.heappop(self._heap)
            if self._delayed.get(key) == (due, number):
                self._enqueue_late(key)
        self._set_timer()
