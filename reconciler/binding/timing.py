"""For how long a request has been known and has waited, and its remaining pause: measured, not stored times.

Within a process only the monotonic clock counts, so setting the wall clock changes nothing. Across restarts there is
only the stored status: the Waiting condition's lastTransitionTime, which may be off by the difference of two
machines' clocks, so a restored wait lasts FRESH_CONTACT at least; and nextAttemptTime, limited to the longest
possible pause. Decision 117.
"""

from collections.abc import Callable
from datetime import datetime, timedelta

from reconciler.binding.state import NO_WAIT, RequestState, RequestStates
from reconciler.decide.conditions import PREPARED, condition_of
from reconciler.decide.observed import Times
from reconciler.decide.outcome import Limits, backoff
from shared.api.bindrequest import BindRequest
from shared.api.meta import parse_time
from shared.runtime.clock import Clock

_ZERO = timedelta()
# A plugin may request a longer pause than binding.backoff.max. A pause longer than this is a clock that was set.
MAX_PAUSE = timedelta(hours=1)


class Timing:
    """Times of requests. ``in_contact`` returns for how long all watches have been connected to the API server."""

    def __init__(
        self,
        memories: RequestStates,
        clock: Clock,
        in_contact: Callable[[], timedelta],
        limits: Callable[[], Limits],
    ) -> None:
        self._memories = memories
        self._clock = clock
        self._in_contact = in_contact
        self._limits = limits

    def times(self, request: BindRequest, wait: str | None = None) -> Times:
        """Return the request's times for the wait named ``wait``; None means its present wait."""
        now = self._clock.monotonic()
        memory = self._memory(request)
        known = _since(memory.since, now) if memory is not None else _ZERO
        retry_in = self._retry_in(request, memory, now)
        contact = self._in_contact()
        if memory is None or not memory.wait_name:
            restored = stored_wait(request, self._clock.now())
            return Times(known, restored or _ZERO, contact if restored is None else _ZERO, retry_in)
        if memory.wait_name == NO_WAIT or wait not in (None, memory.wait_name):
            return Times(known, _ZERO, contact, retry_in)
        watched = min(contact, _since(memory.wait_restored_at, now)) if memory.wait_restored_at else contact
        return Times(known, _since(memory.wait_began, now), watched, retry_in)

    def begin_wait(self, request: BindRequest, memory: RequestState, wait: str) -> None:
        """Record that the request waits; no change if it already waits for the same."""
        if memory.wait_name == wait:
            return
        now = self._clock.monotonic()
        restored = stored_wait(request, self._clock.now()) if not memory.wait_name else None
        memory.wait_name = wait
        memory.wait_began = now - (restored or _ZERO).total_seconds()
        memory.wait_restored_at = now if restored is not None else 0.0

    def delay_retry(self, memory: RequestState, pause: timedelta) -> None:
        """Record that the next attempt must not start before ``pause`` is over."""
        memory.retry_at = self._clock.monotonic() + pause.total_seconds()

    def waiting_since(self, memory: RequestState) -> datetime:
        """Return the present wait's start as wall-clock time, for the status."""
        now = self._clock.now()
        return now - _since(memory.wait_began, self._clock.monotonic()) if memory.wait_name else now

    def _memory(self, request: BindRequest) -> RequestState | None:
        memory = self._memories.get(request.key)
        return memory if memory is not None and memory.uid == request.uid else None

    def _retry_in(self, request: BindRequest, memory: RequestState | None, now: float) -> timedelta:
        if memory is not None and memory.retry_at is not None:
            return max(_ZERO, timedelta(seconds=memory.retry_at - now))
        limits = self._limits()
        if request.next_attempt is not None:
            return stored_pause(request, self._clock.now(), limits.backoff_max)
        # Another project's CRD does not store nextAttemptTime.
        return backoff(request.failed_attempts, limits) if request.failed_attempts else _ZERO


def stored_wait(request: BindRequest, now: datetime) -> timedelta | None:
    """Return for how long the stored status has reported a wait; None if it reports none."""
    stored = condition_of(request, PREPARED)
    since = parse_time(stored.get("lastTransitionTime"))
    if stored.get("status") != "False" or stored.get("reason") != "Waiting" or since is None:
        return None
    return max(_ZERO, now - since)


def stored_pause(request: BindRequest, now: datetime, backoff_max: timedelta) -> timedelta:
    """Return the rest of the pause in the stored status, at most the longest pause that can have been meant.

    ``lastAttemptTime`` and ``nextAttemptTime`` come from the same clock: their difference is the intended pause,
    however wrong that clock was.
    """
    at = request.next_attempt
    if at is None:
        return _ZERO
    last = parse_time(request.status.get("lastAttemptTime"))
    meant = min(at - last, MAX_PAUSE) if last is not None else _ZERO
    return max(_ZERO, min(at - now, max(backoff_max, meant)))


def _since(moment: float, now: float) -> timedelta:
    return timedelta(seconds=max(0.0, now - moment))
