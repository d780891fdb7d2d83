"""Which PersistentVolume a claim gets on a node. Pure.

As the volume controller chooses: a volume kept for the claim wins and is the only one considered; else the smallest
one that is large enough. Equal sizes go by name, so that two who look at the same volumes choose the same one and the
API server's versions tell them apart.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from shared.api.selectors import Node, selector_admits
from shared.plugins.volume_binding.volumes import Claim, Volume

AVAILABLE = "Available"
# A volume just created: the controller says a moment later whether it is available.
_NEW = ("", "Pending")


def is_free(volume: Volume) -> bool:
    """Return whether some claim may still get the volume, if only the one it is kept for."""
    return volume.phase == AVAILABLE or volume.phase in _NEW


@dataclass(frozen=True, slots=True)
class Found:
    """The search's end. ``volume`` is to be taken; ``soon`` would fit, but is not available yet."""

    volume: Volume | None = None
    soon: Volume | None = None


def find_volume(claim: Claim, node: Node, volumes: Iterable[Volume], taken: Callable[[Volume], bool]) -> Found:
    """Search for a volume for the claim. ``taken``: chosen for another claim, whatever the volume says."""
    best: Volume | None = None
    soon: Volume | None = None
    for volume in volumes:
        # Cheap comparisons first: this runs over every free volume of a cluster.
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


def _fits(claim: Claim, node: Node, volume: Volume) -> bool:
    return (
        claim.access_modes <= volume.access_modes
        and volume.reaches(node)
        and selector_admits(claim.selector, volume.labels)
    )
