"""The desired state of a pod's ResourceClaims before the bind and after a rollback: claim in, next write out.

Pure. Only the stored claim counts, never what an earlier attempt did, so the same functions serve the first attempt,
the retry after a conflict and the retry after a crash. Each function answers one question: whether the pod may have
the claim (``claim_conflict``) and use it on its node (``unreachable``), the next write (``next_write``,
``next_release``), whether its devices are ready (``readiness``). The order of writes is an invariant: the finalizer
is added before the allocation and removed after it, otherwise a claim could be deleted, or stay allocated, while its
pod runs.

An entry without devices decides nothing, and admission does not refuse it: KAI-Scheduler writes such entries, and a
scheduler whose create is rejected repeats it in each cycle, whereas it decides again after a failure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from bowline.api import names
from bowline.api.bindrequest import BindRequestSpec
from bowline.api.field_error import FieldError
from bowline.api.meta import Object, ObjectKey, ObjectUID, format_time, is_deleting, parse_time, status_of, uid_of
from bowline.api.rule import DenialCause, Rule, Severity
from bowline.api.selectors import Node, node_selector_admits
from bowline.framework.interface.status import Done, Status, Waiting
from bowline.framework.interface.waiting import PREREQUISITE
from bowline.framework.reason import Reason, Suggestion
from bowline.plugins.dynamic_resources.claim import (
    Consumer,
    allocation_of,
    claim_consumer,
    claim_ref,
    consumers_of,
    controller_of,
    device_of,
    finalizers_of,
    is_controlled_by,
    is_pod_group,
    pod_ref,
    requests_devices,
    results_of,
    same_devices,
    shown_devices,
    true_conditions,
    uids_of,
)

ALLOCATION_DUPLICATE: Final = Rule(
    "dynamic_resources/allocation-duplicate",
    "two entries of a BindRequest are for the same claim of the pod",
    cause=DenialCause.DUPLICATE,
    invalid=(
        "{podName: p, selectedNode: node-1, resourceClaimAllocations: [{name: a, allocation: {devices: {results: "
        "[{request: r, driver: d, pool: p, device: d0}]}}}, {name: a, allocation: {devices: {results: "
        "[{request: r, driver: d, pool: p, device: d0}]}}}]}"
    ),
    valid=(
        "{podName: p, selectedNode: node-1, resourceClaimAllocations: [{name: a, allocation: {devices: {results: "
        "[{request: r, driver: d, pool: p, device: d0}]}}}]}"
    ),
)
ALLOCATION_MISSING: Final = Rule(
    "dynamic_resources/allocation-missing",
    "an entry of a BindRequest decides no device, which only an allocated claim permits",
    severity=Severity.WARNS,
    invalid="{podName: p, selectedNode: node-1, resourceClaimAllocations: [{name: a}]}",
    valid=(
        "{podName: p, selectedNode: node-1, resourceClaimAllocations: [{name: a, allocation: {devices: {results: "
        "[{request: r, driver: d, pool: p, device: d0}]}}}]}"
    ),
)

RULES: Final = (
    ALLOCATION_DUPLICATE,
    ALLOCATION_MISSING,
)


# The API server's limit on status.reservedFor.
MAX_CONSUMERS = 256


@dataclass(frozen=True, slots=True)
class RequiredClaim:
    """One claim that the pod needs.

    ``allocation`` is the request's decision. Without devices it decides nothing: the request names the claim and
    leaves its allocation open, as KAI-Scheduler does when its allocator fails. None: the request has no entry for the
    claim, which is then read and never written.

    ``consumer`` is the pod, or its PodGroup if that shares the claim. ``is_generated``: the claim was created for the
    pod or for its PodGroup, from a template or for extended resources.
    """

    label: str  # its name in messages
    key: ObjectKey
    allocation: Mapping[str, Any] | None
    consumer: Consumer
    pod_uid: ObjectUID
    is_generated: bool

    @property
    def is_shared(self) -> bool:
        """Whether the pod's PodGroup shares the claim."""
        return self.consumer.uid != self.pod_uid


