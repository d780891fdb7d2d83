"""When a request is processed again after a transient failure, and how often that is logged."""

import logging
from datetime import timedelta

import pytest

from reconciler.binding.requeue import LOG_EVERY_S, MAX, TransientFailures
from shared.api.meta import ObjectKey
from shared.kube.availability import Availability
from shared.testing.clock import SteppedClock

KEY = ObjectKey("default", "request")


def ignored(key: ObjectKey, why: str) -> None:
    """Ignore a failure."""


def failures(clock: SteppedClock) -> TransientFailures:
    return TransientFailures(ignored, Availability(clock), clock)


def test_the_api_servers_retry_after_is_honoured() -> None:
    noted: list[tuple[ObjectKey, str]] = []
    clock = SteppedClock()
    transient = TransientFailures(lambda key, why: noted.append((key, why)), Availability(clock), clock)
    again = transient.requeue(KEY, "429", timedelta(seconds=17))
    assert again.keeps_failures
    assert again.requeue_after is not None
    assert timedelta(seconds=17) <= again.requeue_after <= timedelta(seconds=34)
    assert noted == [(KEY, "429")]


def test_failures_that_last_are_retried_less_often_and_forgotten_when_over() -> None:
    transient = failures(SteppedClock())
    delays = [transient.requeue(KEY, "unreachable").requeue_after or timedelta() for _ in range(200)]
    assert max(delays[:3]) <= timedelta(seconds=0.8)
    assert timedelta(seconds=5) < max(delays) <= MAX
    assert len(transient) == 1
    transient.forget(KEY)
    assert len(transient) == 0
    assert (transient.requeue(KEY, "unreachable").requeue_after or MAX) <= timedelta(seconds=0.2)


def test_only_a_retry_after_holds_the_key() -> None:
    transient = failures(SteppedClock())
    assert transient.requeue(KEY, "429", timedelta(seconds=17)).retry_after == timedelta(seconds=17)
    assert transient.requeue(KEY, "unreachable").retry_after is None


def test_the_failure_that_is_reported_after_a_minute_is_not_delayed_beyond_it() -> None:
    clock = SteppedClock()
    transient = failures(clock)
    transient.note(KEY, None)
    for _ in range(100):
        transient.requeue(KEY, "unreachable")
    clock.step(timedelta(seconds=58))
    assert (transient.requeue(KEY, "unreachable").requeue_after or MAX) <= timedelta(seconds=2)


def test_an_outage_leaves_no_failures_in_a_row() -> None:
    clock = SteppedClock()
    transient = failures(clock)
    transient.note(KEY, None)
    clock.step(timedelta(minutes=5))
    transient.clear()
    assert not transient.note(KEY, None).is_own


def test_thousands_of_failing_requests_are_one_line_every_half_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = SteppedClock()
    transient = failures(clock)
    with caplog.at_level(logging.WARNING):
        for _ in range(10):
            for number in range(1_000):
                transient.requeue(ObjectKey("default", str(number)), "unreachable")
            clock.step(timedelta(seconds=LOG_EVERY_S / 5))
    first, second = caplog.records
    assert first.__dict__["requests"] == second.__dict__["requests"] == 1_000
    assert second.__dict__["failures"] == 5_000
