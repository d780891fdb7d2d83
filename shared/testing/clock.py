"""A clock that moves only when told to."""

from datetime import UTC, datetime, timedelta

START = datetime(2026, 1, 1, tzinfo=UTC)


class SteppedClock:
    """A ``Clock`` for tests: stands still until ``step``."""

    def __init__(self, start: datetime = START) -> None:
        self._start = start
        self._passed = timedelta()

    def now(self) -> datetime:
        return self._start + self._passed

    def monotonic(self) -> float:
        return self._passed.total_seconds()

    def step(self, by: timedelta) -> None:
        """Let time pass."""
        self._passed += by
