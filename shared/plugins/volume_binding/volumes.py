"""PersistentVolumes, claims and classes as the rules see them, read from raw objects. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from shared.api import names
from shared.api.meta import (
    Object,
    ObjectKey,
    ObjectRef,
    ObjectUID,
    ResourceVersion,
    is_deleting,
    key_of,
    uid_of,
    version_of,
)
from shared.api.quantity import parse_quantity
from shared.api.selectors import Labels, Node, node_selector_admits

# What an absent volumeMode means.
_FILESYSTEM = "Filesystem"


@dataclass(frozen=True, slots=True)
class Wanted:
    """A claim that a pod mounts: by name, or made for its ephemeral volume ``volume``."""

    claim: ObjectKey
    volume: str
    ephemeral: bool

    @property
    def ref(self) -> ObjectRef:
        """The claim as an object to wait for, whether or not it exists."""
        return ObjectRef("v1", "PersistentVolumeClaim", self.claim)


@dataclass(frozen=True, slots=True)
class Needs:
    """What a volume must be, and what a claim asks for; equal apart from size and access modes."""

    class_name: str
    mode: str
    attributes_class: str


@dataclass(frozen=True, slots=True)
class Claim:
    """A PersistentVolumeClaim."""

    key: ObjectKey
    uid: ObjectUID
    version: ResourceVersion
    needs: Needs
    size: Decimal
    access_modes: frozenset[str]
    selector: Mapping[str, Any] | None
    volume_name: str
    bind_completed: bool
    selected_node: str
    phase: str
    deleting: bool
    owner: Mapping[str, Any] | None  # the one that controls it

    @property
    def bound(self) -> bool:
        """Whether the volume controller is done with it."""
        return bool(self.volume_name) and self.bind_completed

    @property
    def ref(self) -> ObjectRef:
        """The claim as an object to wait for, as of now."""
        return ObjectRef("v1", "PersistentVolumeClaim", self.key, self.uid, self.version)


@dataclass(frozen=True, slots=True)
class Volume:
    """A PersistentVolume. ``claim`` is its claimRef: whom it belongs to, or is kept for."""

    name: str
    uid: ObjectUID
    version: ResourceVersion
    needs: Needs
    size: Decimal
    access_modes: frozenset[str]
    labels: Labels
    affinity: Mapping[str, Any] | None
    phase: str
    deleting: bool
    claim: ObjectKey | None
    claim_uid: ObjectUID

    @property
    def ref(self) -> ObjectRef:
        """The volume as an object to wait for, as of now."""
        return ObjectRef("v1", "PersistentVolume", ObjectKey("", self.name), self.uid, self.version)

    def is_for(self, claim: Claim) -> bool:
        """Return whether the volume is kept for the claim; one kept for its name only is, too."""
        return self.claim == claim.key and self.claim_uid in ("", claim.uid)

    def reaches(self, node: Node) -> bool:
        """Return whether pods on the node can use it."""
        return node_selector_admits(self.affinity, node)


@dataclass(frozen=True, slots=True)
class Class:
    """A StorageClass. ``delayed``: nothing is bound before a pod that uses it has a node."""

    name: str
    provisioner: str
    delayed: bool
    topologies: Sequence[Mapping[str, Any]]

    @property
    def provisions(self) -> bool:
        """Whether somebody makes volumes of this class."""
        return self.provisioner not in ("", names.NO_PROVISIONER)


def wanted_claims(pod: Object) -> list[Wanted]:
    """Return the claims that the pod mounts, each once."""
    metadata = pod["metadata"]
    namespace, pod_name = metadata.get("namespace", ""), metadata["name"]
    wanted: dict[ObjectKey, Wanted] = {}
    for volume, claim, ephemeral in _mounted(pod):
        key = ObjectKey(namespace, f"{pod_name}-{volume}" if ephemeral else claim)
        # A claim that is mounted in both ways is judged as the ephemeral volume's: it must be the pod's own.
        if ephemeral or key not in wanted:
            wanted[key] = Wanted(key, volume, ephemeral)
    return list(wanted.values())


def mounts_claims(pod: Object) -> bool:
    """Return whether the pod mounts any claim."""
    return any(True for _ in _mounted(pod))


def _mounted(pod: Object) -> Iterator[tuple[str, str, bool]]:
    for volume in (pod.get("spec") or {}).get("volumes") or ():
        if volume.get("ephemeral") is not None:
            yield volume["name"], "", True
        elif volume.get("persistentVolumeClaim") is not None:
            yield volume["name"], volume["persistentVolumeClaim"]["claimName"], False


def read_claim(raw: Object) -> Claim:
    """Read a PersistentVolumeClaim as the API server sent it."""
    spec, annotations = raw.get("spec") or {}, raw["metadata"].get("annotations") or {}
    owners = raw["metadata"].get("ownerReferences") or ()
    return Claim(
        key=key_of(raw),
        uid=uid_of(raw),
        version=version_of(raw),
        needs=_needs(spec, annotations),
        size=parse_quantity(((spec.get("resources") or {}).get("requests") or {}).get("storage")),
        access_modes=frozenset(spec.get("accessModes") or ()),
        selector=spec.get("selector"),
        volume_name=spec.get("volumeName") or "",
        bind_completed=names.BIND_COMPLETED in annotations,
        selected_node=annotations.get(names.SELECTED_NODE) or "",
        phase=(raw.get("status") or {}).get("phase") or "",
        deleting=is_deleting(raw),
        owner=next((owner for owner in owners if owner.get("controller")), None),
    )


def read_volume(raw: Object) -> Volume:
    """Read a PersistentVolume as the API server sent it."""
    spec, metadata = raw.get("spec") or {}, raw["metadata"]
    claim = spec.get("claimRef")
    return Volume(
        name=metadata["name"],
        uid=uid_of(raw),
        version=version_of(raw),
        needs=_needs(spec, metadata.get("annotations") or {}),
        size=parse_quantity((spec.get("capacity") or {}).get("storage")),
        access_modes=frozenset(spec.get("accessModes") or ()),
        labels=metadata.get("labels") or {},
        affinity=(spec.get("nodeAffinity") or {}).get("required"),
        phase=(raw.get("status") or {}).get("phase") or "",
        deleting=is_deleting(raw),
        claim=ObjectKey(claim.get("namespace", ""), claim.get("name", "")) if claim is not None else None,
        claim_uid=ObjectUID((claim or {}).get("uid") or ""),
    )


def read_class(raw: Object) -> Class:
    """Read a StorageClass as the API server sent it."""
    return Class(
        name=raw["metadata"]["name"],
        provisioner=raw.get("provisioner") or "",
        delayed=raw.get("volumeBindingMode") == "WaitForFirstConsumer",
        topologies=raw.get("allowedTopologies") or (),
    )


def _needs(spec: Mapping[str, Any], annotations: Mapping[str, str]) -> Needs:
    # The annotation is older than the field and, where it is still used, wins.
    class_name = annotations.get(names.BETA_STORAGE_CLASS, spec.get("storageClassName"))
    return Needs(class_name or "", spec.get("volumeMode") or _FILESYSTEM, spec.get("volumeAttributesClassName") or "")
