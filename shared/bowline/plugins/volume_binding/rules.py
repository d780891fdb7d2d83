"""The required state of a pod's volumes before the bind, and the writes that lead to it. Pure.

Three questions, in the order of an evaluation:

- ``check_claim``: whether the PVC can be used at all, and what is missing. The result is a Status that ends the
  evaluation (WAIT, FATAL), or the next step: ``Bound``, ``ProvisioningStarted``, ``Unbound``;
- ``check_volume``: whether the volume of a bound PVC can be used on the node;
- ``choose``: for the unbound PVCs, whose volume depends on the pod's node, which volume or provisioner to use.

``claim_ref_patch`` and ``selected_node_patch`` are the only writes. The PV controller does the rest and expects its
own format: without the annotation bound-by-controller it never clears a stale claimRef; with a wrong UID in claimRef
it reclaims the volume and deletes its data.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from bowline.api import names
from bowline.api.meta import Object, ObjectKey, ObjectRef, ObjectUID, uid_of
from bowline.api.pod_volumes import PodVolume
from bowline.api.selectors import MAX_REQUIREMENTS, Node, topologies_admit
from bowline.framework.interface.status import Status, Waiting
from bowline.framework.interface.waiting import PREREQUISITE
from bowline.framework.reason import Reason, Suggestion
from bowline.plugins.volume_binding.matching import find_volume
from bowline.plugins.volume_binding.volumes import PersistentVolumeClaim, StorageClass, Volume


@dataclass(frozen=True, slots=True)
class Bound:
    """The PVC is bound."""

    claim: PersistentVolumeClaim


@dataclass(frozen=True, slots=True)
class ProvisioningStarted:
    """Provisioning for the PVC is requested on this node."""

    claim: PersistentVolumeClaim


@dataclass(frozen=True, slots=True)
class Unbound:
    """The PVC has no volume; the pod's node determines which it gets."""

    claim: PersistentVolumeClaim
    cls: StorageClass


@dataclass(frozen=True, slots=True)
class BindVolume:
    """Reserve this volume for the PVC."""

    claim: PersistentVolumeClaim
    volume: Volume


@dataclass(frozen=True, slots=True)
class Provision:
    """Request provisioning for the PVC."""

    claim: PersistentVolumeClaim


Choice = BindVolume | Provision


def node_conflict(why: str) -> Status:
    """Return the failure of a volume that conflicts with the node."""
    return Status.fatal(why, Reason.VOLUME_CONFLICT, Suggestion.RESCHEDULE_ELSEWHERE)


def waits(
    reasons: Iterable[str],
    on: Iterable[ObjectRef],
    timeout: timedelta | None = PREREQUISITE,
    suggestion: Suggestion | None = None,
) -> Waiting:
    """Return one wait for several PVCs. ``timeout`` None: the setting ``binding.waitTimeout``."""
    return Waiting(tuple(reasons), wake_on=tuple(on), timeout=timeout, suggestion=suggestion)


# --- PVCs ---

# Of a pod: each unbound one is compared with the free volumes of its class, and no node attaches more.
MAX_CLAIMS = 128


def check_count(volumes: Sequence[PodVolume]) -> Status:
    """Check how many PVCs the pod mounts."""
    if len(volumes) <= MAX_CLAIMS:
        return Status.ok()
    why = f"the pod mounts {len(volumes)} claims, and at most {MAX_CLAIMS} are bound; mount fewer"
    return Status.fatal(why, Reason.INVALID, Suggestion.DELETE_POD)


def check_claim(
    volume: PodVolume, claim: PersistentVolumeClaim | None, pod: Object
) -> Status | Bound | PersistentVolumeClaim:
    """Check a PVC without class and node. Returns the PVC itself if those are to be checked next."""
    ref = volume.ref
    if claim is None:
        remedy = f" yet, for the pod's ephemeral volume {volume.volume}" if volume.ephemeral else ": create it"
        return waits([f"{ref} does not exist{remedy}"], [volume.ref])
    if volume.ephemeral:
        foreign = _owner_conflict(volume, claim, pod)
        if foreign is not None:
            return foreign
    if claim.deleting:
        why = f"{ref} is being deleted; when it is gone, create it again, or let the pod mount another one"
        return Status.fatal(why, Reason.VOLUME_CONFLICT)
    if claim.phase == "Lost":
        why = f"{ref} has lost its volume {claim.volume_name}; restore the volume, or create the claim again"
        return Status.fatal(why, Reason.VOLUME_CONFLICT)
    return Bound(claim) if claim.bound else claim


