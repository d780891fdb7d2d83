"""Which claims the cache contains: those that a request awaits, for as long as one does."""

from shared.api.meta import ObjectKey
from shared.plugins.dynamic_resources.awaited_claims import AwaitedClaims

FIRST, SECOND = ObjectKey("ns", "first"), ObjectKey("ns", "second")
A, B = ObjectKey("ns", "a"), ObjectKey("ns", "b")


def test_a_claim_is_awaited_until_the_last_request_releases_it() -> None:
    awaited = AwaitedClaims()
    assert not awaited.expect(FIRST, [A, B])
    assert not awaited.expect(SECOND, [B])
    assert A in awaited
    assert list(awaited.expect(FIRST, ())) == [A]
    assert A not in awaited
    assert B in awaited
    assert list(awaited.expect(SECOND, ())) == [B]
    assert len(awaited) == 0
    assert not awaited.expect(SECOND, ())


def test_a_request_that_names_other_claims_releases_those_before() -> None:
    awaited = AwaitedClaims()
    awaited.expect(FIRST, [A])
    assert list(awaited.expect(FIRST, [B])) == [A]
    assert A not in awaited
    assert B in awaited
    assert not awaited.expect(FIRST, [B])


def test_clearing_releases_every_claim() -> None:
    awaited = AwaitedClaims()
    awaited.expect(FIRST, [A])
    awaited.expect(SECOND, [A, B])
    assert set(awaited.clear()) == {A, B}
    assert len(awaited) == 0
    assert not awaited.expect(FIRST, ())
