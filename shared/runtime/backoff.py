"""How long to wait after a failure: exponential, with full jitter, so that a crowd of failures spreads out."""

import random
from collections.abc import Callable, Hashable
from datetime import timedelta
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

# 2**63 times any base exceeds any cap; more would only overflow.
_MAX_DOUBLINGS = 63


def full_jitter(attempt: int, base: timedelta, cap: timedelta, random: float) -> timedelta:
    """Return the wait after the ``attempt``-th failure in a row (1 is the first), given a random number in [0, 1).

    Anything from nothing up to ``base`` doubled with every further failure, at most ``cap``.
    """
    doublings = min(max(attempt, 1) - 1, _MAX_DOUBLINGS)
    bound = min(cap.total_seconds(), base.total_seconds() * 2**doublings)
    return timedelta(seconds=bound * random)


class Backoff(Generic[K]):
    """Counts failures in a row by key, in memory, until the key succeeds.

    There is no limit on the number of keys: a key whose count is dropped starts again with the shortest wait, and if
    many fail in turn none of them would ever back off. The caller reports the success or the end of every key that
    has failed, so that the counts are as many as there are failing keys; each takes about 200 bytes.
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

    def failed(self, key: K, at_least: timedelta | None = None) -> timedelta:
        """Note a failure and return how long to wait, never less than what the other side asked for.

        A wait that was asked for is spread as well, by what full jitter adds to it.
        """
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        jitter = full_jitter(failures, self._base, self._cap, self._random())
        return jitter if at_least is None else at_least + min(jitter, at_least)

    def failures(self, key: K) -> int:
        """Return how many failures in a row are known."""
        return self._failures.get(key, 0)

    def succeeded(self, key: K) -> None:
        """Forget the key."""
        self._failures.pop(key, None)