@dataclass(frozen=True, slots=True)
class Finalizers:
    """Write: set the claim's finalizers to these."""

    finalizers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClaimStatus:
    """Write: set the claim's whole status to this."""

    status: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Delete:
    """Write: delete the claim."""


Write = Finalizers | ClaimStatus | Delete


def request_errors(spec: BindRequestSpec) -> list[FieldError]:
    """Return the errors of the allocations themselves, independent of the pod."""
    claim_names = [allocation.name for allocation in spec.resource_claim_allocations]
    return [
        FieldError(
            ALLOCATION_DUPLICATE,
            f"spec.resourceClaimAllocations[{index}].name",
            name,
            "a claim has one allocation; leave one of them out",
        )
        for index, name in enumerate(claim_names)
        if name in claim_names[:index]
    ]


def request_warnings(spec: BindRequestSpec) -> list[FieldError]:
    """Return warnings for entries that leave a claim's devices open.

    Not an error: admission does not see whether the claim is allocated already. And KAI-Scheduler, after a rejection,
    creates the same request in its next cycle, whereas it makes a new decision for a request that ends Failed.
    """
    return [
        FieldError(
            ALLOCATION_MISSING,
            f"spec.resourceClaimAllocations[{index}].allocation",
            entry.allocation,
            f"decides no device for claim {entry.name}: the request fails unless the claim is allocated already or "
            "requests no device; set devices.results",
        )
        for index, entry in enumerate(spec.resource_claim_allocations)
        if not results_of(entry.allocation)
    ]


# Of a pod: each is read and written by itself.
MAX_CLAIMS = 128


