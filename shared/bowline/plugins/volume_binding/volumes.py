"""PersistentVolumes, PVCs and StorageClasses as values for the rules, parsed from raw objects. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from bowline.api import names
from bowline.api.meta import (
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
from bowline.api.quantity import parse_quantity
from bowline.api.selectors import Labels, LabelSelector, Node, compile_selector, is_too_large, node_selector_admits

# The API's default volumeMode.
_FILESYSTEM = "Filesystem"
_BETA_REGION = "failure-domain.beta.kubernetes.io/region"
_ZONES = ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone")
# Sources of in-tree volumes whose CSI drivers have topology labels of their own: the labels of zone and region there.
_TRANSLATED_LABELS: Mapping[str, Mapping[str, str]] = {
    source: dict.fromkeys(_ZONES, zone) | dict.fromkeys(regions, region)
    for source, zone, regions, region in (
        ("awsElasticBlockStore", "topology.ebs.csi.aws.com/zone", (_BETA_REGION,), "topology.kubernetes.io/region"),
        ("gcePersistentDisk", "topology.gke.io/zone", (_BETA_REGION,), "topology.kubernetes.io/region"),
        ("cinder", "topology.cinder.csi.openstack.org/zone", (_BETA_REGION,), "topology.kubernetes.io/region"),
        (
            "vsphereVolume",
            "topology.csi.vmware.com/zone",
            ("topology.kubernetes.io/region", _BETA_REGION),
            "topology.csi.vmware.com/region",
        ),
    )
}


@dataclass(frozen=True, slots=True)
class VolumeSpec:
    """The properties of a volume and of a PVC that must be equal; size and access modes are compared separately."""

    class_name: str
    mode: str
    attributes_class: str


@dataclass(frozen=True, slots=True)
class PersistentVolumeClaim:
    """A PersistentVolumeClaim."""

    key: ObjectKey
    uid: ObjectUID
    version: ResourceVersion
    spec: VolumeSpec
    size: Decimal
    size_text: str
    access_modes: frozenset[str]
    selector: LabelSelector | None  # None: it selects nothing, or is too large
    is_selector_too_large: bool
    volume_name: str
    bind_completed: bool
    selected_node: str
    requested_by: ObjectUID  # the request that has asked its provisioner
    phase: str
    deleting: bool
    owner: Mapping[str, Any] | None  # its controller owner reference

    @property
    def bound(self) -> bool:
        """Whether the PV controller has completed the bind."""
        return bool(self.volume_name) and self.bind_completed

    @property
    def ref(self) -> ObjectRef:
        """A reference to wait for a change of the PVC after this version."""
        return ObjectRef("v1", "PersistentVolumeClaim", self.key, self.uid, self.version)


@dataclass(frozen=True, slots=True)
class Volume:
    """A PersistentVolume. ``claim`` is its claimRef: the PVC it is bound to, or reserved for."""

    name: str
    uid: ObjectUID
    version: ResourceVersion
    spec: VolumeSpec
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
        """A reference to wait for a change of the volume after this version."""
        return ObjectRef("v1", "PersistentVolume", ObjectKey("", self.name), self.uid, self.version)

    def is_for(self, claim: PersistentVolumeClaim) -> bool:
        """Return whether the volume is bound to or reserved for the PVC, also if only by its name."""
        return self.claim == claim.key and self.claim_uid in ("", claim.uid)

    def reaches(self, node: Node) -> bool:
        """Return whether the volume's node affinity admits the node."""
        return node_selector_admits(self.affinity, node)


@dataclass(frozen=True, slots=True)
class StorageClass:
    """A StorageClass. ``wait_for_first_consumer``: its volumeBindingMode."""

    name: str
    provisioner: str
    wait_for_first_consumer: bool
    topologies: Sequence[Mapping[str, Any]]

    @property
    def provisions(self) -> bool:
        """Whether the class has a provisioner."""
        return self.provisioner not in ("", names.NO_PROVISIONER)


def read_claim(raw: Object) -> PersistentVolumeClaim:
    """Parse a PersistentVolumeClaim."""
    spec, annotations = raw.get("spec") or {}, raw["metadata"].get("annotations") or {}
    owners = raw["metadata"].get("ownerReferences") or ()
    size = ((spec.get("resources") or {}).get("requests") or {}).get("storage")
    return PersistentVolumeClaim(
        key=key_of(raw),
        uid=uid_of(raw),
        version=version_of(raw),
        spec=_volume_spec(spec, annotations),
        size=parse_quantity(size),
        size_text=str(size or 0),
        access_modes=frozenset(spec.get("accessModes") or ()),
        selector=None if is_too_large(spec.get("selector")) else compile_selector(spec.get("selector")),
        is_selector_too_large=is_too_large(spec.get("selector")),
        volume_name=spec.get("volumeName") or "",
        bind_completed=names.BIND_COMPLETED in annotations,
        selected_node=annotations.get(names.SELECTED_NODE) or "",
        requested_by=ObjectUID(annotations.get(names.PREPARED_FOR) or ""),
        phase=(raw.get("status") or {}).get("phase") or "",
        deleting=is_deleting(raw),
        owner=next((owner for owner in owners if owner.get("controller")), None),
    )


def read_volume(raw: Object) -> Volume:
    """Parse a PersistentVolume."""
    spec, metadata = raw.get("spec") or {}, raw["metadata"]
    claim = spec.get("claimRef")
    return Volume(
        name=metadata["name"],
        uid=uid_of(raw),
        version=version_of(raw),
        spec=_volume_spec(spec, metadata.get("annotations") or {}),
        size=parse_quantity((spec.get("capacity") or {}).get("storage")),
        access_modes=frozenset(spec.get("accessModes") or ()),
        labels=metadata.get("labels") or {},
        affinity=_affinity(spec),
        phase=(raw.get("status") or {}).get("phase") or "",
        deleting=is_deleting(raw),
        claim=ObjectKey(claim.get("namespace", ""), claim.get("name", "")) if claim is not None else None,
        claim_uid=ObjectUID((claim or {}).get("uid") or ""),
    )


def _affinity(spec: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the required node affinity; that of an in-tree volume admits nodes by its CSI driver's labels too.

    As in kube-scheduler, which translates it where the driver serves the node: the labels that it names may be gone.
    """
    required = (spec.get("nodeAffinity") or {}).get("required")
    labels = next((labels for source, labels in _TRANSLATED_LABELS.items() if source in spec), None)
    if required is None or labels is None:
        return required
    terms = [*(required.get("nodeSelectorTerms") or ())]
    for term in tuple(terms):
        expressions = term.get("matchExpressions") or ()
        if any(expression["key"] in labels for expression in expressions):
            translated = [{**entry, "key": labels.get(entry["key"], entry["key"])} for entry in expressions]
            terms.append({**term, "matchExpressions": translated})
    return {"nodeSelectorTerms": terms}


def read_class(raw: Object) -> StorageClass:
    """Parse a StorageClass."""
    return StorageClass(
        name=raw["metadata"]["name"],
        provisioner=raw.get("provisioner") or "",
        wait_for_first_consumer=raw.get("volumeBindingMode") == "WaitForFirstConsumer",
        topologies=raw.get("allowedTopologies") or (),
    )


def _volume_spec(spec: Mapping[str, Any], annotations: Mapping[str, str]) -> VolumeSpec:
    # The annotation predates the field and takes precedence.
    class_name = annotations.get(names.BETA_STORAGE_CLASS, spec.get("storageClassName"))
    return VolumeSpec(
        class_name or "", spec.get("volumeMode") or _FILESYSTEM, spec.get("volumeAttributesClassName") or ""
    )
