"""When a request is processed again after a transient failure."""

from datetime import timedelta
from typing import cast

from prometheus_client import CollectorRegistry

from bowline.api.meta import ObjectKey, ObjectUID
from bowline.kube.availability import Availability
from bowline.testing.clock import SteppedClock
from bowline_reconciler.decide.transient import QUIET_FAILURES
from bowline_reconciler.drive.reporter import Reporter
from bowline_reconciler.drive.requeue import ATTEMPT_PAUSE, Requeue, WaitIndex
from bowline_reconciler.drive.state import RequestState
from bowline_reconciler.observe import Observation, ReconcilerMetrics

KEY, NO_REPORTER = ObjectKey("default", "train"), cast(Reporter, None)


def requeue(clock: SteppedClock) -> Requeue:
    observation = Observation(ReconcilerMetrics(CollectorRegistry()), clock)
    return Requeue(WaitIndex({}), NO_REPORTER, observation, Availability(clock), clock, lambda: 0.5)


def state() -> RequestState:
    return RequestState(ObjectUID("request-uid"))


def test_only_a_retry_after_holds_the_request() -> None:
    requests, failing = requeue(SteppedClock()), state()
    requests.extend_streak(failing, None)
    assert requests.failure(KEY, failing, "429", timedelta(seconds=17)).retry_after == timedelta(seconds=17)
    assert requests.failure(KEY, failing, "unreachable").retry_after is None


def test_a_request_whose_failures_go_on_rests_whatever_is_patched() -> None:
    requests, failing = requeue(SteppedClock()), state()
    for rest in (*[timedelta()] * QUIET_FAILURES, ATTEMPT_PAUSE):
        requests.extend_streak(failing, None)
        assert requests.failure(KEY, failing, "unreachable").rest == rest
