"""Index of the free volumes by what a search needs. Pure.

Of thousands of free volumes a PVC can use those of its class, mode and attributes, and most volumes of a node (local
ones) name it by its hostname label. Only a few remain to be compared one by one.
"""

from collections.abc import Iterable, Iterator

from shared.api import names
from shared.api.meta import Object, ObjectKey
from shared.api.selectors import Node, required_value
from shared.plugins.volume_binding.volumes import PersistentVolumeClaim, Volume, VolumeSpec

# Index key: the PVC that the volume is reserved for; else its properties and the only hostname where it is usable,
# None if it is usable on others too.
_Place = ObjectKey | tuple[VolumeSpec, str | None]


class FreeVolumes:
    """An index that follows the watch of free volumes."""

    def __init__(self) -> None:
        self._at: dict[_Place, dict[str, Volume]] = {}

    def change(self, old: Object | None, new: Object | None) -> None:
        """Apply one watch event; both objects as returned by ``slim_volume``."""
        if old is not None:
            self._drop(old["volume"])
        if new is not None:
            volume: Volume = new["volume"]
            self._at.setdefault(_place(volume), {})[volume.name] = volume

    def candidates(self, claims: Iterable[PersistentVolumeClaim], node: Node) -> Iterator[Volume]:
        """Yield every volume that one of the PVCs could use on the node, and perhaps others; some twice."""
        for claim in claims:
            places: set[_Place] = {
                claim.key,
                (claim.needs, None),
                (claim.needs, node.labels.get(names.NODE_HOSTNAME)),
            }
            for place in places:
                yield from self._at.get(place, {}).values()

    def _drop(self, volume: Volume) -> None:
        place = _place(volume)
        volumes = self._at.get(place, {})
        volumes.pop(volume.name, None)
        if not volumes:
            self._at.pop(place, None)


def _place(volume: Volume) -> _Place:
    return (
        volume.claim
        if volume.claim is not None
        else (volume.needs, required_value(volume.affinity, names.NODE_HOSTNAME))
    )
