"""A clock for tests that advances only by ``step``."""

from datetime import UTC, datetime, timedelta

START = datetime(2026, 1, 1, tzinfo=UTC)


class SteppedClock:
    """A ``Clock`` for tests: constant until ``step``."""

    def __init__(self, start: datetime = START) -> None:
        self._start = start
        self._offset = timedelta()

    def now(self) -> datetime:
        return self._start + self._offset

    def monotonic(self) -> float:
        return self._offset.total_seconds()

    def step(self, by: timedelta) -> None:
        """Advance the clock."""
        self._offset += by
