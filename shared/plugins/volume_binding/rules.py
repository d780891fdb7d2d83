"""What a pod's volumes must be before it is bound, and what is to be written so that they become so. Pure.

Three questions, in the order in which a look asks them:

- ``judge_claim``: may the claim be used at all, and what is missing. Its answer is a Status that ends the look (WAIT,
  FATAL), or what to do next: ``Bound``, ``Asked``, ``Unbound``;
- ``judge_volume``: may the volume of a bound claim be used on the node;
- ``choose``: for the unbound claims, whose volume is chosen by the pod's node, which volume or whom to ask for one.

``claim_ref_patch`` and ``selected_node_patch`` are the only writes there are. The volume controller does the rest,
and takes what is not written its own way for a mistake: without the annotation a volume keeps its claimRef when the
claim gets another one; with another UID in it, it is reclaimed with its data.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from shared.api import names
from shared.api.meta import Object, ObjectKey, ObjectRef, uid_of
from shared.api.quantity import parse_quantity
from shared.api.selectors import Node, selector_admits, topologies_admit
from shared.framework.status import Code, Reason, Status, Suggestion
from shared.framework.waiting import PREREQUISITE
from shared.plugins.volume_binding.matching import find_volume
from shared.plugins.volume_binding.volumes import Claim, Class, Volume, Wanted


@dataclass(frozen=True, slots=True)
class Bound:
    """The claim has its volume."""

    claim: Claim


@dataclass(frozen=True, slots=True)
class Asked:
    """A volume is being made for the claim, for the right node."""

    claim: Claim


@dataclass(frozen=True, slots=True)
class Unbound:
    """The claim has no volume; the pod's node decides which it gets."""

    claim: Claim
    cls: Class


@dataclass(frozen=True, slots=True)
class HandedBack:
    """The provisioner cannot make a volume on the node, and has said so; final for this decision."""

    status: Status


@dataclass(frozen=True, slots=True)
class TakeVolume:
    """Keep this volume for the claim."""

    claim: Claim
    volume: Volume


@dataclass(frozen=True, slots=True)
class AskProvisioner:
    """Have a volume made for the claim."""

    claim: Claim


Choice = TakeVolume | AskProvisioner


def elsewhere(why: str) -> Status:
    """Return the FATAL of a volume that does not go with the node."""
    return Status.fatal(why, Reason.VOLUME_CONFLICT, Suggestion.RESCHEDULE_ELSEWHERE)


def waits(
    reasons: Iterable[str],
    on: Iterable[ObjectRef],
    timeout: timedelta | None = PREREQUISITE,
    suggestion: Suggestion | None = None,
) -> Status:
    """Return one WAIT for several claims. ``timeout`` None: the setting ``binding.waitTimeout``."""
    return Status(Code.WAIT, tuple(reasons), wake_on=tuple(on), timeout=timeout, suggestion=suggestion)


# --- a claim ---


def judge_claim(wanted: Wanted, claim: Claim | None, pod: Object) -> Status | Bound | Claim:
    """Judge a claim as far as that needs neither its class nor the node; the claim itself: go on with those."""
    name = wanted.claim.name
    if claim is None:
        made = f" for the pod's ephemeral volume {wanted.volume}" if wanted.ephemeral else ""
        return waits([f"claim {name}{made} does not exist yet"], [wanted.ref])
    if wanted.ephemeral:
        foreign = _not_made_for(wanted, claim, pod)
        if foreign is not None:
            return foreign
    if claim.deleting:
        why = f"claim {name} is being deleted; make it anew, or let the pod mount another one"
        return Status.fatal(why, Reason.VOLUME_CONFLICT)
    if claim.phase == "Lost":
        why = f"claim {name} has lost its volume {claim.volume_name}; restore the volume, or make the claim anew"
        return Status.fatal(why, Reason.VOLUME_CONFLICT)
    return Bound(claim) if claim.bound else claim


