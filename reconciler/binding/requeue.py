"""When a key is processed next, and which of its transient failures are in a row.

The backoff of transient failures is in memory only. A wait of our own ends when something happens that may change the
result; one that the API server has asked for (Retry-After) does not, or the echo of our last write would end it
immediately. Failures are logged in one line for all requests: thousands of requests may fail at the same time.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from reconciler.decide.transient import QUIET_FAILURES, REPORT_AFTER_S, Streak, extended
from shared.api.meta import ObjectKey
from shared.kube.availability import Availability
from shared.runtime.backoff import Backoff
from shared.runtime.clock import Clock

log = logging.getLogger(__name__)

# Quick at first, for most failures are over within a second.
BASE, MAX = timedelta(milliseconds=200), timedelta(seconds=30)
# Between two lines of the log about failing requests.
LOG_EVERY_S = 30.0
_SOON = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Again:
    """Process the key again after ``delay``; if None, only when something changes.

    ``inconclusive``: the pass has failed, or has made no call that could; its failures in a row continue.
    """

    delay: timedelta | None
    inconclusive: bool = False


DONE = Again(None)
AT_ONCE = Again(timedelta())


class TransientFailures:
    """Failures in a row by key, and the delays they cause. ``troubled`` is called with each."""

    def __init__(self, troubled: Callable[[ObjectKey, str], None], availability: Availability, clock: Clock) -> None:
        self._troubled = troubled
        self._availability = availability
        self._clock = clock
        self._backoff: Backoff[ObjectKey] = Backoff(BASE, MAX)
        self._streaks: dict[ObjectKey, Streak] = {}
        # Until when the API server has asked not to be called for a key.
        self._deferred: dict[ObjectKey, float] = {}
        self._unlogged = 0
        self._log_at = float("-inf")

    def __len__(self) -> int:
        return len(self._backoff)

    def note(self, key: ObjectKey, retry_after: timedelta | None) -> Streak:
        """Add one failure to those in a row; once for each pass that fails."""
        streak = extended(
            self._streaks.get(key),
            self._clock.monotonic(),
            self._availability.last_success,
            deferred=retry_after is not None,
        )
        self._streaks[key] = streak
        return streak

    def again(self, key: ObjectKey, why: str, at_least: timedelta | None = None) -> Again:
        """Return when to process a key again whose pass has failed; ``at_least`` is what the API server asks for."""
        now = self._clock.monotonic()
        if at_least is not None:
            self._deferred[key] = now + at_least.total_seconds()
        delay = self._backoff.failed(key, at_least)
        streak = self._streaks.get(key)
        if streak is not None and not streak.own and at_least is None:
            # The report after a minute is not to wait for the longest delay on top.
            left = timedelta(seconds=streak.first + REPORT_AFTER_S - now)
            delay = min(delay, max(left, BASE))
        self._troubled(key, why)
        self._log(key, why, delay, now)
        return Again(max(delay, _SOON), inconclusive=True)

    def held(self, key: ObjectKey) -> Again | None:
        """Return when to process the key, if the API server has asked not to be called for it before."""
        left_s = self._deferred.get(key, 0.0) - self._clock.monotonic()
        return Again(timedelta(seconds=left_s), inconclusive=True) if left_s > 0 else None

    def unfinished(self, key: ObjectKey, at_least: timedelta) -> Again:
        """Return when to continue what is not undone yet, less and less often."""
        return Again(max(at_least, self._backoff.failed(key)), inconclusive=True)

    def recovered(self) -> None:
        """The API server is available again: what has failed meanwhile was no request's own failure."""
        self._streaks.clear()
        self._backoff = Backoff(BASE, MAX)

    def clear(self) -> None:
        """Forget everything."""
        self.recovered()
        self._deferred.clear()

    def over(self, key: ObjectKey) -> None:
        """A pass has succeeded: forget the key's failures."""
        self._backoff.succeeded(key)
        self._streaks.pop(key, None)
        self._deferred.pop(key, None)

    def _log(self, key: ObjectKey, why: str, delay: timedelta, now: float) -> None:
        fields = {"bindRequest": str(key), "why": why, "again_s": round(delay.total_seconds(), 3)}
        log.debug("a pass has failed", extra=fields)
        self._unlogged += 1
        if self._backoff.failures(key) > QUIET_FAILURES and now >= self._log_at:
            self._log_at = now + LOG_EVERY_S
            counts = {"failures": self._unlogged, "requests": len(self._backoff)}
            log.warning("passes fail, the latest is given as an example", extra=counts | fields)
            self._unlogged = 0
