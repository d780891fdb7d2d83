"""Which transient failures are a request's own: pure functions over consecutive failures and the time.

A call that fails without a decision of the API server (5xx, timeout, no connection, a proxy's reply, a lasting 409)
is transient: the request is retried, nothing is written and no attempt is counted. But a webhook that is down for one
namespace fails the same way, for hours. So a failure becomes the request's own when it recurs while other calls
succeed, or lasts for a minute: from then on it is reported in status and event, counts as an attempt, and can exhaust
the backoffLimit. Before that it is reported without being counted (``progress``). Outages of the API server do not
count: after one, the caller resets the failures. All times are monotonic, in seconds. Decisions 111 and 315.
"""

from dataclasses import dataclass
from datetime import timedelta

from bowline.framework.interface.status import Retriable, Status, Transient

# A few consecutive failures are normal: a lost reply, a restart of one of several API servers.
QUIET_FAILURES = 3
# With more failures, while other calls succeed, they are the request's own after this time ...
OWN_AFTER_S = 10.0
# ... and without that evidence after this time. It also covers the time an authorizer may need to load its roles.
REPORT_AFTER_S = 60.0


@dataclass(frozen=True, slots=True)
class Streak:
    """Consecutive transient failures of one request. ``is_own``: they are the request's own, reported and counted."""

    count: int
    first: float
    last: float
    is_own: bool = False

    @property
    def is_quiet(self) -> bool:
        """Whether there are so few that they are normal."""
        return self.count <= QUIET_FAILURES

    @property
    def seconds(self) -> float:
        """For how long the request has failed."""
        return self.last - self.first


NO_FAILURES = Streak(0, 0.0, 0.0)


def extend(streak: Streak, now: float, last_success: float, is_deferred: bool) -> Streak:
    """Return the streak with one more failure at ``now``.

    ``last_success``: when any call of this process last succeeded. ``is_deferred``: the API server sent Retry-After,
    which concerns its load and not the object.
    """
    if not streak.count:
        return Streak(1, now, now)
    others_succeed = last_success > streak.last and not is_deferred
    seconds = now - streak.first
    is_own = (
        streak.is_own
        or seconds >= REPORT_AFTER_S
        or (others_succeed and streak.count >= QUIET_FAILURES and seconds >= OWN_AFTER_S)
    )
    return Streak(streak.count + 1, streak.first, now, is_own)


def of_failed_call(
    why: str, retry_after: timedelta | None, streak: Streak, *, was_attempting: bool, is_altered: bool
) -> Status:
    """Return what a failed call of Bowline's own counts as: transient, or a failure of an attempt that had begun.

    ``is_altered``: a policy changes what is written. That says nothing about the node, so it never counts.
    """
    status = Transient((why,), retry_after=retry_after)
    return classify(status, streak) if was_attempting and not is_altered else status


def classify(status: Status, streak: Streak) -> Status:
    """Return what a result that may be transient counts as: transient, or a failure of the request's own."""
    if isinstance(status, Transient):
        if not streak.is_own:
            return status
        # The attempts that follow are spread over as long again, instead of being used up within seconds.
        pause = timedelta(seconds=streak.seconds / 2)
        return Retriable(status.reasons, status.plugin, retry_after=max(pause, status.retry_after or pause))
    if streak.seconds < REPORT_AFTER_S:
        return Transient(status.reasons, status.plugin)
    return status