def _not_made_for(wanted: Wanted, claim: Claim, pod: Object) -> Status | None:
    """Return why the claim under an ephemeral volume's name is not the pod's; None if it is."""
    owner, name = claim.owner or {}, wanted.claim.name
    if owner.get("kind") == "Pod" and owner.get("uid") == uid_of(pod):
        return None
    if owner.get("kind") == "Pod" and owner.get("name") == pod["metadata"]["name"]:
        # As after every restart of a StatefulSet's pod: the garbage collector removes it in a moment.
        return waits([f"claim {name} still belongs to an earlier pod of this name"], [claim.ref])
    why = (
        f"claim {name} was not made for the pod's ephemeral volume {wanted.volume} but has its name, and its "
        "data may be somebody else's; rename the pod or the volume, or delete the claim"
    )
    return Status.fatal(why, Reason.VOLUME_CONFLICT, Suggestion.DELETE_POD)


def judge_unbound(
    claim: Claim, cls: Class | None, node: Node, asked_before: bool
) -> Status | HandedBack | Asked | Unbound:
    """Judge a claim that has no volume yet. ``asked_before``: for this pod, a volume was asked for on this node."""
    if cls is None or not cls.delayed or claim.volume_name:
        return _bound_by_others(claim, cls)
    name = claim.key.name
    if claim.selected_node == node.name:
        return _against_provisioning(claim, cls, node) or Asked(claim)
    if claim.selected_node:
        return elsewhere(f"a volume for claim {name} is being made for node {claim.selected_node}")
    if asked_before:
        why = (
            f"the provisioner {cls.provisioner} cannot make a volume for claim {name} on node {node.name}: "
            "it has handed the decision back"
        )
        return HandedBack(elsewhere(why))
    return Unbound(claim, cls)


def _against_provisioning(claim: Claim, cls: Class, node: Node) -> Status | None:
    """Return why no volume can be made for the claim on the node; None if one can."""
    if not cls.provisions:
        why = (
            f"claim {claim.key.name} asks for a volume on node {node.name}, but StorageClass {cls.name} has no "
            f"provisioner; remove the claim's annotation {names.SELECTED_NODE}, or delete the claim"
        )
        return Status.fatal(why, Reason.VOLUME_CONFLICT)
    if not topologies_admit(cls.topologies, node.labels):
        return elsewhere(
            f"claim {claim.key.name} cannot get a volume on node {node.name}: StorageClass {cls.name} allows other "
            "topologies only"
        )
    return None


def _bound_by_others(claim: Claim, cls: Class | None) -> Status:
    """Return the WAIT for a claim that is bound without regard to its pods."""
    name, class_name, on = claim.key.name, claim.needs.class_name, [claim.ref]
    if claim.volume_name:
        why = f"claim {name} is not bound to its volume {claim.volume_name} yet"
    elif not class_name:
        why = f"claim {name} has no StorageClass and is not bound to a volume yet"
    elif cls is None:
        why = f"claim {name} is not bound and its StorageClass {class_name} does not exist"
        on.append(ObjectRef("storage.k8s.io/v1", "StorageClass", ObjectKey("", class_name)))
    else:
        why = f"claim {name} is not bound yet; StorageClass {class_name} binds it without waiting for a pod"
    return waits([why], on)


# --- a volume ---


def judge_taken(claim: Claim, volume: Volume) -> Status | None:
    """Return why a volume that this request has taken for the claim is not the claim's any more; None if it is."""
    if volume.deleting or (volume.claim == claim.key and volume.claim_uid == claim.uid):
        return None
    return elsewhere(
        f"volume {volume.name} was kept for claim {claim.key.name}, and its claimRef has been changed since; the "
        "volume controller or an administrator has withdrawn it"
    )


def judge_volume(claim: Claim, volume: Volume | None, node: Node) -> Status:
    """Judge the volume of a bound claim: OK, or why the pod cannot have it on the node."""
    name = claim.key.name
    if volume is None:
        why = f"volume {claim.volume_name} of claim {name} does not exist; restore it, or make the claim anew"
        return Status.fatal(why, Reason.VOLUME_CONFLICT)
    if not volume.reaches(node):
        return elsewhere(f"volume {volume.name} of claim {name} cannot be used on node {node.name} (node affinity)")
    return Status.ok()


# --- choosing ---


