"""Which PVCs a pod mounts. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from bowline.api.meta import Object, ObjectKey, ObjectRef


@dataclass(frozen=True, slots=True)
class PodVolume:
    """A PVC that a pod mounts: by name, or created for its generic ephemeral volume ``volume``."""

    claim: ObjectKey
    volume: str
    ephemeral: bool

    @property
    def ref(self) -> ObjectRef:
        """A reference to wait for any change of the PVC, whether or not it exists."""
        return ObjectRef("v1", "PersistentVolumeClaim", self.claim)


def pod_volumes(pod: Object) -> list[PodVolume]:
    """Return the PVCs that the pod mounts, each once."""
    metadata = pod["metadata"]
    namespace, pod_name = metadata.get("namespace", ""), metadata["name"]
    volumes: dict[ObjectKey, PodVolume] = {}
    for volume, claim, ephemeral in _mounts(pod):
        key = ObjectKey(namespace, f"{pod_name}-{volume}" if ephemeral else claim)
        # A PVC that is mounted both ways is treated as the ephemeral volume's: it must be owned by the pod.
        if ephemeral or key not in volumes:
            volumes[key] = PodVolume(key, volume, ephemeral)
    return list(volumes.values())


def _mounts(pod: Object) -> Iterator[tuple[str, str, bool]]:
    for volume in (pod.get("spec") or {}).get("volumes") or ():
        if volume.get("ephemeral") is not None:
            yield volume["name"], "", True
        elif volume.get("persistentVolumeClaim") is not None:
            yield volume["name"], volume["persistentVolumeClaim"]["claimName"], False