def _owner_conflict(volume: PodVolume, claim: PersistentVolumeClaim, pod: Object) -> Status | None:
    """Return the failure of a PVC with an ephemeral volume's name that the pod does not own; None if it does."""
    owner, ref = claim.owner or {}, volume.ref
    if owner.get("kind") == "Pod" and owner.get("uid") == uid_of(pod):
        return None
    if owner.get("kind") == "Pod" and owner.get("name") == pod["metadata"]["name"]:
        # Normal after each restart of a StatefulSet's pod: the garbage collector soon deletes the old PVC.
        return waits([f"{ref} still belongs to an earlier pod of this name"], [claim.ref])
    why = (
        f"{ref} was not made for the pod's ephemeral volume {volume.volume} but has its name, and its "
        "data may belong to another workload; rename the pod or the volume, or delete the claim"
    )
    return Status.fatal(why, Reason.VOLUME_CONFLICT, Suggestion.DELETE_POD)


def check_unbound(
    claim: PersistentVolumeClaim, cls: StorageClass | None, node: Node, requested_before: bool
) -> Status | ProvisioningStarted | Unbound:
    """Check a PVC without a volume. ``requested_before``: provisioning here was already requested for this pod."""
    if cls is None or not cls.wait_for_first_consumer or claim.volume_name:
        return _bound_by_others(claim, cls)
    ref = claim.ref
    if claim.selected_node == node.name:
        return _provisioning_error(claim, cls, node) or ProvisioningStarted(claim)
    if claim.selected_node:
        return node_conflict(f"provisioning of a volume for {ref} was requested on node {claim.selected_node}")
    if requested_before:
        why = (
            f"the provisioner {cls.provisioner} cannot create a volume for {ref} on the selected node: "
            "it has removed the annotation selected-node"
        )
        return node_conflict(why)
    if claim.is_selector_too_large:
        why = (
            f"{ref} has a selector of more than {MAX_REQUIREMENTS} requirements and values, which is not "
            "evaluated; create the claim with a shorter one"
        )
        return Status.fatal(why, Reason.INVALID)
    return Unbound(claim, cls)


def _provisioning_error(claim: PersistentVolumeClaim, cls: StorageClass, node: Node) -> Status | None:
    """Return the failure of a PVC that cannot be provisioned on the node; None if it can."""
    if not cls.provisions:
        why = (
            f"{claim.ref} requests a volume on node {node.name}, but StorageClass {cls.name} has no "
            f"provisioner; remove the claim's annotation {names.SELECTED_NODE}, or delete the claim"
        )
        return Status.fatal(why, Reason.VOLUME_CONFLICT)
    if not topologies_admit(cls.topologies, node.labels):
        return node_conflict(
            f"{claim.ref} cannot get a volume on the selected node: StorageClass {cls.name} allows other "
            "topologies only"
        )
    return None


def _bound_by_others(claim: PersistentVolumeClaim, cls: StorageClass | None) -> Status:
    """Return the WAIT for a PVC that is bound independently of its pods."""
    ref, class_name, objects = claim.ref, claim.spec.class_name, [claim.ref]
    if claim.volume_name:
        why = f"{ref} names volume {claim.volume_name} and is not bound to it: that must exist, fit and be free"
        objects.append(ObjectRef("v1", "PersistentVolume", ObjectKey("", claim.volume_name)))
    elif not class_name:
        why = f"{ref} has no StorageClass and is not bound to a volume yet"
    elif cls is None:
        why = f"StorageClass {class_name} of {ref} does not exist: create it, or the claim with another class"
        objects.append(ObjectRef("storage.k8s.io/v1", "StorageClass", ObjectKey("", class_name)))
    else:
        why = f"{ref} has no volume yet, although StorageClass {class_name} provides volumes at once (Immediate)"
    return waits([why], objects)


# --- volumes ---


def check_reserved(claim: PersistentVolumeClaim, volume: Volume) -> Status | None:
    """Return the failure of a volume reserved by this request whose claimRef has changed; None if it has not."""
    if volume.deleting or (volume.claim == claim.key and volume.claim_uid == claim.uid):
        return None
    return node_conflict(
        f"volume {volume.name} was reserved for {claim.ref}, and its claimRef has been changed since; the "
        "volume controller or an administrator has withdrawn it"
    )


def check_volume(claim: PersistentVolumeClaim, volume: Volume | None, node: Node) -> Status:
    """Check the volume of a bound PVC: OK, or why the pod cannot use it on the node."""
    ref = claim.ref
    if volume is None:
        why = f"volume {claim.volume_name} of {ref} does not exist; restore it, or create the claim again"
        return Status.fatal(why, Reason.VOLUME_CONFLICT)
    if not volume.reaches(node):
        return node_conflict(f"volume {volume.name} of {ref} cannot be used on the selected node (node affinity)")
    return Status.ok()


# --- choose ---

# Comparisons of claims and volumes without a pause, and the claims for which that does not count: how many volumes a
# cluster has is no choice of a tenant.
MAX_PAIRS, FEW_CLAIMS = 16_384, 16


