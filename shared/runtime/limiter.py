"""A limit of our own on how often something is done: a token bucket.

Callers are served in the order in which they ask. The wait is reserved at once, so that a crowd spreads itself
evenly; a caller that is cancelled gives its place back.
"""

import asyncio


class Limiter:
    """At most ``qps`` a second on average, ``burst`` at once; a ``qps`` of 0 is no limit."""

    def __init__(self, qps: float, burst: int = 1) -> None:
        if qps < 0 or burst < 1:
            raise ValueError("qps must not be negative and burst at least 1")
        self._interval = 1 / qps if qps else 0.0
        self._slack = self._interval * (burst - 1)
        # When the next caller may go, had nobody saved up any burst.
        self._next = float("-inf")

    def reserve(self) -> float:
        """Take the next turn and return in how many seconds it comes; 0 for now. Whoever takes one uses it."""
        if not self._interval:
            return 0.0
        now = asyncio.get_running_loop().time()
        turn = max(self._next, now - self._slack)
        self._next = turn + self._interval
        return max(0.0, turn - now)

    async def wait(self) -> float:
        """Wait for one's turn; returns how many seconds that took."""
        delay = self.reserve()
        if not delay:
            return 0.0
        try:
            await asyncio.sleep(delay)
        except asyncio.CancelledError:
            self._next -= self._interval
            raise
        return delay
