"""A clock for tests that advances only by ``step``."""

from datetime import UTC, datetime, timedelta

START = datetime(2026, 1, 1, tzinfo=UTC)


class SteppedClock:
    """A ``Clock`` for tests: constant until ``step``."""

    def __init__(self, start: datetime = START) -> None:
        self._start = start
        self._elapsed = timedelta()

    def now(self) -> datetime:
        return self._start + self._elapsed

    def monotonic(self) -> float:
        return self._elapsed.total_seconds()

    def step(self, by: timedelta) -> None:
        """Advance the clock."""
        self._elapsed += by
