"""Which volume is about to be written for which claim, by requests of this process. Pure.

From choosing a volume until everybody can see the write, only this table keeps another request from choosing it too.
A claim that several requests want has one volume for all of them, and keeps it until the last is done. The API
server's resourceVersion guards against other processes; losing this table costs a conflict, nothing else.
"""

from shared.api.meta import ObjectKey, ObjectUID


class Assumptions:
    """Volumes by claim and claims by volume, each with the requests that rely on it."""

    def __init__(self) -> None:
        self._volume_of: dict[ObjectUID, str] = {}
        self._claim_of: dict[str, ObjectUID] = {}
        self._holders: dict[ObjectUID, set[ObjectKey]] = {}
        self._held_by: dict[ObjectKey, set[ObjectUID]] = {}

    def __len__(self) -> int:
        return len(self._volume_of)

    def volume_of(self, claim: ObjectUID) -> str | None:
        """Return the volume chosen for the claim."""
        return self._volume_of.get(claim)

    def is_taken(self, volume: str, claim: ObjectUID) -> bool:
        """Return whether the volume is chosen for another claim than this one."""
        return self._claim_of.get(volume, claim) != claim

    def assume(self, request: ObjectKey, claim: ObjectUID, volume: str) -> None:
        """Hold the volume for the claim as long as the request lasts. It must not be taken."""
        self.withdraw(claim, unless=volume)
        self._volume_of[claim] = volume
        self._claim_of[volume] = claim
        self._holders.setdefault(claim, set()).add(request)
        self._held_by.setdefault(request, set()).add(claim)

    def withdraw(self, claim: ObjectUID, unless: str = "") -> None:
        """Let go of the volume chosen for the claim, whoever relies on it: it turned out to be somebody else's."""
        volume = self._volume_of.get(claim)
        if volume is None or volume == unless:
            return
        del self._volume_of[claim], self._claim_of[volume]
        for request in self._holders.pop(claim):
            self._held_by[request].discard(claim)
            if not self._held_by[request]:
                del self._held_by[request]

    def forget(self, request: ObjectKey) -> None:
        """The request is done, one way or the other."""
        for claim in self._held_by.pop(request, ()):
            holders = self._holders[claim]
            holders.discard(request)
            if not holders:
                del self._holders[claim]
                del self._claim_of[self._volume_of.pop(claim)]

    def clear(self) -> None:
        """Forget everything: another process may act from now on."""
        for table in (self._volume_of, self._claim_of, self._holders, self._held_by):
            table.clear()