def required_claims(
    pod: Object, spec: BindRequestSpec, pod_group: Object | None = None
) -> tuple[RequiredClaim | Status, ...]:
    """Return the pod's claims with their actual names; a Status (WAIT or FATAL) for one without a name yet.

    ``pod_group``: the pod's PodGroup, if it has one; the claims that it shares are reserved for it.
    """
    errors = request_errors(spec)
    if errors:
        return (Status.fatal("; ".join(map(str, errors)), Reason.INVALID),)
    allocations = {decision.name: decision.allocation or {} for decision in spec.resource_claim_allocations}
    entries = pod["spec"].get("resourceClaims") or ()
    if len(entries) > MAX_CLAIMS:
        why = f"the pod has {len(entries)} claims, and at most {MAX_CLAIMS} are allocated; create it with fewer"
        return (Status.fatal(why, Reason.INVALID, Suggestion.DELETE_POD),)
    unknown = allocations.keys() - {entry["name"] for entry in entries}
    if unknown:
        listing = ", ".join(sorted(unknown))
        why = f"spec.resourceClaimAllocations: {listing}: is no entry of the pod's spec.resourceClaims"
        return (Status.fatal(why, Reason.INVALID),)
    statuses_by_name = {
        entry["name"]: entry for entry in (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    }
    requirements = [
        _requirement(
            pod, entry, statuses_by_name, allocations.get(entry["name"]), claim_consumer(pod, entry, pod_group)
        )
        for entry in entries
    ]
    return tuple(requirement for requirement in requirements if requirement is not None)


def _requirement(
    pod: Object,
    entry: Mapping[str, Any],
    statuses_by_name: Mapping[str, Any],
    allocation: Mapping[str, Any] | None,
    consumer: Consumer,
) -> RequiredClaim | Status | None:
    """Return one claim of the pod; None if the pod's status records that it needs none."""
    namespace, name, pod_uid = pod["metadata"]["namespace"], entry["name"], uid_of(pod)
    label = f"claim {name} of the pod"
    direct = entry.get("resourceClaimName")
    if direct:
        key = ObjectKey(namespace, direct)
        return RequiredClaim(f"{label} ({direct})", key, allocation, consumer, pod_uid, is_generated=False)
    if name not in statuses_by_name:
        return Status.wait(f"{label} is not created from its template yet", pod_ref(pod), timeout=PREREQUISITE)
    claim_name = statuses_by_name[name].get("resourceClaimName")
    if claim_name:
        key = ObjectKey(namespace, claim_name)
        return RequiredClaim(f"{label} ({claim_name})", key, allocation, consumer, pod_uid, is_generated=True)
    if not results_of(allocation):
        return None
    why = f"spec.resourceClaimAllocations: {name}: by the pod's status it needs no such claim"
    return Status.fatal(why, Reason.INVALID)


# --- reserve ---


def next_reservation(
    claim: Object, requirement: RequiredClaim, now: datetime, bind_timeout: timedelta
) -> Write | Status:
    """Return the next write that reserves the claim for its consumer; if there is none, the resulting Status.

    ``bind_timeout``: how long devices may take to become ready.
    """
    conflict = claim_conflict(claim, requirement)
    if conflict is not None:
        return conflict
    return next_write(claim, requirement, now) or readiness(claim, requirement, now, bind_timeout)


def missing_claim(requirement: RequiredClaim) -> Waiting:
    """Return the WAIT for a claim that does not exist yet."""
    return Status.wait(f"{requirement.label} does not exist yet", claim_ref(requirement.key), timeout=PREREQUISITE)


def claim_conflict(claim: Object, requirement: RequiredClaim) -> Status | None:
    """Return why the pod can never be bound with this claim; None if it can."""
    if requirement.is_generated and not _is_own(claim, requirement):
        return _conflict(_foreign(claim, requirement))
    if is_deleting(claim):
        why = "is being deleted; when it is gone, create it again, or let the pod name another one"
        return _conflict(f"{requirement.label} {why}")
    consumers = consumers_of(claim)
    is_reserved = requirement.consumer.uid in uids_of(consumers)
    conflict = _against_allocation(claim, requirement, is_reserved=is_reserved)
    if conflict is None and not is_reserved and len(consumers) >= MAX_CONSUMERS:
        return _conflict(f"{requirement.label} has {len(consumers)} consumers, and Kubernetes allows {MAX_CONSUMERS}")
    return conflict


def is_first_use(claim: Object, requirement: RequiredClaim) -> bool:
    """Return whether no other pod has the claim: then its devices may still be refused.

    As in kube-scheduler, a claim that others use already is shared as it is.
    """
    consumers = uids_of(consumers_of(claim))
    return allocation_of(claim) is None or (bool(consumers) and set(consumers) <= {requirement.pod_uid})


def _is_own(claim: Object, requirement: RequiredClaim) -> bool:
    """Return whether a generated claim was created for the pod or for the PodGroup that shares it."""
    return any(is_controlled_by(claim, uid) for uid in (requirement.consumer.uid, requirement.pod_uid))


def _foreign(claim: Object, requirement: RequiredClaim) -> str:
    """Return the failure of a generated claim that has another owner.

    It never suggests to delete the claim: its owner may use it.
    """
    owner = controller_of(claim)
    if not owner:
        return (
            f"{requirement.label} has no owner, so it was not created for the pod; delete the pod and create it again"
        )
    label = f"{owner.get('kind')} {owner.get('name')} (UID {owner.get('uid')})"
    remedy = "delete the pod and create it again, so that it gets a claim of its own"
    if is_pod_group(owner):
        remedy = (
            "a pod shares it only if its spec.schedulingGroup names that PodGroup, its entry equals one of the "
            f"PodGroup's spec.resourceClaims, and the cluster serves {names.POD_GROUP_API}; correct the pod"
        )
    return f"{requirement.label} belongs to {label}; {remedy}"


def _against_allocation(claim: Object, requirement: RequiredClaim, *, is_reserved: bool) -> Status | None:
    """Return why the stored and the decided allocation do not give the pod its devices; None if they do."""
    allocation = allocation_of(claim)
    if allocation is not None and not results_of(allocation) and requests_devices(claim):
        return _conflict(f"{requirement.label} is allocated to no device although it requests some; delete the claim")
    if requirement.allocation is None:
        return None if is_reserved and allocation is not None else _no_decision(claim, requirement)
    if not results_of(requirement.allocation):
        # An allocated claim needs no decision: it is shared as it is.
        return _no_decision(claim, requirement) if allocation is None and requests_devices(claim) else None
    if allocation is not None and not same_devices(allocation, requirement.allocation):
        has, wants = shown_devices(allocation), shown_devices(requirement.allocation)
        why = f"{requirement.label} is already allocated to {has}; the request requires {wants}"
        return _conflict(why, Suggestion.RESCHEDULE_ELSEWHERE)
    return None


def unreachable(label: str, allocation: Mapping[str, Any], node: Node) -> Status | None:
    """Return the failure of devices that the pod cannot use on its node; None if it can.

    No later check exists: the pod would be bound, and its kubelet would retry to prepare the devices indefinitely.
    """
    if node_selector_admits(allocation.get("nodeSelector"), node):
        return None
    devices = shown_devices(allocation)
    why = f"{label}: {devices} cannot be used on the selected node (nodeSelector of the allocation)"
    return _conflict(why, Suggestion.RESCHEDULE_ELSEWHERE)


def _no_decision(claim: Object, requirement: RequiredClaim) -> Status:
    has = "is not allocated" if allocation_of(claim) is None else "is not reserved for the pod"
    if requirement.allocation is None:
        why = f"{requirement.label} {has}, and spec.resourceClaimAllocations has no entry for it; add one"
    else:
        why = (
            f"{requirement.label} {has}, and its entry in spec.resourceClaimAllocations decides no device; create a "
            "request whose entry has allocation.devices.results"
        )
    return Status.fatal(why, Reason.INVALID)


def next_write(claim: Object, requirement: RequiredClaim, now: datetime) -> Write | None:
    """Return the next write that reserves the claim; None if it is reserved. Only without a conflict."""
    if requirement.allocation is None:
        return None
    finalizers = finalizers_of(claim)
    if names.RESOURCE_CLAIM_PROTECTION not in finalizers:
        return Finalizers((*finalizers, names.RESOURCE_CLAIM_PROTECTION))
    allocation, consumers = allocation_of(claim), consumers_of(claim)
    consumer = requirement.consumer
    if allocation is not None and consumer.uid in uids_of(consumers):
        return None
    # The timestamp is when the preparation of devices begins; a stored allocation is immutable.
    if allocation is None:
        allocation = {**requirement.allocation, "allocationTimestamp": format_time(now)}
    remaining_consumers = [entry for entry in consumers if entry.get("uid") != consumer.uid]
    return ClaimStatus(
        {**status_of(claim), "allocation": allocation, "reservedFor": [*remaining_consumers, consumer.reference]}
    )


def readiness(claim: Object, requirement: RequiredClaim, now: datetime, bind_timeout: timedelta) -> Status:
    """Return OK if the allocated devices meet their binding conditions, WAIT if not yet, FATAL if one failed.

    As in kube-scheduler the timeout begins with the allocation, whichever pod it was made for.
    """
    pending, allocation = [], allocation_of(claim) or {}
    for result in results_of(allocation):
        waits_for: Sequence[str] = result.get("bindingConditions") or ()
        if not waits_for:
            continue
        device, failures = device_of(result), _failures(claim, result)
        if failures:
            return _conflict(
                f"{requirement.label}: device {device} reports {', '.join(failures)}", Suggestion.RESCHEDULE_ELSEWHERE
            )
        true = true_conditions(claim, result)
        missing = [word for word in waits_for if word not in true]
        if missing:
            pending.append(f"{device} to report {', '.join(missing)}")
    if not pending:
        return Status.ok()
    why, elsewhere = f"{requirement.label}: waiting for device {'; '.join(pending)}", Suggestion.RESCHEDULE_ELSEWHERE
    allocated_at = parse_time(allocation.get("allocationTimestamp"))
    left = bind_timeout - max(now - allocated_at, timedelta()) if allocated_at is not None else None
    if left is not None and left <= timedelta():
        since = f", allocated {(bind_timeout - left).total_seconds():.0f} s ago"
        return Status.fatal(why + since, Reason.WAIT_TIMEOUT, elsewhere)
    ref = claim_ref(requirement.key, claim)
    return Status.wait(why, ref, retry_after=left, timeout=bind_timeout, suggestion=elsewhere)


def has_failed_device(claim: Object) -> bool:
    """Return whether a device reports that it cannot become ready: no attempt binds a pod with it."""
    results = results_of(allocation_of(claim) or {})
    return any(_failures(claim, result) for result in results if result.get("bindingConditions"))


def _failures(claim: Object, result: Mapping[str, Any]) -> list[str]:
    """Return the conditions by which a device with binding conditions reports that it cannot become ready."""
    return sorted(true_conditions(claim, result) & set(result.get("bindingFailureConditions") or ()))


# --- release ---


def next_release(claim: Object, requirement: RequiredClaim, *, is_group_used: bool = True) -> Write | None:
    """Return the next write that releases the claim of an unbound pod; None if nothing is left to release.

    A claim with other devices than the request decided is not touched: it belongs to another decision. With the last
    consumer the allocation is removed and then the finalizer, as Kubernetes does when the last pod ends. Neither is
    removed while the claim is reserved for a PodGroup whose other pods may have these devices (``is_group_used``); if
    none has, both are, whatever was decided: any next decision is for the whole group.
    """
    allocation, consumers, pod_uid = allocation_of(claim), consumers_of(claim), requirement.pod_uid
    if requirement.allocation is None:
        return None
    if allocation is None:
        return None if consumers else unprotection(claim)
    of_allocation = ("allocation", "reservedFor", "devices")
    free = ClaimStatus({key: value for key, value in status_of(claim).items() if key not in of_allocation})
    if is_of_group_alone(claim, requirement) and not is_group_used:
        return free
    is_others = bool(results_of(requirement.allocation)) and not same_devices(allocation, requirement.allocation)
    if pod_uid not in uids_of(consumers) or is_others:
        return None
    remaining_consumers = [entry for entry in consumers if entry.get("uid") != pod_uid]
    if remaining_consumers:
        return ClaimStatus({**status_of(claim), "reservedFor": remaining_consumers})
    return free


def is_of_group_alone(claim: Object, requirement: RequiredClaim) -> bool:
    """Return whether the claim is reserved for the pod's PodGroup, and for nobody else."""
    return requirement.is_shared and list(uids_of(consumers_of(claim))) == [requirement.consumer.uid]


def next_removal(claim: Object, required: RequiredClaim) -> Write | Status:
    """Return the next write that removes a claim created for the pod's extended resources; else the result.

    The OK names a claim that has lost its owner or its annotation, as by another client: it is not removed, and a
    policy of the chart denies its removal.
    """
    annotations, controller = claim["metadata"].get("annotations") or {}, controller_of(claim).get("uid")
    if controller and controller != required.pod_uid:
        return Status.ok()
    if not controller:
        return Done((f"{required.label} has lost its owner, so it may be another pod's",))
    if annotations.get(names.EXTENDED_RESOURCE_CLAIM) != "true":
        return Done((f"{required.label} has lost its annotation, so it may be for another purpose",))
    return (unprotection(claim) or Status.ok()) if is_deleting(claim) else Delete()


def _conflict(why: str, suggestion: Suggestion | None = None) -> Status:
    return Status.fatal(why, Reason.DEVICE_CONFLICT, suggestion)


def unprotection(claim: Object) -> Finalizers | None:
    """Return the write that removes the finalizer of an allocated claim; None if the claim has none."""
    finalizers = tuple(f for f in finalizers_of(claim) if f != names.RESOURCE_CLAIM_PROTECTION)
    return Finalizers(finalizers) if len(finalizers) < len(finalizers_of(claim)) else None
