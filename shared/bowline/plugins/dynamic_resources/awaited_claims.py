"""The claims that requests await, so that the watch caches those and no others. Pure.

A cluster may have a claim for each pod. A claim is registered before it is read: the watch then caches every event
after the read, and a wait that begins later misses none.
"""

from collections import Counter
from collections.abc import Collection, Iterable

from bowline.api.meta import ObjectKey


class AwaitedClaims:
    """Claims by request."""

    def __init__(self) -> None:
        self._claims: dict[ObjectKey, frozenset[ObjectKey]] = {}  # by request
        self._requests: Counter[ObjectKey] = Counter()  # number of requests by claim

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, claim: ObjectKey) -> bool:
        return claim in self._requests

    def expect(self, request: ObjectKey, claims: Iterable[ObjectKey]) -> Collection[ObjectKey]:
        """Replace the request's claims; returns the claims that no request awaits any more."""
        before, now = self._claims.pop(request, frozenset()), frozenset(claims)
        if now:
            self._claims[request] = now
        self._requests.update(now)
        self._requests.subtract(before)
        unawaited_claims = [claim for claim in before if not self._requests[claim]]
        for claim in unawaited_claims:
            del self._requests[claim]
        return unawaited_claims

    def clear(self) -> Collection[ObjectKey]:
        """Remove all requests; returns the claims that were awaited."""
        claims = list(self._requests)
        self._claims.clear()
        self._requests.clear()
        return claims
