"""Time as a dependency: components receive a ``Clock``, so that tests control the time.

``now`` is for times that are written or compared across processes; ``monotonic`` is for durations. Timers use the
event loop's own time.
"""

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """A source of time."""

    def now(self) -> datetime:
        """Return the wall-clock time, timezone-aware, in UTC."""

    def monotonic(self) -> float:
        """Return seconds since an arbitrary time; never decreases."""


_COUNTS_SUSPENSION = hasattr(time, "CLOCK_BOOTTIME")


class SystemClock:
    """The system's clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        # Where the system has it, a clock that also counts the time in which the machine was suspended: the Lease
        # expires meanwhile.
        return time.clock_gettime(time.CLOCK_BOOTTIME) if _COUNTS_SUSPENSION else time.monotonic()
