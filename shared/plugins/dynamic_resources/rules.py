"""What a pod's resource claims must look like before it is bound, and after it is not: claim in, next write out.

Pure. A claim is judged as it is stored now, never by what an earlier pass did, so that the same call serves the first
pass, the pass after a conflict and the pass after a crash. Each function answers one question: may the pod have the
claim at all (``objection``) and use it on its node (``unreachable``), what is the next thing to write
(``next_write``, ``next_release``), are its devices ready (``readiness``). The order of the writes is the promise: the
finalizer stands before anything is allocated and goes after nothing is, or a claim could vanish, or stay allocated,
under a running pod.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from shared.api import names
from shared.api.bindrequest import BindRequestSpec
from shared.api.field_error import FieldError
from shared.api.meta import Object, ObjectKey, ObjectUID, format_time, is_deleting, uid_of
from shared.api.selectors import Node, node_selector_admits
from shared.framework.binding.groups import merge_waits
from shared.framework.status import Code, Reason, Status, Suggestion
from shared.framework.waiting import PREREQUISITE
from shared.plugins.dynamic_resources.claim import (
    allocation_of,
    claim_ref,
    consumers_of,
    device_of,
    entry_for,
    finalizers_of,
    is_controlled_by,
    pod_ref,
    requests_devices,
    results_of,
    same_devices,
    shown_devices,
    status_of,
    true_conditions,
    uids_of,
)

# The API server's own limit on status.reservedFor.
MAX_CONSUMERS = 256


@dataclass(frozen=True, slots=True)
class Wanted:
    """One claim the pod needs.

    ``allocation`` is what the request decided. Without devices it decides nothing: the request names the claim and
    leaves its allocation open, as KAI-Scheduler does when its allocator fails. None: the request has no entry for the
    claim, which is then read and never written.
    """

    label: str  # how messages call it
    key: ObjectKey
    allocation: Mapping[str, Any] | None
    of_pod: bool  # made for this pod alone, from a template or for its extended resources


@dataclass(frozen=True, slots=True)
class Finalizers:
    """Write: these are to be the claim's finalizers."""

    finalizers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClaimStatus:
    """Write: this is to be the claim's whole status."""

    status: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Delete:
    """Write: the claim is to go."""


Write = Finalizers | ClaimStatus | Delete


def request_faults(spec: BindRequestSpec) -> list[FieldError]:
    """Return what is wrong with the allocations themselves, whatever the pod."""
    given = [allocation.name for allocation in spec.resource_claim_allocations]
    return [
        FieldError(
            "dynamic_resources/allocation-duplicate",
            f"spec.resourceClaimAllocations[{index}].name",
            name,
            "a claim has one allocation; leave one of them out",
        )
        for index, name in enumerate(given)
        if name in given[:index]
    ]


def request_warnings(spec: BindRequestSpec) -> list[FieldError]:
    """Return which entries leave a claim's devices open.

    Not an error: whether the claim is allocated already cannot be seen here. And KAI-Scheduler, whose request is
    rejected, makes the same one in its next cycle; a request that ends Failed is decided again.
    """
    return [
        FieldError(
            "dynamic_resources/allocation-missing",
            f"spec.resourceClaimAllocations[{index}].allocation",
            given.allocation,
            f"decides no device for claim {given.name}: the request fails unless the claim is allocated already or "
            "requests no device; set devices.results",
            is_warning=True,
        )
        for index, given in enumerate(spec.resource_claim_allocations)
        if not results_of(given.allocation)
    ]


def wanted_claims(pod: Object, spec: BindRequestSpec) -> tuple[Wanted | Status, ...]:
    """Return the claims of the pod by their real names; for one that cannot be named, why: WAIT or FATAL."""
    faults = request_faults(spec)
    if faults:
        return (Status.fatal("; ".join(map(str, faults)), Reason.INVALID),)
    allocations = {given.name: given.allocation or {} for given in spec.resource_claim_allocations}
    entries = pod["spec"].get("resourceClaims") or ()
    unknown = allocations.keys() - {entry["name"] for entry in entries}
    if unknown:
        listed = ", ".join(sorted(unknown))
        why = f"spec.resourceClaimAllocations: {listed}: is no entry of the pod's spec.resourceClaims"
        return (Status.fatal(why, Reason.INVALID),)
    made = {entry["name"]: entry for entry in (pod.get("status") or {}).get("resourceClaimStatuses") or ()}
    named = [_named(pod, entry, made, allocations.get(entry["name"])) for entry in entries]
    return tuple(one for one in named if one is not None)