def choose(
    unbound: Sequence[Unbound],
    node: Node,
    volumes: Iterable[Volume],
    is_taken: Callable[[Volume, PersistentVolumeClaim], bool],
) -> list[Choice] | Status:
    """Choose for all the PVCs or for none: a write for only some of them would serve no bind.

    ``is_taken``: whether another request is about to write the volume for another PVC.
    """
    volumes = list(volumes)
    if len(unbound) > FEW_CLAIMS and len(unbound) * len(volumes) > MAX_PAIRS:
        why = (
            f"the pod mounts {len(unbound)} claims without a volume, each to be compared with {len(volumes)} free "
            f"volumes, and at most {MAX_PAIRS} pairs are compared; mount at most {FEW_CLAIMS} such claims"
        )
        return Status.fatal(why, Reason.INVALID, Suggestion.DELETE_POD)
    mine: set[str] = set()
    choices: list[Choice] = []
    # Smallest first, so that a small PVC does not take the only volume that is large enough for another.
    for wants in sorted(unbound, key=lambda u: (u.claim.size, u.claim.key)):
        claim, cls = wants.claim, wants.cls
        match = find_volume(claim, node, volumes, lambda v, c=claim: v.name in mine or is_taken(v, c))  # type: ignore[misc]
        if match.volume is not None:
            mine.add(match.volume.name)
            choices.append(BindVolume(claim, match.volume))
        elif cls.provisions:
            conflict = _provisioning_error(claim, cls, node)
            if conflict is not None:
                return conflict
            choices.append(Provision(claim))
        elif match.soon is not None:
            why = f"volume {match.soon.name} matches {claim.ref} but is not Available yet"
            return waits([why], [match.soon.ref, claim.ref], suggestion=Suggestion.RESCHEDULE_ELSEWHERE)
        else:
            return node_conflict(_no_volume(claim))
    return choices


def _no_volume(claim: PersistentVolumeClaim) -> str:
    # Without the node: where no node has one, the cause is the same for each that is tried.
    modes = ", ".join(sorted(claim.access_modes))
    kind = f"{claim.spec.mode} PersistentVolume of class {claim.spec.class_name} with at least {claim.size_text}"
    has_selector = claim.selector is None or not claim.selector.selects({})
    labels = " and labels that its selector selects" if has_selector else ""
    return f"the node can use no free {kind}, {modes}{labels}, as {claim.ref} requests: create one"


# --- writes ---


def claim_ref_patch(volume: Volume, claim: PersistentVolumeClaim) -> dict[str, Any] | None:
    """Return the merge patch that reserves the volume for the PVC; None if it is reserved.

    With the UID the controller binds the two immediately; without it only at its next resync.
    """
    if volume.claim == claim.key and volume.claim_uid == claim.uid:
        return None
    metadata: dict[str, Any] = {"resourceVersion": volume.version, "uid": volume.uid}
    if not volume.is_for(claim):
        # Not on a volume reserved for the PVC by an administrator: the controller must not release that one.
        metadata["annotations"] = {names.BOUND_BY_CONTROLLER: "yes"}
    reference = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": claim.key.namespace,
        "name": claim.key.name,
        "uid": claim.uid,
        "resourceVersion": claim.version,
    }
    return {"metadata": metadata, "spec": {"claimRef": reference}}


def selected_node_patch(
    claim: PersistentVolumeClaim, node: str | None, requested_by: ObjectUID | None
) -> dict[str, Any]:
    """Return the merge patch that requests provisioning on the node, or withdraws the request (None, None).

    ``requested_by``: the UID of the BindRequest, recorded beside it. Other annotations are kept.
    """
    return {
        "metadata": {
            "uid": claim.uid,
            "resourceVersion": claim.version,
            "annotations": {names.SELECTED_NODE: node, names.PREPARED_FOR: requested_by},
        }
    }


# --- messages ---


def waits_for_volumes(
    binding: Sequence[BindVolume],
    provisioning: Sequence[PersistentVolumeClaim],
    timeout: timedelta | None,
) -> Waiting:
    """Return the wait while the controller binds and provisioners create volumes."""
    reasons = [f"{choice.claim.ref} is being bound to volume {choice.volume.name}" for choice in binding]
    reasons += [
        f"the provisioner of StorageClass {claim.spec.class_name} was asked for a volume for {claim.ref} and has not "
        "answered"
        for claim in provisioning
    ]
    # With the versions that its own writes returned, so that only later changes wake the request.
    on = [ref for choice in binding for ref in (choice.claim.ref, choice.volume.ref)]
    return waits(
        reasons, [*on, *(claim.ref for claim in provisioning)], timeout, suggestion=Suggestion.RESCHEDULE_ELSEWHERE
    )
