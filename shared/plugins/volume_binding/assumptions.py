"""Assume cache: the volume that requests of this process are about to write for each PVC. Pure.

From the choice of a volume until the write is visible in the watch cache, only this table prevents another request
from choosing the volume too. A PVC that several requests mount has one volume for all of them, held until the last
request ends. Other processes are excluded by the API server's resourceVersion; losing this table costs one Conflict.
"""

from shared.api.meta import ObjectKey, ObjectUID


class AssumeCache:
    """Volumes by PVC and PVCs by volume, each with the requests that rely on it."""

    def __init__(self) -> None:
        self._volume_of: dict[ObjectUID, str] = {}
        self._claim_of: dict[str, ObjectUID] = {}
        self._holders: dict[ObjectUID, set[ObjectKey]] = {}
        self._held_by: dict[ObjectKey, set[ObjectUID]] = {}

    def __len__(self) -> int:
        return len(self._volume_of)

    def volume_of(self, claim: ObjectUID) -> str | None:
        """Return the volume assumed for the PVC; None if there is none."""
        return self._volume_of.get(claim)

    def is_taken(self, volume: str, claim: ObjectUID) -> bool:
        """Return whether the volume is assumed for another PVC."""
        return self._claim_of.get(volume, claim) != claim

    def assume(self, request: ObjectKey, claim: ObjectUID, volume: str) -> None:
        """Assume the volume for the PVC until the request ends. The volume must not be assumed for another PVC."""
        self.withdraw(claim, unless=volume)
        self._volume_of[claim] = volume
        self._claim_of[volume] = claim
        self._holders.setdefault(claim, set()).add(request)
        self._held_by.setdefault(request, set()).add(claim)

    def withdraw(self, claim: ObjectUID, unless: str = "") -> None:
        """Drop the volume assumed for the PVC, for all requests: another PVC has it, or it was deleted."""
        volume = self._volume_of.get(claim)
        if volume is None or volume == unless:
            return
        del self._volume_of[claim], self._claim_of[volume]
        for request in self._holders.pop(claim):
            self._held_by[request].discard(claim)
            if not self._held_by[request]:
                del self._held_by[request]

    def forget(self, request: ObjectKey) -> None:
        """Remove the request; its volumes are dropped unless other requests rely on them."""
        for claim in self._held_by.pop(request, ()):
            holders = self._holders[claim]
            holders.discard(request)
            if not holders:
                del self._holders[claim]
                del self._claim_of[self._volume_of.pop(claim)]

    def clear(self) -> None:
        """Remove everything: another process may bind from now on."""
        for table in (self._volume_of, self._claim_of, self._holders, self._held_by):
            table.clear()
