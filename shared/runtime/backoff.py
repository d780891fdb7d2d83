"""How long to wait after a failure: exponential, with full jitter, so that a crowd of failures spreads out."""

import random
from collections import OrderedDict
from collections.abc import Callable, Hashable
from datetime import timedelta
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

# 2**63 times any base exceeds any cap; more would only overflow.
_MAX_DOUBLINGS = 63
# A key takes about 200 bytes; 20,000 failing at once is an outage, and forgetting the longest unseen is harmless.
_CAPACITY = 20_000


def full_jitter(attempt: int, base: timedelta, cap: timedelta, random: float) -> timedelta:
    """Return the wait after the ``attempt``-th failure in a row (1 is the first), given a random number in [0, 1).

    Anything from nothing up to ``base`` doubled with every further failure, at most ``cap``.
    """
    doublings = min(max(attempt, 1) - 1, _MAX_DOUBLINGS)
    bound = min(cap.total_seconds(), base.total_seconds() * 2**doublings)
    return timedelta(seconds=bound * random)


class Backoff(Generic[K]):
    """Counts failures in a row by key, in memory. A success forgets the key; when full, the longest unseen goes."""

    def __init__(
        self,
        base: timedelta,
        cap: timedelta,
        *,
        random: Callable[[], float] = random.random,
        capacity: int = _CAPACITY,
    ) -> None:
        self._base = base
        self._cap = cap
        self._random = random
        self._capacity = capacity
        self._failures: OrderedDict[K, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._failures)

    def failed(self, key: K, at_least: timedelta | None = None) -> timedelta:
        """Note a failure and return how long to wait, never less than what the other side asked for.

        A wait that was asked for is spread as well, by what full jitter adds to it.
        """
        failures = self._failures.pop(key, 0) + 1
        self._failures[key] = failures
        if len(self._failures) > self._capacity:
            self._failures.popitem(last=False)
        jitter = full_jitter(failures, self._base, self._cap, self._random())
        return jitter if at_least is None else at_least + min(jitter, at_least)

    def failures(self, key: K) -> int:
        """Return how many failures in a row are known."""
        return self._failures.get(key, 0)

    def succeeded(self, key: K) -> None:
        """Forget the key."""
        self._failures.pop(key, None)
