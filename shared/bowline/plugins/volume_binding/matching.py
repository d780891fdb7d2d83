"""Which PersistentVolume a PVC gets on a node, and the index of free volumes for that choice. Pure.

The same choice as the PV controller's: a volume reserved for the PVC is the only candidate; else the smallest that is
large enough. Equal sizes are ordered by name, so that two processes with the same volumes choose the same one and the
resourceVersion rejects the second write.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from bowline.api import names
from bowline.api.meta import Object, ObjectKey
from bowline.api.selectors import Node, required_value
from bowline.plugins.volume_binding.volumes import PersistentVolumeClaim, Volume, VolumeSpec

AVAILABLE = "Available"
# A new volume; the PV controller sets its phase shortly after.
_NEW = ("", "Pending")


def is_free(volume: Volume) -> bool:
    """Return whether a PVC may still get the volume, even if only the PVC it is reserved for."""
    return volume.phase == AVAILABLE or volume.phase in _NEW


@dataclass(frozen=True, slots=True)
class Match:
    """The result. ``volume``: usable now; ``soon``: matches, but is not Available yet."""

    volume: Volume | None = None
    soon: Volume | None = None


def find_volume(
    claim: PersistentVolumeClaim, node: Node, volumes: Iterable[Volume], is_taken: Callable[[Volume], bool]
) -> Match:
    """Return the volume for the PVC. ``is_taken``: assumed for another PVC, whatever the API object shows."""
    best: Volume | None = None
    soon: Volume | None = None
    for volume in volumes:
        # Cheap comparisons first: this loop covers all candidate volumes.
        if volume.spec != claim.spec or volume.size < claim.size or volume.deleting:
            continue
        if volume.claim is not None:
            if volume.is_for(claim):
                return Match(volume if volume.reaches(node) else None)
            continue
        if best is not None and (best.size, best.name) <= (volume.size, volume.name):
            continue
        if not _fits(claim, node, volume) or is_taken(volume):
            continue
        if volume.phase == AVAILABLE:
            best = volume
        elif volume.phase in _NEW and soon is None:
            soon = volume
    return Match(best, soon if best is None else None)


def _fits(claim: PersistentVolumeClaim, node: Node, volume: Volume) -> bool:
    return (
        claim.access_modes <= volume.access_modes
        and volume.reaches(node)
        and claim.selector is not None
        and claim.selector.selects(volume.labels)
    )


# Index key: the PVC that the volume is reserved for; else its properties and the only hostname where it is usable,
# None if it is usable on others too.
_IndexKey = ObjectKey | tuple[VolumeSpec, str | None]


class FreeVolumes:
    """Index of the free volumes by what a search needs; follows their watch.

    Of thousands of free volumes a PVC can use those of its class, mode and attributes, and most volumes of a node
    (local ones) name it by its hostname label. Only a few remain to be compared one by one.
    """

    def __init__(self) -> None:
        self._at: dict[_IndexKey, dict[str, Volume]] = {}

    def on_change(self, old: Object | None, new: Object | None) -> None:
        """Apply one watch event, with objects as ``transform_volume`` returns them; only free volumes are indexed."""
        if old is not None:
            self._drop(old["volume"])
        if new is not None and is_free(new["volume"]):
            volume: Volume = new["volume"]
            self._at.setdefault(_index_key(volume), {})[volume.name] = volume

    def candidates(self, claims: Iterable[PersistentVolumeClaim], node: Node) -> Iterator[Volume]:
        """Yield every volume that one of the PVCs could use on the node, and perhaps others, each once."""
        keys: set[_IndexKey] = set()
        for claim in claims:
            keys |= {claim.key, (claim.spec, None), (claim.spec, node.labels.get(names.NODE_HOSTNAME))}
        for key in keys:
            yield from self._at.get(key, {}).values()

    def _drop(self, volume: Volume) -> None:
        key = _index_key(volume)
        volumes = self._at.get(key, {})
        volumes.pop(volume.name, None)
        if not volumes:
            self._at.pop(key, None)


def _index_key(volume: Volume) -> _IndexKey:
    return (
        volume.claim
        if volume.claim is not None
        else (volume.spec, required_value(volume.affinity, names.NODE_HOSTNAME))
    )
