"""A client-side rate limit: slots at even intervals, in the order of the calls."""

import asyncio


class Limiter:
    """At most ``qps`` slots a second, evenly spaced. Raises ValueError for a rate that is not positive."""

    def __init__(self, qps: float) -> None:
        if qps <= 0:
            raise ValueError("qps must be positive")
        self._interval = 1 / qps
        self._next = float("-inf")

    def reserve(self) -> float:
        """Reserve the next slot; returns the seconds until it, 0 for now. The caller must use it."""
        now = asyncio.get_running_loop().time()
        slot = max(self._next, now)
        self._next = slot + self._interval
        return slot - now
