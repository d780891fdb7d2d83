"""A client-side rate limit: a token bucket.

Callers are served in the order of their calls. The wait is reserved immediately, so simultaneous callers are spread
evenly; a cancelled caller returns its reservation.
"""

import asyncio


class Limiter:
    """At most ``qps`` a second on average, with bursts of ``burst``; a ``qps`` of 0 means no limit."""

    def __init__(self, qps: float, burst: int = 1) -> None:
        if qps < 0 or burst < 1:
            raise ValueError("qps must not be negative and burst at least 1")
        self._interval = 1 / qps if qps else 0.0
        self._slack = self._interval * (burst - 1)
        # Time of the next reservation, not counting the burst.
        self._next = float("-inf")

    def reserve(self) -> float:
        """Reserve the next slot; returns the seconds until it, 0 for now. The caller must use it."""
        if not self._interval:
            return 0.0
        now = asyncio.get_running_loop().time()
        turn = max(self._next, now - self._slack)
        self._next = turn + self._interval
        return max(0.0, turn - now)

    async def wait(self) -> float:
        """Wait for the next slot; returns the seconds waited."""
        delay = self.reserve()
        if not delay:
            return 0.0
        try:
            await asyncio.sleep(delay)
        except asyncio.CancelledError:
            self._next -= self._interval
            raise
        return delay
