"""Which claims an evaluation may use from the cache instead of reading them live."""

from dataclasses import replace

import pytest

from bowline.api import names
from bowline.api.meta import ObjectKey, ObjectUID
from bowline.plugins.volume_binding.bound_claims import FRESH_S, BoundClaimCache
from bowline.plugins.volume_binding.tests.builders import claim
from bowline.plugins.volume_binding.volumes import PersistentVolumeClaim

A, B = ObjectKey("ns", "a"), ObjectKey("ns", "b")
UNBOUND = claim()
BOUND = claim(volumeName="v", annotations={names.BIND_COMPLETED: "yes"})


class Time:
    """A clock that does not advance."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_an_awaited_claim_is_returned_once() -> None:
    cache = BoundClaimCache(Time())
    assert not cache.awaits(UNBOUND.key)
    cache.expect(A, [UNBOUND])
    assert cache.awaits(UNBOUND.key), "its provisioner may have been asked, whether or not the cache has it"
    assert cache.pop(UNBOUND.key) is None
    assert BOUND.key in cache
    cache.record(BOUND)
    assert not cache.awaits(BOUND.key)
    assert cache.pop(BOUND.key) is BOUND
    assert cache.pop(BOUND.key) is None, "later changes are not watched"
    assert BOUND.key not in cache
    assert len(cache) == 0


@pytest.mark.parametrize(
    "unusable_claim",
    [
        pytest.param(UNBOUND, id="not bound"),
        pytest.param(claim(volumeName="v"), id="bound by hand, and not by the controller yet"),
        pytest.param(replace(BOUND, uid=ObjectUID("another")), id="created again with its name"),
        pytest.param(replace(BOUND, deleting=True), id="being deleted"),
    ],
)
def test_only_a_bound_claim_is_returned(unusable_claim: PersistentVolumeClaim) -> None:
    cache = BoundClaimCache(Time())
    cache.expect(A, [UNBOUND])
    cache.record(unusable_claim)
    assert cache.pop(UNBOUND.key) is None
    cache.record(BOUND)
    cache.record(unusable_claim)
    assert cache.pop(UNBOUND.key) is None, "the last event counts"


def test_a_later_read_must_be_live() -> None:
    time = Time()
    cache = BoundClaimCache(time)
    cache.expect(A, [UNBOUND])
    cache.record(BOUND)
    time.now += FRESH_S + 0.001
    assert cache.pop(BOUND.key) is None
    assert len(cache) == 0


def test_a_restarted_wait_uses_nothing_of_the_former() -> None:
    cache = BoundClaimCache(Time())
    cache.expect(A, [UNBOUND])
    cache.record(BOUND)
    cache.expect(A, [UNBOUND])
    assert cache.pop(BOUND.key) is None


def test_completed_requests_await_nothing() -> None:
    cache = BoundClaimCache(Time())
    second_claim = claim("other")
    cache.expect(A, [UNBOUND])
    cache.expect(B, [second_claim])
    cache.forget(A)
    cache.forget(A)
    assert (UNBOUND.key in cache, second_claim.key in cache) == (False, True)
    cache.clear()
    assert len(cache) == 0
