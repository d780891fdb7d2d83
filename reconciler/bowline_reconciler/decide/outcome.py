"""Classifies how an attempt ended: the resulting status, event, pod condition and requeue.

Pure, one ``match``. An outcome that equals a decision is returned as that decision (``Complete``,
``Fail``, ``Wait``), so that each has one code path.
"""

from datetime import datetime, timedelta

from bowline.api.bindrequest import BindRequest
from bowline.framework.config import Binding
from bowline.framework.interface.status import (
    UNLIMITED,
    Cancelled,
    Done,
    Fatal,
    Retriable,
    Status,
    Transient,
    Waiting,
)
from bowline.framework.reason import Reason, Suggestion
from bowline.runtime.backoff import full_jitter
from bowline_reconciler.decide.actions import (
    GANG,
    Complete,
    Fail,
    Outcome,
    OutcomeAction,
    RetryAt,
    Wait,
)
from bowline_reconciler.decide.report import retry_report, sentence
from bowline_reconciler.decide.snapshot import Times

# Suggestions after which a retry on the same node cannot succeed.
_RETURNED = (Suggestion.RESCHEDULE_ELSEWHERE, Suggestion.DELETE_POD)


def classify_outcome(
    request: BindRequest, outcome: Outcome, limits: Binding, jitter: float, times: Times, now: datetime
) -> OutcomeAction:
    """Return what an attempt's outcome means for the request.

    ``limits``: the settings of binding. ``jitter``: a random number in [0, 1), supplied by the I/O layer. ``times``:
    for how long the request has waited, if it waits. ``now`` is only written.
    """
    match status := outcome.status:
        case Done():
            return Complete()
        case Waiting():
            return _wait(status, limits.wait_timeout, times)
        case Retriable():
            return _retry(request, status, outcome.started_at, limits, jitter, now)
        case Fatal():
            return Fail(status)
        case Transient() | Cancelled():
            return status
        case _:
            # The Runner returns nothing else, such as Skipped; what arrives here must not count as success.
            return Fail(Status.fatal(f"{type(status).__name__} is no end of an attempt").from_plugin(status.plugin))


def _retry(
    request: BindRequest, status: Retriable, started_at: datetime, limits: Binding, jitter: float, now: datetime
) -> RetryAt | Fail:
    failed_count = request.failed_attempts + 1
    limit = _limit(request, status, limits.backoff_limit)
    if failed_count > limit:
        # What has failed repeatedly here may succeed on another node.
        suggestion = status.suggestion or Suggestion.RESCHEDULE_ELSEWHERE
        reason = Reason.BACKOFF_LIMIT_EXCEEDED
        failure = Fatal((status.message,), status.plugin, suggestion, status.objects, reason)
        return Fail(failure, history=f"gave up after {failed_count} attempt{'s' if failed_count > 1 else ''}")
    pause = backoff(failed_count, limits, jitter)
    if status.retry_after is not None:
        pause = max(pause, status.retry_after)
    history = f"attempt {failed_count} of {limit + 1} failed"
    report = retry_report(request, status, history, started_at, now, pause)
    return RetryAt(pause, report, Outcome(status, started_at))


def _wait(status: Waiting, timeout: timedelta, times: Times) -> Wait | Fail:
    unnamed_objects = ", ".join(str(ref) for ref in status.wake_on if ref.key.name not in status.message)
    why = f"{status.message} (waiting for {unnamed_objects})" if unnamed_objects else status.message
    waits = status.waits
    lefts = [times.wait_left(single.timeout or timeout, _cause(single)) for single in waits]
    left = min(lefts)
    if left <= timedelta():
        # Unless the plugin suggests otherwise, the node is not known to be at fault: the awaited change may still
        # happen.
        expired = waits[lefts.index(left)]
        waited = times.waited.get(_cause(expired), times.wait_time)
        suggestion = expired.suggestion or status.suggestion or Suggestion.RETRY_SAME_NODE
        failure = Fatal((why,), expired.plugin, suggestion, status.wake_on, Reason.WAIT_TIMEOUT)
        return Fail(failure, history=f"waited for {waited.total_seconds():.0f} s")
    limits: dict[str, timedelta] = {}
    for single in waits:
        cause, limit = _cause(single), single.timeout or timeout
        if limit < UNLIMITED:
            limits[cause] = min(limit, limits.get(cause, limit))
    why = sentence(why, status.plugin)
    return Wait(status.wake_on, why, left, _cause(status), limits, status.retry_after, plugin=waits[0].plugin)


def _cause(wait: Waiting) -> str:
    # A wait without a plugin is the one between pre_bind and bind.
    return f"plugin {wait.plugin}" if wait.plugin else GANG


def backoff(failed_count: int, limits: Binding, jitter: float) -> timedelta:
    """Return the pause after the nth failure: exponential with full jitter, at least a tenth of the maximum.

    The floor prevents a series of small random numbers from using all retries within a second.
    """
    return full_jitter(failed_count, limits.backoff.base, limits.backoff.max, max(0.1, jitter))


def _limit(request: BindRequest, status: Retriable, default: int) -> int:
    """Return how many retries follow the first failure.

    A request's own limit applies to every failure. Without one, a failure that its plugin attributes to the node or
    the pod is returned to the scheduler immediately: a retry here would occupy the node with the same result, while
    another decision may succeed. The configured default is for failures that a retry on the same node can resolve.
    """
    own_limit = request.spec.backoff_limit if request.spec else None
    if own_limit is not None:
        return own_limit
    return 0 if status.suggestion in _RETURNED else default
