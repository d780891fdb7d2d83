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


class SystemClock:
    """The system's clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()
