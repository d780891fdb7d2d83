"""The delay after a failure: exponential with full jitter, so that simultaneous failures spread out."""

import random
from collections.abc import Callable, Hashable
from datetime import timedelta
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

# 2**63 times any base exceeds any cap; more would only overflow.
_MAX_DOUBLINGS = 63


def full_jitter(attempt: int, base: timedelta, cap: timedelta, random: float) -> timedelta:
    """Return the delay after the ``attempt``-th consecutive failure (1 is the first), for a random number in [0, 1).

    It is uniform between zero and ``base`` doubled with every further failure, at most ``cap``.
    """
    doublings = min(max(attempt, 1) - 1, _MAX_DOUBLINGS)
    bound = min(cap.total_seconds(), base.total_seconds() * 2**doublings)
    return timedelta(seconds=bound * random)


class ItemBackoff(Generic[K]):
    """Counts consecutive failures by key, in memory, until the key succeeds.

    The number of keys is not limited: a key whose count is evicted would start again with the shortest delay, and if
    many keys fail in turn, none would ever back off. The caller reports the success or the removal of every key that
    failed, so there are as many counts as failing keys; each takes about 200 bytes.
    """

    def __init__(
        self,
        base: timedelta,
        cap: timedelta,
        *,
        random: Callable[[], float] = random.random,
    ) -> None:
        self._base = base
        self._cap = cap
        self._random = random
        self._failures: dict[K, int] = {}

    def __len__(self) -> int:
        return len(self._failures)

    def next_delay(self, key: K, at_least: timedelta | None = None) -> timedelta:
        """Record a failure and return the delay, at least ``at_least`` (a Retry-After, for example).

        Jitter of at most ``at_least`` is added to it.
        """
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        jitter = full_jitter(failures, self._base, self._cap, self._random())
        return jitter if at_least is None else at_least + min(jitter, at_least)

    def count(self, key: K) -> int:
        """Return the number of consecutive failures."""
        return self._failures.get(key, 0)

    def reset(self, key: K) -> None:
        """Drop the key's count."""
        self._failures.pop(key, None)

    def clear(self) -> None:
        """Drop all counts."""
        self._failures.clear()


class Backoff:
    """The backoff of a single activity."""

    def __init__(self, base: timedelta, cap: timedelta, random: Callable[[], float] = random.random) -> None:
        self._items: ItemBackoff[None] = ItemBackoff(base, cap, random=random)

    def next_delay(self, at_least: timedelta | None = None) -> timedelta:
        """Record a failure and return the delay, at least ``at_least`` as for ItemBackoff."""
        return self._items.next_delay(None, at_least)

    @property
    def count(self) -> int:
        """The number of consecutive failures."""
        return self._items.count(None)

    def reset(self) -> None:
        """Report a success."""
        self._items.reset(None)
