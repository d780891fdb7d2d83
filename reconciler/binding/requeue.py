"""When a key is looked at next, and how long to leave the API server alone while it is in trouble.

The API server's own trouble is nobody's fault: its backoff is in memory only, it is never written into a request and
costs it no attempt. A wait of our own ends when something happens that may change the answer; one that the API server
has asked for (Retry-After) does not, or the echo of our last write would end it at once.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from shared.api.meta import ObjectKey
from shared.runtime.backoff import Backoff
from shared.runtime.clock import Clock

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

    def __init__(self, troubled: Callable[[ObjectKey, str], None], clock: Clock) -> None:
        self._troubled = troubled
        self._clock = clock
        self._backoff: Backoff[ObjectKey] = Backoff(BASE, MAX)
        # By the monotonic clock, when the API server may be called again for a key.
        self._asked: dict[ObjectKey, float] = {}

    def __len__(self) -> int:
        return len(self._backoff)

    def again(self, key: ObjectKey, why: str, at_least: timedelta | None = None) -> Again:
        """Note that a pass has come to nothing; ``at_least`` is what the API server asked for."""
        if at_least is not None:
            self._asked[key] = self._clock.monotonic() + at_least.total_seconds()
        delay = self._backoff.failed(key, at_least)
        level = logging.WARNING if self._backoff.failures(key) > QUIET_FAILURES else logging.DEBUG
        self._troubled(key, why)
        fields = {"bindRequest": str(key), "why": why, "again_s": round(delay.total_seconds(), 3)}
        log.log(level, "trouble with the API server, trying again", extra=fields)
        return Again(max(delay, timedelta(milliseconds=1)), troubled=True)

    def held(self, key: ObjectKey) -> Again | None:
        """Return when to come back, if the API server has asked not to be called for the key before."""
        left_s = self._asked.get(key, 0.0) - self._clock.monotonic()
        return Again(timedelta(seconds=left_s), troubled=True) if left_s > 0 else None

    def unfinished(self, key: ObjectKey, at_least: timedelta) -> Again:
        """Come back to what is not undone yet, less and less often."""
        return Again(max(at_least, self._backoff.failed(key)), troubled=True)

    def clear(self) -> None:
        """Forget all of it."""
        self._backoff = Backoff(BASE, MAX)
        self._asked.clear()

    def over(self, key: ObjectKey) -> None:
        """A pass went through."""
        self._backoff.succeeded(key)
        self._asked.pop(key, None)
