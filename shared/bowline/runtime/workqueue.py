"""A work queue of keys for a level-triggered controller, on one event loop.

A key means "reconcile this object", not an event, so any number of adds before a reconcile cause one reconcile. A key
is in one of these states:

- *ready*: will be handed out once;
- *processing*: handed out and not yet done; if added meanwhile, it becomes ready again when done, so that no two
  workers ever process the same key;
- *delayed*: will be added later; the earliest due time wins, and an explicit ``add`` replaces it.

A key that is *held* is not handed out before its hold is over: an add only delays it until then. One that *rests* is
the same, except that ``add`` may end its rest.

Ready keys have one of two priorities: ``add`` takes it as an argument, and a key whose delay is over has low
priority. With a ``low_priority_limit`` normal keys are handed out first, and at most that many low-priority keys are
processed at a time, so that thousands of delays that end together do not hold up new work. Half as many may be
processed at any time, alternating with normal ones, so that neither priority starves the other.

Within a priority, *groups* of keys (``group`` returns a key's group, its namespace for example) take turns, however
many keys each has. With ``workers``, that many keys are processed at a time, and no group occupies all of them. A key
that is processed for ``SLOW_S`` is *slow*: it gives its worker back, and another key is processed in its place, up to
``capacity`` keys in all. What a group may have in progress is limited so that a group whose keys hang leaves room for
any that comes later: half of the workers are for everyone; beyond those, a few per group and one more for each key
that the group has completed before it was slow, and always less than a share of what is left. The last quarter is for
groups whose last key was not slow.

One heap and one timer serve all delays: 100,000 delayed keys need no tasks. Nothing is persisted; the next process
finds the keys by listing. Decision 110.
"""

import asyncio
import heapq
from collections import Counter, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from typing import Generic, TypeVar

from bowline.runtime.backoff import ItemBackoff
from bowline.runtime.lane import Lane

K = TypeVar("K", bound=Hashable)

# Superseded heap entries are dropped when they outnumber the live ones by more than a few.
_SLACK = 64
# A key that is processed for this long no longer counts as one of the workers.
SLOW_S = 1.0
# Keys in progress, slow ones included, per worker.
CAPACITY = 3
# A group's workers per free one: a single group leaves an eighth of them free, two leave a fifteenth, and so on.
_SHARE = 7
# So many groups may hang that they occupy all places: a part of them is for groups whose last key was not slow. After
# a while a slow group counts as any other.
_RESERVE = 4
_SLOW_GROUP_S = 600.0
# The default rate limit of a failing key: short at first, then every few minutes.
RETRY_BACKOFF = (timedelta(seconds=1), timedelta(minutes=5))
_ZERO = timedelta()
_NOT_QUIET = (0.0, False)
# Of a key that was added while it is processed, as what it awaited has changed: it does not begin to rest.
_RESTLESS = (0.0, True)


class QueueShutDown(Exception):  # noqa: N818 - not an error: the end of the work
    """The queue is shut down; there are no more keys."""


@dataclass(frozen=True, slots=True)
class QueueView(Generic[K]):
    """A snapshot: the first ready keys and their age, those being processed, the next delayed keys; in seconds."""

    ready: tuple[tuple[K, float], ...]
    processing: tuple[K, ...]
    delayed: tuple[tuple[K, float], ...]


