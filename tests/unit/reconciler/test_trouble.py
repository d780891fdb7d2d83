"""Backoff of the API server's own trouble."""

from datetime import timedelta

from reconciler.binding.requeue import MAX, Trouble
from shared.api.meta import ObjectKey
from shared.testing.clock import SteppedClock

KEY = ObjectKey("default", "request")


def nobody(key: ObjectKey, why: str) -> None:
    """Hear of trouble and do nothing."""


def test_what_the_api_server_asks_for_is_granted() -> None:
    told: list[tuple[ObjectKey, str]] = []
    again = Trouble(lambda key, why: told.append((key, why)), SteppedClock()).again(KEY, "429", timedelta(seconds=17))
    assert again.troubled
    assert again.delay is not None
    assert timedelta(seconds=17) <= again.delay <= timedelta(seconds=34)
    assert told == [(KEY, "429")]


def test_trouble_that_lasts_is_met_less_and_less_often_and_is_forgotten_when_over() -> None:
    trouble = Trouble(nobody, SteppedClock())
    delays = [trouble.again(KEY, "unreachable").delay or timedelta() for _ in range(200)]
    assert max(delays[:3]) <= timedelta(seconds=0.8)
    assert timedelta(seconds=5) < max(delays) <= MAX
    assert len(trouble) == 1
    trouble.over(KEY)
    assert len(trouble) == 0
    assert (trouble.again(KEY, "unreachable").delay or MAX) <= timedelta(seconds=0.2)


def test_until_then_nothing_calls_the_api_server_for_the_key_and_others_go_on() -> None:
    clock = SteppedClock()
    trouble = Trouble(nobody, clock)
    trouble.again(KEY, "429", timedelta(seconds=17))
    clock.step(timedelta(seconds=10))
    held = trouble.held(KEY)
    assert held is not None
    assert (held.delay, held.troubled) == (timedelta(seconds=7), True)
    assert trouble.held(ObjectKey("default", "other")) is None
    clock.step(timedelta(seconds=7))
    assert trouble.held(KEY) is None


def test_a_wait_of_our_own_may_be_cut_short() -> None:
    trouble = Trouble(nobody, SteppedClock())
    trouble.again(KEY, "unreachable")
    assert trouble.held(KEY) is None
