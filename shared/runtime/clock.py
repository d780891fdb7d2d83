"""Time as an argument: whoever needs it is given a ``Clock``, so that tests decide what time it is.

``now`` is for what is written and compared across processes; ``monotonic`` measures how long something took. Timers
use the event loop's own time.
"""

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """A source of time."""

    def now(self) -> datetime:
        """Return the wall-clock time, aware, in UTC."""

    def monotonic(self) -> float:
        """Return seconds since an arbitrary moment; never goes backwards."""


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()