class WorkQueue(Generic[K]):
    """A de-duplicating queue of keys with delays, priorities, fairness between groups and rate limiting.

    Not thread-safe. ``workers`` is how many keys that are not slow are processed at a time at most; without it no
    group is limited, and no key is slow. A queue that is not open, as on a standby, accepts no keys. While
    ``is_paused`` returns true, it hands out none.
    """

    def __init__(
        self,
        *,
        low_priority_limit: int | None = None,
        group: Callable[[K], Hashable] = lambda _: None,
        workers: int | None = None,
        backoff: ItemBackoff[K] | None = None,
        is_open: bool = True,
        is_paused: Callable[[], bool] = lambda: False,
    ) -> None:
        self._group = group
        self._workers = workers
        self._low_limit = low_priority_limit
        self._backoff: ItemBackoff[K] = backoff if backoff is not None else ItemBackoff(*RETRY_BACKOFF)
        # Since when each key has been ready, in that order.
        self._ready: dict[K, float] = {}
        self._normal: Lane[K] = Lane(group)
        self._low: Lane[K] = Lane(group)
        self._low_was_last = False
        # Since when each key that is not slow has been processed, in that order.
        self._started_at: dict[K, float] = {}
        self._slow: set[K] = set()
        # When each group's last key became slow, in that order; without those whose key was completed quickly since.
        self._slow_groups: dict[Hashable, float] = {}
        self._in_progress: Counter[Hashable] = Counter()
        # Keys that a group has completed since it was last idle or slow.
        self._completions: Counter[Hashable] = Counter()
        self._slow_timer: asyncio.TimerHandle | None = None
        # Keys added while processing: when, and whether with low priority.
        self._again: dict[K, tuple[float, bool]] = {}
        self._due_times: dict[K, tuple[float, int]] = {}
        # When a key may be handed out again, and whether it rests until then, or is held.
        self._quiet_until: dict[K, tuple[float, bool]] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._sequence = 0
        # uvloop's handle of a call that is due immediately has no time: stored beside it.
        self._timer: tuple[float, asyncio.Handle] | None = None
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._is_paused = is_paused
        self.is_open = is_open

    @property
    def depth(self) -> int:
        """The number of ready keys."""
        return len(self._ready)

    @property
    def is_busy(self) -> bool:
        """Whether a key of normal priority is ready."""
        return bool(self._normal)

    @property
    def processing(self) -> int:
        """The number of keys handed out and not yet done."""
        return len(self._started_at) + len(self._slow)

    @property
    def capacity(self) -> int:
        """The number of keys that can be processed at a time, slow ones included; so many tasks may call ``get``."""
        return CAPACITY * (self._workers or 1)

    @property
    def delayed(self) -> int:
        """The number of delayed keys."""
        return len(self._due_times)

    def snapshot(self, limit: int) -> QueueView[K]:
        """Return up to ``limit`` keys of each state, for the debug page."""
        now = self._now()
        # In the order in which they became ready, which is not the order in which they are handed out.
        ready = tuple((key, now - since) for key, since in islice(self._ready.items(), limit))
        soonest = heapq.nsmallest(limit, self._due_times.items(), key=lambda item: item[1])
        delayed = tuple((key, due - now) for key, (due, _) in soonest)
        return QueueView(ready, tuple(islice((*self._slow, *self._started_at), limit)), delayed)

    def add(self, key: K, *, low_priority: bool = False, ends_rest: bool = False) -> None:
        """Make the key ready; cancels its delay. Of several adds the one with normal priority counts.

        ``ends_rest``: the key rests no more; if it is being processed, it does not begin to rest either.
        """
        if ends_rest and self._quiet_until.get(key, _NOT_QUIET)[1]:
            del self._quiet_until[key]
        if not self.is_open or self._delay_if_held(key):
            return
        self._due_times.pop(key, None)
        if self._is_processing(key):
            if ends_rest:
                self._quiet_until[key] = _RESTLESS
            since, is_low = self._again.get(key, (self._now(), True))
            self._again[key] = (since, is_low and low_priority)
        elif key not in self._ready:
            self._enqueue(key, self._now(), low_priority=low_priority)
        elif key in self._low and not low_priority:
            self._low.discard(key)
            self._normal.add(key)
            self._wake_one()

    def add_rate_limited(
        self,
        key: K,
        *,
        at_least: timedelta = _ZERO,
        retry_after: timedelta | None = None,
        rest: timedelta = _ZERO,
    ) -> None:
        """Make the key ready after a delay that increases with each call until ``forget``, after ``at_least``.

        ``retry_after``: a server's Retry-After; the key is held until it is over, and the delay lasts up to twice it.
        ``rest``: for how much of the delay the key rests at most, if it is not held.
        """
        delay = max(at_least, self._backoff.next_delay(key, retry_after))
        if retry_after is not None:
            self.hold(key, retry_after)
        else:
            self.rest(key, min(rest, delay))
        if delay > _ZERO:
            self.add_after(key, delay)
        else:
            self.add(key, low_priority=True)

    def forget(self, key: K) -> None:
        """Reset the key's rate limit, after it was processed without a failure."""
        self._backoff.reset(key)

    def forget_all(self) -> None:
        """Reset the rate limits of all keys, after an outage that no key has caused; delays go on."""
        self._backoff.clear()

    def add_after(self, key: K, delay: timedelta) -> None:
        """Make the key ready after ``delay``, or sooner if it is due earlier already."""
        if delay <= timedelta():
            self.add(key)
            return
        if not self.is_open:
            return
        due = self._now() + delay.total_seconds()
        pending = self._due_times.get(key)
        if pending is not None and pending[0] <= due:
            return
        self._sequence += 1
        self._due_times[key] = (due, self._sequence)
        heapq.heappush(self._heap, (due, self._sequence, key))
        if len(self._heap) > 2 * len(self._due_times) + _SLACK:
            self._heap = [(at, number, waiting) for waiting, (at, number) in self._due_times.items()]
            heapq.heapify(self._heap)
        self._set_timer()

    def hold(self, key: K, duration: timedelta) -> None:
        """Keep the key from being handed out for ``duration``, whatever adds it meanwhile."""
        if self.is_open:
            self._quiet_until[key] = (self._now() + duration.total_seconds(), False)

    def rest(self, key: K, duration: timedelta) -> None:
        """Keep the key from being handed out for ``duration``, unless an add ends that or has just done so."""
        if self.is_open and duration > _ZERO and self._quiet_until.get(key) != _RESTLESS:
            self._quiet_until[key] = (self._now() + duration.total_seconds(), True)

    async def get(self) -> K:
        """Wait for a key and take it; call ``done`` when finished. Raises QueueShutDown after ``shut_down``."""
        while (key := self._next()) is None:
            if not self.is_open:
                raise QueueShutDown
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                # Woken for a key and cancelled before taking it: wake another worker.
                if waiter.done() and not waiter.cancelled():
                    self._wake_one()
                raise
        del self._ready[key]
        self._start(key)
        if self._ready:
            # More than one key may have become available with the last ``done``.
            self._wake_one()
        return key

    def done(self, key: K) -> None:
        """End the processing of a key; if it was added meanwhile, it becomes ready again.

        The worker calls ``get`` next: what a limit has held back and is available now, it takes or wakes others for.
        """
        self._stop(key)
        if self._quiet_until.get(key) == _RESTLESS:
            del self._quiet_until[key]
        again = self._again.pop(key, None)
        if again is not None and self.is_open and not self._delay_if_held(key):
            self._enqueue(key, again[0], low_priority=again[1])

    def resume(self) -> None:
        """Hand out keys again, at the end of a pause."""
        self._wake_one()

    def open(self) -> None:
        """Accept keys, after ``shut_down`` again. Every key of before must have been marked done."""
        self.is_open = True

    def shut_down(self) -> None:
        """Hand out and accept no more keys; those being processed must still be marked done."""
        self.is_open = False
        self._backoff.clear()
        self._ready.clear()
        self._normal.clear()
        self._low.clear()
        self._again.clear()
        self._due_times.clear()
        self._quiet_until.clear()
        self._slow_groups.clear()
        self._heap.clear()
        if self._timer is not None:
            self._timer[1].cancel()
            self._timer = None
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _next(self) -> K | None:
        """Start to process the next key and return it; None if none is ready or limits hold all of them back."""
        if self._is_paused():
            return None
        limit = self._low_limit or 0
        alternates = not (self._low_was_last and self._normal)
        self._low_was_last = False
        key = self._take_low(-(-limit // 2) if self._normal else limit) if alternates else None
        if key is None:
            key = self._normal.take(self._may_take)
        # Normal keys that are held back hold no others back.
        return key if key is not None else self._take_low(limit)

    def _take_low(self, share: int) -> K | None:
        """Start to process the next key of low priority, at most ``share`` of them at a time."""
        if not self._low or len(self._low.processing) >= share:
            return None
        key = self._low.take(lambda group: self._may_take(group) and self._may_take_low(group, share))
        self._low_was_last = key is not None
        return key

    def _may_take(self, group: Hashable) -> bool:
        """Return whether the group may have another key in progress."""
        if self._workers is None:
            return True
        busy = len(self._started_at)
        processing, idle = busy + len(self._slow), self._workers - busy
        free = self.capacity - processing
        if free <= 0 or idle <= 0:
            return False
        if processing < self._workers // 2:
            return True
        if free <= self.capacity // _RESERVE and group in self._slow_groups:
            return False
        own_share = 2 * free // self._workers + self._completions[group]
        return self._in_progress[group] < max(1, min(own_share, free // 2, _SHARE * idle))

    def _may_take_low(self, group: Hashable, share: int) -> bool:
        """Return whether the group may occupy another low-priority worker; it leaves a quarter of these free."""
        free = share - len(self._low.processing)
        return self._workers is None or self._low.processing_by_group[group] < 3 * free

    def _delay_if_held(self, key: K) -> bool:
        """Delay a key that is held or rests until that is over; returns whether it does."""
        until = self._quiet_until.get(key, _NOT_QUIET)[0]
        if not until:
            return False
        left = timedelta(seconds=until - self._now())
        if left > timedelta():
            self.add_after(key, left)
            return True
        del self._quiet_until[key]
        return False

    def _is_processing(self, key: K) -> bool:
        return key in self._started_at or key in self._slow

    def _start(self, key: K) -> None:
        self._started_at[key] = self._now()
        self._in_progress[self._group(key)] += 1
        if self._workers is not None and self._slow_timer is None:
            self._slow_timer = asyncio.get_running_loop().call_later(SLOW_S, self._give_back)

    def _stop(self, key: K) -> None:
        group = self._group(key)
        self._normal.done(key)
        self._low.done(key)
        if self._started_at.pop(key, None) is not None:
            self._completions[group] += 1
            self._slow_groups.pop(group, None)
        self._slow.discard(key)
        self._in_progress[group] -= 1
        if not self._in_progress[group]:
            del self._in_progress[group], self._completions[group]

    def _give_back(self) -> None:
        """Give back the workers of the keys that have become slow, and set the timer for the next one."""
        self._slow_timer = None
        now = self._now()
        for key, since in list(self._started_at.items()):
            if now < since + SLOW_S:
                self._slow_timer = asyncio.get_running_loop().call_at(since + SLOW_S, self._give_back)
                break
            del self._started_at[key]
            self._slow.add(key)
            self._normal.done(key)
            self._low.done(key)
            group = self._group(key)
            del self._completions[group]
            self._slow_groups.pop(group, None)
            self._slow_groups[group] = now
        while self._slow_groups and next(iter(self._slow_groups.values())) < now - _SLOW_GROUP_S:
            del self._slow_groups[next(iter(self._slow_groups))]
        if self._ready:
            self._wake_one()

    def _enqueue(self, key: K, since: float, *, low_priority: bool) -> None:
        self._ready[key] = since
        (self._low if low_priority and self._low_limit else self._normal).add(key)
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
        """Schedule ``_release`` for the end of the earliest live delay."""
        while self._heap and self._due_times.get(self._heap[0][2]) != self._heap[0][:2]:
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
        # Timers may fire early by the clock's resolution; the next timer is set for the remainder.
        now = self._now()
        while self._heap and self._heap[0][0] <= now:
            due, number, key = heapq.heappop(self._heap)
            if self._due_times.get(key) == (due, number):
                del self._due_times[key]
                self.add(key, low_priority=True)
        self._set_timer()
