"""Which PersistentVolume a PVC gets on a node. Pure.

The same choice as the PV controller's: a volume reserved for the PVC is the only candidate; else the smallest that is
large enough. Equal sizes are ordered by name, so that two processes with the same volumes choose the same one and the
resourceVersion rejects the second write.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from shared.api.selectors import Node, selector_admits
from shared.plugins.volume_binding.volumes import PersistentVolumeClaim, Volume

AVAILABLE = "Available"
# A new volume; the PV controller sets its phase shortly after.
_NEW = ("", "Pending")


def is_free(volume: Volume) -> bool:
    """Return whether a PVC may still get the volume, even if only the PVC it is reserved for."""
    return volume.phase == AVAILABLE or volume.phase in _NEW


@dataclass(frozen=True, slots=True)
class Found:
    """The result. ``volume``: usable now; ``soon``: matches, but is not Available yet."""

    volume: Volume | None = None
    soon: Volume | None = None


def find_volume(
    claim: PersistentVolumeClaim, node: Node, volumes: Iterable[Volume], taken: Callable[[Volume], bool]
) -> Found:
    """Return the volume for the PVC. ``taken``: assumed for another PVC, whatever the API object shows."""
    best: Volume | None = None
    soon: Volume | None = None
    for volume in volumes:
        # Cheap comparisons first: this loop covers all candidate volumes.
        if volume.needs != claim.needs or volume.size < claim.size or volume.deleting:
            continue
        if volume.claim is not None:
            if volume.is_for(claim):
                return Found(volume if volume.reaches(node) else None)
            continue
        if best is not None and (best.size, best.name) <= (volume.size, volume.name):
            continue
        if not _fits(claim, node, volume) or taken(volume):
            continue
        if volume.phase == AVAILABLE:
            best = volume
        elif volume.phase in _NEW and soon is None:
            soon = volume
    return Found(best, soon if best is None else None)


def _fits(claim: PersistentVolumeClaim, node: Node, volume: Volume) -> bool:
    return (
        claim.access_modes <= volume.access_modes
        and volume.reaches(node)
        and selector_admits(claim.selector, volume.labels)
    )
