"""Which claims a look may take from the watch instead of asking for them."""

from dataclasses import replace

import pytest

from shared.api import names
from shared.api.meta import ObjectKey, ObjectUID
from shared.plugins.volume_binding.arrivals import FRESH_S, BoundClaimCache
from shared.plugins.volume_binding.tests.builders import claim
from shared.plugins.volume_binding.volumes import PersistentVolumeClaim

A, B = ObjectKey("ns", "a"), ObjectKey("ns", "b")
UNBOUND = claim()
BOUND = claim(volumeName="v", annotations={names.BIND_COMPLETED: "yes"})


class Time:
    """A clock that stands still."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_claim_that_is_waited_for_is_taken_once() -> None:
    arrivals = BoundClaimCache(Time())
    arrivals.expect(A, [UNBOUND])
    assert arrivals.take(UNBOUND.key) is None
    assert arrivals.awaits(BOUND.key)
    arrivals.show(BOUND)
    assert arrivals.take(BOUND.key) is BOUND
    assert arrivals.take(BOUND.key) is None, "what happens to it from now on is not watched"
    assert not arrivals.awaits(BOUND.key)
    assert len(arrivals) == 0


def test_what_nobody_waits_for_is_not_kept() -> None:
    arrivals = BoundClaimCache(Time())
    assert not arrivals.awaits(BOUND.key)
    arrivals.show(BOUND)
    assert arrivals.take(BOUND.key) is None


@pytest.mark.parametrize(
    "shown",
    [
        pytest.param(UNBOUND, id="not bound"),
        pytest.param(claim(volumeName="v"), id="bound by hand, and not by the controller yet"),
        pytest.param(replace(BOUND, uid=ObjectUID("another")), id="made anew under its name"),
        pytest.param(replace(BOUND, deleting=True), id="being deleted"),
    ],
)
def test_only_a_bound_claim_is_taken(shown: PersistentVolumeClaim) -> None:
    arrivals = BoundClaimCache(Time())
    arrivals.expect(A, [UNBOUND])
    arrivals.show(shown)
    assert arrivals.take(UNBOUND.key) is None
    arrivals.show(BOUND)
    arrivals.show(shown)
    assert arrivals.take(UNBOUND.key) is None, "the last event counts"


def test_a_look_that_comes_late_has_to_ask() -> None:
    time = Time()
    arrivals = BoundClaimCache(time)
    arrivals.expect(A, [UNBOUND])
    arrivals.show(BOUND)
    time.now += FRESH_S + 0.001
    assert arrivals.take(BOUND.key) is None
    assert len(arrivals) == 0


def test_a_wait_that_begins_anew_takes_nothing_from_before() -> None:
    arrivals = BoundClaimCache(Time())
    arrivals.expect(A, [UNBOUND])
    arrivals.show(BOUND)
    arrivals.expect(A, [UNBOUND])
    assert arrivals.take(BOUND.key) is None


def test_requests_that_are_done_wait_for_nothing() -> None:
    arrivals = BoundClaimCache(Time())
    other = claim("other")
    arrivals.expect(A, [UNBOUND])
    arrivals.expect(B, [other])
    arrivals.forget(A)
    arrivals.forget(A)
    assert (arrivals.awaits(UNBOUND.key), arrivals.awaits(other.key)) == (False, True)
    arrivals.clear()
    assert len(arrivals) == 0
