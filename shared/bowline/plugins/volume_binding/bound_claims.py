"""Cache of awaited PVCs that a watch event has reported as bound, for the reconcile that this event triggers. Pure.

Bound PVCs are not cached in general. But the event that ends a wait contains the object that the next reconcile would
read live; for awaited PVCs it is kept until then, for FRESH_S at most. Without an entry the PVC is read live.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from bowline.api.meta import ObjectKey, ObjectUID
from bowline.plugins.volume_binding.volumes import PersistentVolumeClaim

# The reconcile follows the event immediately. Older entries are discarded: later events may have been filtered out.
FRESH_S = 2.0


@dataclass(slots=True)
class _Awaited:
    uid: ObjectUID
    bound: PersistentVolumeClaim | None = None
    at: float = 0.0


class BoundClaimCache:
    """Awaited PVCs. ``now`` returns monotonic seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._entries: dict[ObjectKey, _Awaited] = {}
        self._by_request: dict[ObjectKey, set[ObjectKey]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: ObjectKey) -> bool:
        """Return whether the PVC is awaited."""
        return key in self._entries

    def awaits(self, key: ObjectKey) -> bool:
        """Return whether the PVC is awaited and no event has reported it bound."""
        entry = self._entries.get(key)
        return entry is not None and entry.bound is None

    def expect(self, request: ObjectKey, claims: Iterable[PersistentVolumeClaim]) -> None:
        """Register the PVCs that the request waits for to be bound."""
        for claim in claims:
            self._entries[claim.key] = _Awaited(claim.uid)
            self._by_request.setdefault(request, set()).add(claim.key)

    def record(self, claim: PersistentVolumeClaim) -> None:
        """Record the state of a PVC from a watch event."""
        entry = self._entries.get(claim.key)
        if entry is not None:
            is_bound = claim.bound and not claim.deleting and claim.uid == entry.uid
            entry.bound, entry.at = (claim, self._now()) if is_bound else (None, 0.0)

    def pop(self, key: ObjectKey) -> PersistentVolumeClaim | None:
        """Return the PVC if an event has just reported it bound, once; it is not awaited any more."""
        entry = self._entries.get(key)
        if entry is None or entry.bound is None:
            return None
        del self._entries[key]
        return entry.bound if self._now() - entry.at <= FRESH_S else None

    def forget(self, request: ObjectKey) -> None:
        """Remove the request. Another request that waits for the same PVC will read it live."""
        for key in self._by_request.pop(request, ()):
            self._entries.pop(key, None)

    def clear(self) -> None:
        """Remove everything: another process may bind from now on."""
        self._entries.clear()
        self._by_request.clear()
