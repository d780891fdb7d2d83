"""When a key is looked at next, and how long to leave the API server alone while it is in trouble.

The API server's own trouble is nobody's fault: its backoff is in memory only, it is never written into a request and
costs it no attempt.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from shared.api.meta import ObjectKey
from shared.runtime.backoff import Backoff

log = logging.getLogger(__name__)

# Quick at first, for most of it is a moment's.
BASE, MAX = timedelta(milliseconds=200), timedelta(seconds=30)
# A few failures in a row are no news.
QUIET_FAILURES = 3


@dataclass(frozen=True, slots=True)
class Again:
    """Come back after ``delay``; never, if None, until something changes. ``troubled``: the pass came to nothing."""

    delay: timedelta | None
    troubled: bool = False


DONE = Again(None)
AT_ONCE = Again(timedelta())


class Trouble:
    """Failures in a row by key, and the waits they ask for. ``troubled`` is told of each."""

    def __init__(self, troubled: Callable[[ObjectKey, str], None]) -> None:
        self._troubled = troubled
        self._backoff: Backoff[ObjectKey] = Backoff(BASE, MAX)

    def __len__(self) -> int:
        return len(self._backoff)

    def again(self, key: ObjectKey, why: str, at_least: timedelta | None = None) -> Again:
        """Note that a pass has come to nothing; ``at_least`` is what the API server asked for."""
        delay = self._backoff.failed(key, at_least)
        level = logging.WARNING if self._backoff.failures(key) > QUIET_FAILURES else logging.DEBUG
        self._troubled(key, why)
        fields = {"bindRequest": str(key), "why": why, "again_s": round(delay.total_seconds(), 3)}
        log.log(level, "trouble with the API server, trying again", extra=fields)
        return Again(max(delay, timedelta(milliseconds=1)), troubled=True)

    def unfinished(self, key: ObjectKey, at_least: timedelta) -> Again:
        """Come back to what is not undone yet, less and less often."""
        return Again(max(at_least, self._backoff.failed(key)), troubled=True)

    def clear(self) -> None:
        """Forget all of it."""
        self._backoff = Backoff(BASE, MAX)

    def over(self, key: ObjectKey) -> None:
        """A pass went through."""
        self._backoff.succeeded(key)
