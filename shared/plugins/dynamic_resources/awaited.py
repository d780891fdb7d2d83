"""The claims that requests await, so that the watch caches those and no others. Pure.

A cluster may have a claim for each pod. A claim is registered before it is read: the watch then caches every event
after the read, and a wait that begins later misses none.
"""

from collections.abc import Collection, Iterable

from shared.api.meta import ObjectKey


class Awaited:
    """Claims by request, and requests by claim."""

    def __init__(self) -> None:
        self._claims: dict[ObjectKey, frozenset[ObjectKey]] = {}
        self._requests: dict[ObjectKey, set[ObjectKey]] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, claim: ObjectKey) -> bool:
        return claim in self._requests

    def expect(self, request: ObjectKey, claims: Iterable[ObjectKey]) -> Collection[ObjectKey]:
        """Replace the request's claims; returns the claims that no request awaits any more."""
        before, now = self._claims.get(request, frozenset()), frozenset(claims)
        for claim in now - before:
            self._requests.setdefault(claim, set()).add(request)
        if now:
            self._claims[request] = now
        else:
            self._claims.pop(request, None)
        return [claim for claim in before - now if self._released(claim, request)]

    def release(self, request: ObjectKey) -> Collection[ObjectKey]:
        """Remove the request; returns the claims that no request awaits any more."""
        return self.expect(request, ())

    def clear(self) -> Collection[ObjectKey]:
        """Remove all requests; returns the claims that were awaited."""
        claims = list(self._requests)
        self._claims.clear()
        self._requests.clear()
        return claims

    def _released(self, claim: ObjectKey, request: ObjectKey) -> bool:
        requests = self._requests[claim]
        requests.discard(request)
        if not requests:
            del self._requests[claim]
        return not requests
