"""Which claims requests are concerned with now, so that the watch keeps those and no others. Pure.

A cluster may have a claim for each pod. A claim is registered before it is read: an event that follows the read is
then kept by the watch, and a wait that begins after it does not miss it.
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
        """Register the claims of a request instead of those before; returns those that no request awaits now."""
        before, now = self._claims.get(request, frozenset()), frozenset(claims)
        for claim in now - before:
            self._requests.setdefault(claim, set()).add(request)
        if now:
            self._claims[request] = now
        else:
            self._claims.pop(request, None)
        return [claim for claim in before - now if self._released(claim, request)]

    def release(self, request: ObjectKey) -> Collection[ObjectKey]:
        """The request awaits nothing; returns the claims that no request awaits now."""
        return self.expect(request, ())

    def clear(self) -> Collection[ObjectKey]:
        """Forget all requests; returns the claims that were awaited."""
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
