"""Which transient failures are a request's own."""

from datetime import timedelta

import pytest

from bowline.framework.interface.status import Fatal, Retriable, Status, Transient
from bowline.framework.reason import Reason
from bowline_reconciler.decide.transient import NO_FAILURES, Streak, classify, extend, of_failed_call

NEVER = float("-inf")
TRANSIENT = Transient(("500",), "default_binder")
RBAC = Status.fatal("cannot create", Reason.RBAC_MISSING)


def streak(times: list[float], success_before_each: bool = True, is_deferred: bool = False) -> Streak:
    """Failures at these times; with or without another call's success shortly before each."""
    result = NO_FAILURES
    for time in times:
        result = extend(result, time, time - 0.01 if success_before_each else NEVER, is_deferred)
    return result


@pytest.mark.parametrize(
    ("status", "failures", "expectation"),
    [
        pytest.param(TRANSIENT, streak([0]), Transient, id="quiet and uncounted at first"),
        pytest.param(TRANSIENT, streak([0, 60]), Retriable, id="then it counts as an attempt"),
        pytest.param(RBAC, streak([0]), Transient, id="an authorizer's 403 is retried"),
        pytest.param(RBAC, streak([0, 0.2, 0.6, 11, 30]), Transient, id="transient for a minute"),
        pytest.param(RBAC, streak([0, 60]), Fatal, id="terminal after a minute"),
    ],
)
def test_what_a_transient_result_counts_as(status: Status, failures: Streak, expectation: type[Status]) -> None:
    assert status.may_be_transient
    result = classify(status, failures)
    assert (type(result), result.reasons, result.plugin) == (expectation, status.reasons, status.plugin)


@pytest.mark.parametrize(
    ("times", "was_attempting", "is_altered", "expectation"),
    [
        pytest.param([0.0, 60.0], True, False, Retriable, id="of an attempt, for long"),
        pytest.param([0.0], True, False, Transient, id="of an attempt, once"),
        pytest.param([0.0, 60.0], False, False, Transient, id="of no attempt"),
        pytest.param([0.0, 60.0], True, True, Transient, id="a policy changes what is written"),
    ],
)
def test_a_failed_call_counts_as_an_attempt(
    times: list[float], was_attempting: bool, is_altered: bool, expectation: type[Status]
) -> None:
    status = of_failed_call("500", None, streak(times), was_attempting=was_attempting, is_altered=is_altered)
    assert (type(status), status.message) == (expectation, "500")


@pytest.mark.parametrize("last", [12.0, 25.0, 60.0])
def test_attempts_that_are_counted_are_spread_over_half_the_time_of_the_failures(last: float) -> None:
    failures, two_minutes = streak([0, 0.2, 0.6, last]), timedelta(minutes=2)
    half = timedelta(seconds=last / 2)
    assert classify(TRANSIENT, failures) == Retriable(TRANSIENT.reasons, TRANSIENT.plugin, retry_after=half)
    asked = Transient(("429",), retry_after=two_minutes)
    assert classify(asked, failures) == Retriable(("429",), retry_after=two_minutes), "as the API server asks"


@pytest.mark.parametrize("is_deferred", [False, True])
def test_what_the_api_server_defers_is_not_the_requests_own(is_deferred: bool) -> None:
    """Retry-After is about the API server's load, though calls for other objects succeed."""
    assert streak([0, 0.2, 0.6, 11], is_deferred=is_deferred).is_own is not is_deferred
