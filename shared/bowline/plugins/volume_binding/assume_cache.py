"""Assume cache: the volume that requests of this process are about to write for each PVC. Pure.

From the choice of a volume until the write is visible in the watch cache, only this table prevents another request
from choosing the volume too. A PVC that several requests mount has one volume for all of them, held until the last
request ends. Other processes are excluded by the API server's resourceVersion; losing this table costs one Conflict.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from bowline.api.meta import ObjectKey, ObjectUID


@dataclass(slots=True)
class _Assumed:
    volume: str
    requests: set[ObjectKey] = field(default_factory=set)  # that rely on it


class AssumeCache:
    """Volumes by PVC and PVCs by volume, each with the requests that rely on it.

    ``on_release`` is called with each volume that no request relies on any more.
    """

    def __init__(self, on_release: Callable[[str], None] = lambda _: None) -> None:
        self._on_release = on_release
        self._by_claim: dict[ObjectUID, _Assumed] = {}
        self._claim_of: dict[str, ObjectUID] = {}  # by volume
        self._claims_of: dict[ObjectKey, set[ObjectUID]] = {}  # by request

    def __len__(self) -> int:
        return len(self._by_claim)

    def volume_of(self, claim: ObjectUID) -> str | None:
        """Return the volume assumed for the PVC; None if there is none."""
        assumption = self._by_claim.get(claim)
        return assumption.volume if assumption is not None else None

    def holds(self, request: ObjectKey, claim: ObjectUID, volume: str) -> bool:
        """Return whether the request relies on the volume for the PVC."""
        assumption = self._by_claim.get(claim)
        return assumption is not None and assumption.volume == volume and request in assumption.requests

    def __contains__(self, volume: str) -> bool:
        """Return whether the volume is assumed for a PVC."""
        return volume in self._claim_of

    def is_taken(self, volume: str, claim: ObjectUID) -> bool:
        """Return whether the volume is assumed for another PVC."""
        return self._claim_of.get(volume, claim) != claim

    def assume(self, request: ObjectKey, claim: ObjectUID, volume: str) -> None:
        """Assume the volume for the PVC until the request ends. The volume must not be assumed for another PVC."""
        if self.volume_of(claim) != volume:
            self.withdraw(claim)
        self._by_claim.setdefault(claim, _Assumed(volume)).requests.add(request)
        self._claim_of[volume] = claim
        self._claims_of.setdefault(request, set()).add(claim)

    def withdraw(self, claim: ObjectUID) -> None:
        """Drop the volume assumed for the PVC, for all requests: another PVC has it, or it was deleted."""
        assumption = self._by_claim.get(claim)
        for request in list(assumption.requests if assumption is not None else ()):
            self._release(request, claim)

    def forget(self, request: ObjectKey) -> None:
        """Remove the request; its volumes are dropped unless other requests rely on them."""
        for claim in list(self._claims_of.get(request, ())):
            self._release(request, claim)

    def clear(self) -> None:
        """Remove everything: another process may bind from now on."""
        volumes = list(self._claim_of)
        for table in (self._by_claim, self._claim_of, self._claims_of):
            table.clear()
        for volume in volumes:
            self._on_release(volume)

    def _release(self, request: ObjectKey, claim: ObjectUID) -> None:
        assumption, claims = self._by_claim[claim], self._claims_of[request]
        assumption.requests.discard(request)
        claims.discard(claim)
        if not assumption.requests:
            del self._by_claim[claim], self._claim_of[assumption.volume]
            self._on_release(assumption.volume)
        if not claims:
            del self._claims_of[request]
