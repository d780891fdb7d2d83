"""When a key is processed next, and which of its transient failures are consecutive.

The backoff of transient failures is in memory only. A watch event that may change the result ends it early; it does
not end a delay that the API server requested (Retry-After). Thousands of requests may fail at the same time, so
failures are logged in one line for all of them.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from reconciler.decide.transient import QUIET_FAILURES, REPORT_AFTER_S, Streak, extend
from shared.api.meta import ObjectKey
from shared.kube.availability import Availability
from shared.runtime.backoff import ItemBackoff
from shared.runtime.clock import Clock

log = logging.getLogger(__name__)

# Short at first: most failures are over within a second.
BASE, MAX = timedelta(milliseconds=200), timedelta(seconds=30)
# Between two log lines about failing requests.
LOG_EVERY_S = 30.0
_SOON = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Result:
    """Result of a reconcile: process the key again after ``requeue_after``; if None, only when an event requires it.

    ``keeps_failures``: the reconcile failed, or made no call that could fail; the key's streak of failures is kept.
    ``retry_after``: the API server's Retry-After; until it is over, no event returns the key.
    """

    requeue_after: timedelta | None
    keeps_failures: bool = False
    retry_after: timedelta | None = None


DONE = Result(None)
REQUEUE = Result(timedelta(), keeps_failures=True)


class TransientFailures:
    """Consecutive transient failures by key, and their backoff. ``on_failure`` is called for each failure."""

    def __init__(
        self, on_failure: Callable[[ObjectKey, str], None], availability: Availability, clock: Clock
    ) -> None:
        self._on_failure = on_failure
        self._availability = availability
        self._clock = clock
        self._backoff: ItemBackoff[ObjectKey] = ItemBackoff(BASE, MAX)
        self._streaks: dict[ObjectKey, Streak] = {}
        self._failures_to_log = 0
        self._log_at = float("-inf")

    def __len__(self) -> int:
        return len(self._backoff)

    def note(self, key: ObjectKey, retry_after: timedelta | None) -> Streak:
        """Add a failure to the key's streak and return the streak; called once for each failed reconcile."""
        streak = extend(
            self._streaks.get(key),
            self._clock.monotonic(),
            self._availability.last_success,
            is_deferred=retry_after is not None,
        )
        self._streaks[key] = streak
        return streak

    def requeue(self, key: ObjectKey, why: str, at_least: timedelta | None = None) -> Result:
        """Return the delay after a failed reconcile. ``at_least``: the API server's Retry-After."""
        now = self._clock.monotonic()
        delay = self._backoff.next_delay(key, at_least)
        streak = self._streaks.get(key)
        if streak is not None and not streak.is_own and at_least is None:
            # The failure is reported after REPORT_AFTER_S; the longest backoff must not be added to that.
            left = timedelta(seconds=streak.first + REPORT_AFTER_S - now)
            delay = min(delay, max(left, BASE))
        self._on_failure(key, why)
        self._log(key, why, delay, now)
        return Result(max(delay, _SOON), keeps_failures=True, retry_after=at_least)

    def requeue_rollback(self, key: ObjectKey, at_least: timedelta) -> Result:
        """Return the delay before an incomplete rollback continues; it increases with each failure."""
        return Result(max(at_least, self._backoff.next_delay(key)), keeps_failures=True)

    def clear(self) -> None:
        """Drop all streaks and backoffs: at the end of a term, or of an outage, which no request has caused."""
        self._streaks.clear()
        self._backoff = ItemBackoff(BASE, MAX)

    def forget(self, key: ObjectKey) -> None:
        """Drop the key's failures after a successful reconcile."""
        self._backoff.reset(key)
        self._streaks.pop(key, None)

    def _log(self, key: ObjectKey, why: str, delay: timedelta, now: float) -> None:
        fields = {"bindRequest": str(key), "why": why, "again_s": round(delay.total_seconds(), 3)}
        log.debug("a reconcile has failed", extra=fields)
        self._failures_to_log += 1
        if self._backoff.count(key) > QUIET_FAILURES and now >= self._log_at:
            self._log_at = now + LOG_EVERY_S
            counts = {"failures": self._failures_to_log, "requests": len(self._backoff)}
            log.warning("reconciles fail, the latest is an example", extra=counts | fields)
            self._failures_to_log = 0