def _named(
    pod: Object, entry: Mapping[str, Any], made: Mapping[str, Any], allocation: Mapping[str, Any] | None
) -> Wanted | Status | None:
    """Return one claim of the pod; None if it turned out that the pod needs none."""
    namespace, name = pod["metadata"]["namespace"], entry["name"]
    label = f"claim {name} of the pod"
    direct = entry.get("resourceClaimName")
    if direct:
        return Wanted(f"{label} ({direct})", ObjectKey(namespace, direct), allocation, of_pod=False)
    if name not in made:
        return Status.wait(f"{label} is not made from its template yet", pod_ref(pod), timeout=PREREQUISITE)
    generated = made[name].get("resourceClaimName")
    if generated:
        return Wanted(f"{label} ({generated})", ObjectKey(namespace, generated), allocation, of_pod=True)
    if not results_of(allocation):
        return None
    why = f"spec.resourceClaimAllocations: {name}: the pod's status says that it needs no such claim"
    return Status.fatal(why, Reason.INVALID)


# --- taking a claim ---


def next_take(
    claim: Object, wanted: Wanted, pod: Object, now: datetime, bind_timeout: timedelta | None = None
) -> Write | Status:
    """Return the next write that makes the claim the pod's; or, when there is none, what is to be said of it.

    ``bind_timeout`` is how long devices may take to get ready; None: the setting ``binding.waitTimeout``.
    """
    against = objection(claim, wanted, pod)
    if against is not None:
        return against
    return next_write(claim, wanted, pod, now) or readiness(claim, wanted, bind_timeout)


def missing(wanted: Wanted) -> Status:
    """Return what it means that the claim is not there: somebody has still to make it."""
    return Status.wait(f"{wanted.label} does not exist yet", claim_ref(wanted.key), timeout=PREREQUISITE)


def objection(claim: Object, wanted: Wanted, pod: Object) -> Status | None:
    """Return why the pod can never be bound with this claim; None if it may be."""
    if wanted.of_pod and not is_controlled_by(claim, uid_of(pod)):
        return _conflict(f"{wanted.label} belongs to somebody else; delete it, so that it is made anew")
    if is_deleting(claim):
        return _conflict(f"{wanted.label} is being deleted")
    consumers = consumers_of(claim)
    reserved = uid_of(pod) in uids_of(consumers)
    against = _against_allocation(claim, wanted, reserved=reserved)
    if against is None and not reserved and len(consumers) >= MAX_CONSUMERS:
        return _conflict(f"{wanted.label} has {len(consumers)} consumers, and Kubernetes allows {MAX_CONSUMERS}")
    return against


def _against_allocation(claim: Object, wanted: Wanted, *, reserved: bool) -> Status | None:
    """Return why the allocations, stored and decided, do not give the pod its devices; None if they do."""
    stored = allocation_of(claim)
    if stored is not None and not results_of(stored) and requests_devices(claim):
        return _conflict(f"{wanted.label} is allocated to no device although it requests some; delete the claim")
    if wanted.allocation is None:
        return None if reserved and stored is not None else _undecided(claim, wanted)
    if not results_of(wanted.allocation):
        # An allocated claim leaves nothing to decide: it is shared as it is.
        return _undecided(claim, wanted) if stored is None and requests_devices(claim) else None
    if stored is not None and not same_devices(stored, wanted.allocation):
        has, wants = shown_devices(stored), shown_devices(wanted.allocation)
        why = f"{wanted.label} is already allocated to {has}; the request wants {wants}"
        return _conflict(why, Suggestion.RESCHEDULE_ELSEWHERE)
    return None


def unreachable(label: str, allocation: Mapping[str, Any], node: Node) -> Status | None:
    """Return why the pod cannot use its devices on its node; None if it can.

    Nobody after this looks: the pod would be bound, and its kubelet would try for ever to prepare them.
    """
    if node_selector_admits(allocation.get("nodeSelector"), node):
        return None
    devices = shown_devices(allocation)
    why = f"{label}: {devices} cannot be used on node {node.name} (nodeSelector of the allocation)"
    return _conflict(why, Suggestion.RESCHEDULE_ELSEWHERE)


def _undecided(claim: Object, wanted: Wanted) -> Status:
    has = "is not allocated" if allocation_of(claim) is None else "is not reserved for the pod"
    if wanted.allocation is None:
        why = f"{wanted.label} {has}, and spec.resourceClaimAllocations has no entry for it; give it one"
    else:
        why = (
            f"{wanted.label} {has}, and its entry in spec.resourceClaimAllocations decides no device; create a "
            "request whose entry has allocation.devices.results"
        )
    return Status.fatal(why, Reason.INVALID)


