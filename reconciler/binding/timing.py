"""For how long a request has been known and has waited, and its remaining pause: measured, not stored times.

Within a process only the monotonic clock counts, so setting the wall clock changes nothing. Across restarts there is
only the stored status: the Waiting condition's lastTransitionTime, which may be off by the difference of two
machines' clocks, so a restored wait lasts FRESH_CONTACT at least; and nextAttemptTime, limited to the longest
possible pause. Decision 117.
"""

from collections.abc import Callable
from datetime import datetime, timedelta

from reconciler.binding.state import NO_WAIT, RequestState, RequestStates
from reconciler.decide.observed import PREPARED, Times, condition_of
from reconciler.decide.outcome import backoff
from shared.api.bindrequest import BindRequest
from shared.api.meta import parse_time
from shared.framework.config import Binding
from shared.runtime.clock import Clock

_ZERO = timedelta()
# A plugin may request a longer pause than binding.backoff.max. A pause longer than this is a clock that was set.
MAX_PAUSE = timedelta(hours=1)


class Timing:
    """Times of requests. ``contact`` returns for how long all watches have been connected to the API server."""

    def __init__(
        self,
        states: RequestStates,
        clock: Clock,
        contact: Callable[[], timedelta],
        limits: Binding,
        jitter: Callable[[], float],
    ) -> None:
        self._states = states
        self._clock = clock
        self._contact = contact
        self._limits = limits
        self._jitter = jitter

    def times(self, request: BindRequest) -> Times:
        """Return the request's times, with those of its present wait."""
        now, contact = self._clock.monotonic(), self._contact()
        state = self._states.get(request.key, request.uid)
        age = _since(state.since, now) if state is not None else _ZERO
        retry_in = self._retry_in(request, state, now)
        if state is None or not state.wait.cause:
            restored_wait = stored_wait(request, self._clock.now())
            watch_time = contact if restored_wait is None else _ZERO
            return Times(age, restored_wait or _ZERO, watch_time, retry_in, contact)
        wait = state.wait
        if wait.cause == NO_WAIT:
            return Times(age, _ZERO, contact, retry_in, contact)
        watch_time = min(contact, _since(wait.restored_at, now)) if wait.restored_at else contact
        return Times(age, _since(wait.began, now), watch_time, retry_in, contact, wait.cause)

    def begin_wait(self, request: BindRequest, state: RequestState, cause: str) -> None:
        """Record that the request waits; no change if it already waits for the same."""
        wait = state.wait
        if wait.cause == cause:
            return
        now = self._clock.monotonic()
        restored_wait = stored_wait(request, self._clock.now()) if not wait.cause else None
        began = now - (restored_wait or _ZERO).total_seconds()
        wait.begin(cause, began, restored_at=now if restored_wait is not None else 0.0)

    def delay_retry(self, state: RequestState, pause: timedelta) -> None:
        """Record that the next attempt must not start before ``pause`` is over."""
        state.attempt.delay_until(self._clock.monotonic() + pause.total_seconds())

    def waiting_since(self, state: RequestState) -> datetime:
        """Return the present wait's start as wall-clock time, for the status."""
        return self._clock.now() - _since(state.wait.began, self._clock.monotonic())

    def _retry_in(self, request: BindRequest, state: RequestState | None, now: float) -> timedelta:
        retry_at = state.attempt.retry_at if state is not None else None
        if retry_at is not None:
            return max(_ZERO, timedelta(seconds=retry_at - now))
        if request.next_attempt is not None:
            return stored_pause(request, self._clock.now(), self._limits.backoff.max)
        # Another project's CRD does not store nextAttemptTime.
        failures = request.failed_attempts
        return backoff(failures, self._limits, self._jitter()) if failures else _ZERO


def stored_wait(request: BindRequest, now: datetime) -> timedelta | None:
    """Return for how long the stored status has reported a wait; None if it reports none."""
    condition = condition_of(request, PREPARED)
    since = parse_time(condition.get("lastTransitionTime"))
    if condition.get("status") != "False" or condition.get("reason") != "Waiting" or since is None:
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
    pause = min(at - last, MAX_PAUSE) if last is not None else _ZERO
    return max(_ZERO, min(at - now, max(backoff_max, pause)))


def _since(moment: float, now: float) -> timedelta:
    return timedelta(seconds=max(0.0, now - moment))
