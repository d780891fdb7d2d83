"""Which request is about to write which volume, over the lifetimes of requests."""

from bowline.api.meta import ObjectKey, ObjectUID
from bowline.plugins.volume_binding.assume_cache import AssumeCache

A, B = ObjectKey("ns", "a"), ObjectKey("ns", "b")
ONE, TWO = ObjectUID("claim-1"), ObjectUID("claim-2")


def test_a_volume_is_unavailable_to_other_claims_until_its_request_is_done() -> None:
    table = AssumeCache()
    table.assume(A, ONE, "v")
    assert table.volume_of(ONE) == "v"
    assert table.is_taken("v", TWO)
    assert not table.is_taken("v", ONE)
    table.forget(A)
    assert not table.is_taken("v", TWO)
    assert len(table) == 0


def test_a_claim_of_two_requests_keeps_its_volume_until_both_are_done() -> None:
    releases: list[str] = []
    table = AssumeCache(releases.append)
    table.assume(A, ONE, "v")
    table.assume(B, ONE, "v")
    table.forget(A)
    assert table.is_taken("v", TWO)
    assert (table.holds(A, ONE, "v"), table.holds(B, ONE, "v"), table.holds(B, ONE, "w")) == (False, True, False)
    assert "v" in table
    assert not releases
    table.forget(B)
    assert len(table) == 0
    assert "v" not in table
    assert releases == ["v"]