def next_write(claim: Object, wanted: Wanted, pod: Object, now: datetime) -> Write | None:
    """Return the next write that makes the claim the pod's; None when it is. Only for a claim without objection."""
    if wanted.allocation is None:
        return None
    finalizers = finalizers_of(claim)
    if names.RESOURCE_CLAIM_PROTECTION not in finalizers:
        return Finalizers((*finalizers, names.RESOURCE_CLAIM_PROTECTION))
    stored, consumers = allocation_of(claim), consumers_of(claim)
    if stored is not None and uid_of(pod) in uids_of(consumers):
        return None
    # The time says since when devices prepare themselves; a stored allocation cannot be changed any more.
    fresh = {**wanted.allocation, "allocationTimestamp": format_time(now)}
    allocation = fresh if stored is None else stored
    others = [entry for entry in consumers if entry.get("uid") != uid_of(pod)]
    return ClaimStatus({**status_of(claim), "allocation": allocation, "reservedFor": [*others, entry_for(pod)]})


def readiness(claim: Object, wanted: Wanted, bind_timeout: timedelta | None = None) -> Status:
    """Return whether the allocated devices say that the pod may come: OK, WAIT, or FATAL if one has failed."""
    pending = []
    for result in results_of(allocation_of(claim) or {}):
        waits_for: Sequence[str] = result.get("bindingConditions") or ()
        if not waits_for:
            continue
        true = true_conditions(claim, result)
        device = device_of(result)
        failed = sorted(true & set(result.get("bindingFailureConditions") or ()))
        if failed:
            return _conflict(
                f"{wanted.label}: device {device} reports {', '.join(failed)}", Suggestion.RESCHEDULE_ELSEWHERE
            )
        lacking = [word for word in waits_for if word not in true]
        if lacking:
            pending.append(f"{device} to report {', '.join(lacking)}")
    if pending:
        return Status.wait(
            f"{wanted.label}: waiting for device {'; '.join(pending)}",
            claim_ref(wanted.key, claim),
            timeout=bind_timeout,
            suggestion=Suggestion.RESCHEDULE_ELSEWHERE,
        )
    return Status.ok()


def together(answers: Iterable[Status]) -> Status:
    """Return what the answers for several claims are for the pod: the first failure, else all waits, else OK."""
    pending = [answer for answer in answers if answer.code is not Code.OK]
    failures = [answer for answer in pending if answer.code is not Code.WAIT]
    if failures or not pending:
        return failures[0] if failures else Status.ok()
    return replace(merge_waits(pending), plugin="")


# --- giving it back ---


def next_release(claim: Object, wanted: Wanted, pod_uid: ObjectUID) -> Write | None:
    """Return the next write that frees the claim of an unbound pod; None when nothing of it is left.

    A claim whose devices are not the ones that the request decided is not touched: it belongs to another decision.
    The last consumer takes the allocation and then the finalizer along, as Kubernetes does when a last pod ends.
    """
    stored, consumers = allocation_of(claim), consumers_of(claim)
    if wanted.allocation is None:
        return None
    if stored is None:
        return None if consumers else _unprotected(claim)
    if pod_uid not in uids_of(consumers):
        return None
    if results_of(wanted.allocation) and not same_devices(stored, wanted.allocation):
        return None
    others = [entry for entry in consumers if entry.get("uid") != pod_uid]
    if others:
        return ClaimStatus({**status_of(claim), "reservedFor": others})
    freed = ("allocation", "reservedFor", "devices")
    return ClaimStatus({key: value for key, value in status_of(claim).items() if key not in freed})


def next_removal(claim: Object, pod_uid: ObjectUID) -> Write | None:
    """Return the next write that removes a claim made for the pod's extended resources; None when there is none."""
    annotations = claim["metadata"].get("annotations") or {}
    if not is_controlled_by(claim, pod_uid) or annotations.get(names.EXTENDED_RESOURCE_CLAIM) != "true":
        return None
    return _unprotected(claim) if is_deleting(claim) else Delete()


def _conflict(why: str, suggestion: Suggestion | None = None) -> Status:
    return Status.fatal(why, Reason.DEVICE_CONFLICT, suggestion)


def _unprotected(claim: Object) -> Finalizers | None:
    kept = tuple(f for f in finalizers_of(claim) if f != names.RESOURCE_CLAIM_PROTECTION)
    return Finalizers(kept) if len(kept) < len(finalizers_of(claim)) else None
