"""Classifies how an attempt ended: the resulting status, event, pod condition and requeue.

Pure, one exhaustive ``match``. A final outcome is returned as the decision that it equals (``Finish``, ``Fail``), so
that success and failure have one code path each. Decisions 1 and 119.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, assert_never

from reconciler.decide.decide import Fail, Finish, wait_left
from reconciler.decide.observed import Times
from reconciler.decide.status import retrying_block, waiting_block
from shared.api import names
from shared.api.bindrequest import BindRequest
from shared.api.meta import Object, ObjectRef
from shared.framework.status import Code, Reason, Status, Suggestion
from shared.runtime.backoff import full_jitter

# Suggestions after which a retry on the same node cannot succeed.
_RETURNED = (Suggestion.RESCHEDULE_ELSEWHERE, Suggestion.DELETE_POD)
# A shorter wait causes no write and no event.
QUIET_WAIT = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class Limits:
    """The settings that outcomes depend on. ``jitter`` is a random number in [0, 1), supplied by the I/O layer."""

    backoff_limit: int
    backoff_base: timedelta
    backoff_max: timedelta
    wait_timeout: timedelta
    jitter: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended, and when it ``started``."""

    status: Status
    started: datetime


@dataclass(frozen=True, slots=True)
class Event:
    """The event for the pod's owner."""

    type: Literal["Normal", "Warning"]
    reason: str
    note: str


@dataclass(frozen=True, slots=True)
class PodBound:
    """The PodBound condition: False after a failure, True after the bind that follows it."""

    status: Literal["True", "False"]
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class RetryAt:
    """Report the failure and run another attempt after ``pause``."""

    pause: timedelta
    status: Mapping[str, Any]
    event: Event
    condition: PodBound


@dataclass(frozen=True, slots=True)
class Waiting:
    """Blocked on other objects. Written and reported only once the wait exceeds QUIET_WAIT."""

    on: tuple[ObjectRef, ...]
    left: timedelta  # until the wait expires
    why: str
    status: Mapping[str, Any]
    event: Event
    poll: timedelta | None = None  # requeue at this interval, whatever the watches report


@dataclass(frozen=True, slots=True)
class TransientFailure:
    """A transient failure of the API server: backoff in memory, no write, no attempt counted."""

    why: str
    after: timedelta | None


@dataclass(frozen=True, slots=True)
class RequeueNow:
    """The attempt was withdrawn: decide again immediately."""


OutcomeAction = Finish | Fail | RetryAt | Waiting | TransientFailure | RequeueNow


def settle(
    request: BindRequest, outcome: Outcome, limits: Limits, times: Times, now: datetime, since: datetime
) -> OutcomeAction:
    """Return what an attempt's outcome means for the request.

    ``times``: for how long it has waited, if it waits. ``now`` and ``since``, the wait's start, are only written.
    """
    status = outcome.status
    match status.code:
        case Code.OK:
            return Finish()
        case Code.WAIT:
            return _wait(request, outcome, limits.wait_timeout, times, now, since)
        case Code.RETRY:
            return _retry(request, outcome, limits, now)
        case Code.FATAL:
            return Fail(status.reason or Reason.REJECTED, _by(status), status.suggestion)
        case Code.TRANSIENT:
            return TransientFailure(_by(status), status.retry_after)
        case Code.CANCELLED:
            return RequeueNow()
        case Code.SKIP:
            # The Runner returns no SKIP; one that arrives here must not count as success.
            return Fail(Reason.REJECTED, f"{_by(status)}: SKIP is no end of an attempt")
        case _:
            assert_never(status.code)


def _retry(request: BindRequest, outcome: Outcome, limits: Limits, now: datetime) -> RetryAt | Fail:
    status = outcome.status
    failed = request.failed_attempts + 1
    limit = _limit(request, status, limits.backoff_limit)
    if failed > limit:
        word = "attempt" if failed == 1 else "attempts"
        why = f"gave up after {failed} {word}, the last: {_by(status)}"
        # What has failed repeatedly here may succeed on another node.
        return Fail(Reason.BACKOFF_LIMIT_EXCEEDED, why, status.suggestion or Suggestion.RESCHEDULE_ELSEWHERE)
    pause = backoff(failed, limits)
    if status.retry_after is not None:
        pause = max(pause, status.retry_after)
    why = f"attempt {failed} of {limit + 1} failed: {_by(status)}"
    return RetryAt(
        pause,
        retrying_block(request, failed, why, outcome.started, now, now + pause),
        Event("Warning", "BindingRetry", f"{why}; retry in {pause.total_seconds():.1f} s"),
        PodBound("False", "BindingRetry", why),
    )


def _wait(
    request: BindRequest, outcome: Outcome, timeout: timedelta, times: Times, now: datetime, since: datetime
) -> Waiting | Fail:
    status = outcome.status
    on = ", ".join(str(ref) for ref in status.wake_on)
    why = f"{_by(status)} (waiting for {on})" if on else _by(status)
    left = wait_left(status.timeout or timeout, times)
    if left <= timedelta():
        # Unless the plugin suggests otherwise, the node is not known to be at fault: the awaited change may still
        # happen.
        why = f"waited for {times.waited.total_seconds():.0f} s: {why}"
        return Fail(Reason.WAIT_TIMEOUT, why, status.suggestion or Suggestion.RETRY_SAME_NODE)
    block = waiting_block(request, why, since, now)
    return Waiting(status.wake_on, left, why, block, Event("Normal", "BindingWaiting", why), status.retry_after)


def success_event(request: BindRequest) -> Event:
    """Return the event for a bound pod."""
    return Event("Normal", "Bound", f"bound to node {request.selected_node}")


def failure_event(fail: Fail) -> Event:
    """Return the event for a terminal failure."""
    hint = f" (suggestion: {fail.suggestion.value})" if fail.suggestion else ""
    return Event("Warning", "BindingFailed", f"{fail.reason.value}: {fail.message}{hint}")


def bound_condition(request: BindRequest, pod: Object) -> PodBound | None:
    """Return the PodBound condition that replaces an earlier failure's; None if no failure was reported."""
    shown = [
        condition.get("status")
        for condition in (pod.get("status") or {}).get("conditions") or ()
        if condition.get("type") == names.CONDITION_POD_BOUND
    ]
    # The cached pod may still lack the condition of an earlier attempt.
    told = bool(shown) or request.failed_attempts > 0
    return (
        PodBound("True", "Bound", f"bound to node {request.selected_node}") if told and "True" not in shown else None
    )


def backoff(failed: int, limits: Limits) -> timedelta:
    """Return the pause after the nth failure: exponential with full jitter, at least a tenth of the maximum.

    The floor prevents a series of small random numbers from using all retries within a second.
    """
    return full_jitter(failed, limits.backoff_base, limits.backoff_max, max(0.1, limits.jitter))


def _limit(request: BindRequest, status: Status, default: int) -> int:
    """Return how many retries follow the first failure.

    A request's own limit applies to every failure. Without one, a failure that its plugin attributes to the node or
    the pod is returned to the scheduler immediately: a retry here would occupy the node with the same result, while
    another decision may succeed. The configured default is for failures that a retry on the same node can resolve.
    """
    wanted = request.spec.backoff_limit if request.spec else None
    if wanted is not None:
        return wanted
    return 0 if status.suggestion in _RETURNED else default


def _by(status: Status) -> str:
    return f"{status.plugin}: {status.message}" if status.plugin else status.message
