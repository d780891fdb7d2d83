"""When a request is processed again after a transient failure."""

from datetime import timedelta
from typing import cast

from bowline.api.meta import ObjectUID
from bowline.kube.availability import Availability
from bowline.testing.clock import SteppedClock
from bowline_reconciler.decide.transient import QUIET_FAILURES
from bowline_reconciler.drive.reporter import Reporter
from bowline_reconciler.drive.requeue import ATTEMPT_PAUSE, Requeue, WaitIndex
from bowline_reconciler.drive.state import RequestState

NO_REPORTER = cast(Reporter, None)


def requeue(clock: SteppedClock) -> Requeue:
    return Requeue(WaitIndex({}), NO_REPORTER, Availability(clock), clock, lambda: 0.5)


def state() -> RequestState:
    return RequestState(ObjectUID("request-uid"))


def test_only_a_retry_after_holds_the_request() -> None:
    requests, failing = requeue(SteppedClock()), state()
    requests.extend_streak(failing, None)
    assert requests.error("429", failing, timedelta(seconds=17)).retry_after == timedelta(seconds=17)
    assert requests.error("unreachable", failing).retry_after is None


def test_a_request_whose_failures_go_on_rests_whatever_is_patched() -> None:
    requests, failing = requeue(SteppedClock()), state()
    for rest in (*[timedelta()] * QUIET_FAILURES, ATTEMPT_PAUSE):
        requests.extend_streak(failing, None)
        assert requests.error("unreachable", failing).rest == rest


def test_the_failure_that_is_reported_after_a_minute_is_not_delayed_beyond_it() -> None:
    clock, failing = SteppedClock(), state()
    requests = requeue(clock)
    requests.extend_streak(failing, None)
    clock.step(timedelta(seconds=58))
    assert requests.error("unreachable", failing).at_most == timedelta(seconds=2)
    clock.step(timedelta(seconds=2))
    requests.extend_streak(failing, None)
    assert failing.failures.is_own
    assert requests.error("unreachable", failing).at_most == timedelta.max
