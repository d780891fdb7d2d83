"""A rate limit that groups share: turns at even intervals, in order within a group, the groups one after another.

A key that asks for its turn either has it, or learns when to ask again; it need not. Nothing runs here: turns are
given when someone asks. A turn that nobody takes lapses, so that keys which are gone keep nothing.
"""

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

# A turn that was not taken for this long is void.
_LAPSE_S = 60.0


class Turns(Generic[K]):
    """At most ``qps`` turns a second. Raises ValueError for a rate that is not positive. Times are monotonic."""

    def __init__(self, qps: float) -> None:
        if qps <= 0:
            raise ValueError("qps must be positive")
        self._interval = 1 / qps
        self._next_at = float("-inf")
        # The waiting keys with their numbers in the group, by group; the first group is the next.
        self._waiting: dict[Hashable, dict[K, int]] = {}
        self._offers: dict[K, float] = {}  # turns that were given and not taken, oldest first

    def __len__(self) -> int:
        return sum(len(keys) for keys in self._waiting.values()) + len(self._offers)

    def reserve(self, key: K, group: Hashable, now: float) -> float:
        """Return 0 if it is the key's turn, which it must use then; else in how many seconds to ask again."""
        self._give(now)
        if key not in self._offers:
            if not self._waiting:
                self._next_at = max(self._next_at, now)  # time in which nobody has waited gives no turns
            keys = self._waiting.setdefault(group, {})
            if key not in keys:
                keys[key] = next(reversed(keys.values()), -1) + 1
            self._give(now)
        if self._offers.pop(key, None) is not None:
            return 0.0
        return self._next_at - now + self._turns_before(key, group) * self._interval

    def discard(self, key: K, group: Hashable) -> None:
        """Forget a key that asks no more, if it is present."""
        self._offers.pop(key, None)
        keys = self._waiting.get(group)
        if keys is not None and keys.pop(key, None) is not None and not keys:
            del self._waiting[group]

    def clear(self) -> None:
        """Forget all keys."""
        self._waiting.clear()
        self._offers.clear()

    def _give(self, now: float) -> None:
        while self._offers and now - next(iter(self._offers.values())) > _LAPSE_S:
            del self._offers[next(iter(self._offers))]
        while self._waiting and self._next_at <= now:
            group = next(iter(self._waiting))
            keys = self._waiting.pop(group)
            key = next(iter(keys))
            del keys[key]
            if keys:
                self._waiting[group] = keys
            self._offers[key] = now
            self._next_at += self._interval

    def _turns_before(self, key: K, group: Hashable) -> int:
        """Return how many turns are given before the key's, if no other key asks."""
        own_keys = self._waiting[group]
        ahead = own_keys[key] - next(iter(own_keys.values()))
        before, is_passed = ahead, False
        for other, keys in self._waiting.items():
            if other == group:
                is_passed = True
            else:
                before += min(len(keys), ahead if is_passed else ahead + 1)
        return before
