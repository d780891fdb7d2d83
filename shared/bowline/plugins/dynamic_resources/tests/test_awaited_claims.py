"""Which claims the cache contains: those that a request awaits, for as long as one does."""

from bowline.api.meta import ObjectKey
from bowline.plugins.dynamic_resources.awaited_claims import AwaitedClaims

FIRST, SECOND = ObjectKey("ns", "first"), ObjectKey("ns", "second")
A, B = ObjectKey("ns", "a"), ObjectKey("ns", "b")


def test_a_claim_is_awaited_until_the_last_request_releases_it() -> None:
    claims = AwaitedClaims()
    assert not claims.expect(FIRST, [A, B])
    assert not claims.expect(SECOND, [B])
    assert A in claims
    assert list(claims.expect(FIRST, ())) == [A]
    assert A not in claims
    assert B in claims
    assert list(claims.expect(SECOND, ())) == [B]
    assert len(claims) == 0
    assert not claims.expect(SECOND, ())


def test_a_request_that_names_other_claims_releases_those_before() -> None:
    claims = AwaitedClaims()
    claims.expect(FIRST, [A])
    assert list(claims.expect(FIRST, [B])) == [A]
    assert A not in claims
    assert B in claims
    assert not claims.expect(FIRST, [B])
