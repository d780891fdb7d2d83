"""Claims that were waited for, as the watch has shown them bound: for the look that their event wakes. Pure.

A bound claim is not mirrored. But the event that ends a wait shows the very claim that the next look would ask the
API server for; of claims that somebody waits for it is kept until that look, and not for long. A look that finds
nothing here asks.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from shared.api.meta import ObjectKey, ObjectUID
from shared.plugins.volume_binding.volumes import Claim

# The look comes at once, or something is wrong: what else has happened since, this table may not have been shown.
FRESH_S = 2.0


@dataclass(slots=True)
class _Awaited:
    uid: ObjectUID
    shown: Claim | None = None
    at: float = 0.0


class Arrivals:
    """What is waited for, by claim. ``now`` is a monotonic clock's time in seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._awaited: dict[ObjectKey, _Awaited] = {}
        self._of: dict[ObjectKey, set[ObjectKey]] = {}

    def __len__(self) -> int:
        return len(self._awaited)

    def expect(self, request: ObjectKey, claims: Iterable[Claim]) -> None:
        """The request is about to have these claims bound."""
        for claim in claims:
            self._awaited[claim.key] = _Awaited(claim.uid)
            self._of.setdefault(request, set()).add(claim.key)

    def awaits(self, key: ObjectKey) -> bool:
        """Return whether ``show`` has any use for the claim."""
        return key in self._awaited

    def show(self, claim: Claim) -> None:
        """The watch shows this of a claim."""
        awaited = self._awaited.get(claim.key)
        if awaited is not None:
            arrived = claim.bound and not claim.deleting and claim.uid == awaited.uid
            awaited.shown, awaited.at = (claim, self._now()) if arrived else (None, 0.0)

    def take(self, key: ObjectKey) -> Claim | None:
        """Return the claim if the watch has just shown it bound; once, and from then on it is not waited for."""
        awaited = self._awaited.get(key)
        if awaited is None or awaited.shown is None:
            return None
        del self._awaited[key]
        return awaited.shown if self._now() - awaited.at <= FRESH_S else None

    def forget(self, request: ObjectKey) -> None:
        """The request is done. Another one that waits for the same claim will have to ask."""
        for key in self._of.pop(request, ()):
            self._awaited.pop(key, None)

    def clear(self) -> None:
        """Forget everything: another process may act from now on."""
        self._awaited.clear()
        self._of.clear()