def choose(
    unbound: Sequence[Unbound],
    node: Node,
    volumes: Iterable[Volume],
    taken: Callable[[Volume, Claim], bool],
) -> list[Choice] | Status:
    """Choose for all the claims or for none: what could be written for some would only have to stay in vain.

    ``taken``: whether somebody else is about to write the volume, for another claim than this one.
    """
    volumes = list(volumes)
    mine: set[str] = set()
    choices: list[Choice] = []
    # Smallest first, so that a small claim does not take the only volume that is large enough for another.
    for wants in sorted(unbound, key=lambda u: (u.claim.size, u.claim.key)):
        claim, cls = wants.claim, wants.cls
        found = find_volume(claim, node, volumes, lambda v, c=claim: v.name in mine or taken(v, c))  # type: ignore[misc]
        if found.volume is not None:
            mine.add(found.volume.name)
            choices.append(TakeVolume(claim, found.volume))
        elif cls.provisions:
            against = _against_provisioning(claim, cls, node)
            if against is not None:
                return against
            choices.append(AskProvisioner(claim))
        elif found.soon is not None:
            why = f"volume {found.soon.name} would do for claim {claim.key.name} but is not available yet"
            return waits([why], [found.soon.ref, claim.ref], suggestion=Suggestion.RESCHEDULE_ELSEWHERE)
        else:
            return elsewhere(_no_volume(claim, node))
    return choices


def _no_volume(claim: Claim, node: Node) -> str:
    wants = f"class {claim.needs.class_name}, at least {claim.size.normalize():f} bytes"
    modes = ", ".join(sorted(claim.access_modes))
    return f"no free volume for claim {claim.key.name} ({wants}, {modes}) can be used on node {node.name}"


# --- writes ---


def claim_ref_patch(volume: Volume, claim: Claim) -> dict[str, Any] | None:
    """Return the merge patch that keeps the volume for the claim; None if it already is.

    The UID makes the controller bind the two at once: a reference without one waits for its next resync.
    """
    if volume.claim == claim.key and volume.claim_uid == claim.uid:
        return None
    metadata: dict[str, Any] = {"resourceVersion": volume.version, "uid": volume.uid}
    if not volume.is_for(claim):
        # Only on volumes that nobody has kept for the claim by hand: such a one is not to be given away again.
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


def selected_node_patch(claim: Claim, node: Node) -> dict[str, Any]:
    """Return the merge patch that asks for a volume on the node; every other annotation stays."""
    return {
        "metadata": {
            "uid": claim.uid,
            "resourceVersion": claim.version,
            "annotations": {names.SELECTED_NODE: node.name},
        }
    }


# --- telling ---


def waits_for_volumes(
    taking: Sequence[TakeVolume], asked: Sequence[Claim], hints: Mapping[str, str], timeout: timedelta | None
) -> Status:
    """Return the WAIT while the controller binds and provisioners make volumes. ``hints`` are by claim name."""
    reasons = [f"claim {take.claim.key.name} is being bound to volume {take.volume.name}" for take in taking]
    reasons += [
        f"a volume for claim {claim.key.name} is being made{hints.get(claim.key.name, '')}" for claim in asked
    ]
    # The volumes in the version that our own write returned: only what others do to them wakes the request.
    on = [ref for take in taking for ref in (take.claim.ref, take.volume.ref)]
    return waits(reasons, [*on, *(claim.ref for claim in asked)], timeout, suggestion=Suggestion.RESCHEDULE_ELSEWHERE)


def capacity_hint(claim: Claim, node: Node, capacities: Iterable[Object]) -> str:
    """Return what the driver's published capacities say against a volume for the claim; empty if nothing.

    Only ever told, never acted on: they lag behind, and a driver may know better.
    """
    sizes = [
        parse_quantity(capacity.get("maximumVolumeSize") or capacity.get("capacity"))
        for capacity in capacities
        if capacity.get("storageClassName") == claim.needs.class_name
        and capacity.get("nodeTopology") is not None
        and selector_admits(capacity["nodeTopology"], node.labels)
    ]
    if sizes and max(sizes) >= claim.size:
        return ""
    most = f"{max(sizes).normalize():f} bytes at most" if sizes else "no room"
    return f"; its driver reports {most} for node {node.name}, of {claim.size.normalize():f} wanted"
