"""BindRequest ``scheduling.run.ai/v1alpha2``: the model, from which the CRD is generated, and its decoded form.

A wire-compatible superset of KAI-Scheduler's resource. The pydantic models are the edge: they define the CRD's schema
and validate a spec that a foreign CRD has accepted. All other code uses the frozen ``BindRequest``. Allocations are
passed on as written, in a form that can be read.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel
from pydantic.config import JsonDict

from bowline.api import names
from bowline.api.allocation_form import ALLOCATION_FORM
from bowline.api.field_error import FieldError
from bowline.api.meta import (
    Object,
    ObjectKey,
    ObjectUID,
    ResourceVersion,
    is_deleting,
    is_reduced,
    key_of,
    parse_time,
    status_of,
    uid_of,
    version_of,
)
from bowline.api.request_facts import reported_status
from bowline.api.rule import DenialCause, Rule
from bowline.api.schema import schema_errors

SCHEMA: Final = Rule(
    "bindrequest/schema",
    "the spec of a BindRequest is not as its schema requires",
    invalid="{podName: p, selectedNode: node-1, backoffLimit: many}",
    valid="{podName: p, selectedNode: node-1, backoffLimit: 3}",
)

IMMUTABLE: Final = Rule(
    "bindrequest/immutable",
    "an update changes the spec of a BindRequest, other than `backoffLimit`, though another CRD permits it",
    cause=DenialCause.FORBIDDEN,
    text="cannot change: another decision is another request",
    remedy="delete this one and create a new one",
)

POD_NAME: Final = Rule("bindrequest/pod-name", "a BindRequest has another name than the pod in its `spec.podName`")
RULES: Final = (SCHEMA, IMMUTABLE, POD_NAME)
_UNREADABLE: Final = (
    "the request is not read: it, or its managedFields, have too many values or JSON that the reader refuses; create "
    "it again without"
)

# Types of a BindRequest's conditions.
PREPARED: Final = "Prepared"
BOUND: Final = "Bound"
ROLLED_BACK: Final = "RolledBack"


class Phase(StrEnum):
    """``status.phase``; an absent or empty one reads as Pending."""

    PENDING = "Pending"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class ResourceType(StrEnum):
    """``spec.receivedResourceType``; the empty string means Regular."""

    NONE = ""
    REGULAR = "Regular"
    FRACTION = "Fraction"
    MIG = "MigInstance"


class AllocationKind(StrEnum):
    """A requirement of a request that some plugin must serve: its type, and each form of allocation."""

    REGULAR = "Regular"
    FRACTION = "Fraction"
    MIG = "MigInstance"
    CLAIMS = "resourceClaimAllocations"
    EXTENDED_CLAIM = "extendedResourceClaimAllocation"


# Limits of lists and strings: far above what any pod can use, low enough for the API server's cost estimate of the
# CRD's rules. An object in etcd is limited to 1.5 MiB in all.
MAX_ITEMS = 1024
MAX_WORD = 256
_Number = Annotated[int, Field(strict=True, ge=0, le=2**31 - 1)]
_NODE = "^[a-z0-9.-]+$"  # it becomes part of field selectors
# The fraction of a device. "0.00" is written for CPU and MIG pods. Python's float() would accept more than this.
PORTION_PATTERN = r"^(0(\.[0-9]+)?|1(\.0+)?)$"
_DECIMAL = r"(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
# A resource quantity as in Kubernetes' own CRDs.
QUANTITY: JsonDict = {
    "anyOf": [{"type": "integer"}, {"type": "string"}],
    "maxLength": MAX_WORD,
    "pattern": rf"^(\+|-)?{_DECIMAL}(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?{_DECIMAL}))?$",
    "x-kubernetes-int-or-string": True,
}


def _portion(text: str) -> str:
    if not re.fullmatch(PORTION_PATTERN, text):
        raise ValueError("must be a decimal from 0 to 1, such as 0.50")
    return text


def _optional_portion(text: str) -> str:
    return _portion(text) if text else text


class _Wire(BaseModel):
    # Unknown fields are ignored, not rejected: the scheduler may be newer.
    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore", defer_build=True
    )


class ReceivedGPU(_Wire):
    """Whole devices (portion 1) or shares of them."""

    count: Annotated[_Number, Field(description="Number of devices.")] = 0
    portion: Annotated[
        str,
        AfterValidator(_portion),
        Field(
            description="Share of each device, a decimal from 0 to 1.",
            max_length=MAX_WORD,
            json_schema_extra={"pattern": PORTION_PATTERN},
        ),
    ] = "0"

    compute_portion: Annotated[
        str,
        AfterValidator(_optional_portion),
        Field(
            description="Share of each device's compute, a decimal from 0 to 1; empty: not limited.",
            max_length=MAX_WORD,
            json_schema_extra={"pattern": rf"^$|{PORTION_PATTERN}"},
        ),
    ] = ""

    @property
    def share(self) -> Decimal:
        """The portion as a number."""
        return Decimal(self.portion)


class ResourceClaimAllocation(_Wire):
    """The allocation of one of the pod's resource claims."""

    name: Annotated[
        str, Field(min_length=1, max_length=MAX_WORD, description="Name in the pod's spec.resourceClaims.")
    ]
    allocation: Annotated[
        dict[str, Any] | None,
        Field(
            description="An AllocationResult of resource.k8s.io, written as given. Absent: nothing is decided, which "
            "only a claim that is allocated already, or that requests no device, permits."
        ),
    ] = None


class ExtendedResourceClaimAllocation(_Wire):
    """The allocation of the ResourceClaim for the pod's extended resources."""

    allocation: Annotated[
        dict[str, Any] | None,
        Field(
            description="An AllocationResult of resource.k8s.io. Absent: no claim is created, which only a node that "
            "offers the resources itself permits."
        ),
    ] = None
    device_requests: Annotated[
        list[dict[str, Any]], Field(max_length=MAX_ITEMS, description="DeviceRequests of the claim to create.")
    ] = Field(default_factory=list)
    container_mappings: Annotated[
        list[dict[str, Any]],
        Field(max_length=MAX_ITEMS, description="Which container's extended resource is which device request."),
    ] = Field(default_factory=list)


class PredictedNUMAZone(_Wire):
    """What the scheduler expects a NUMA zone to give to the pod."""

    zone: Annotated[str, Field(max_length=MAX_WORD, description="Zone name.")]
    amount: Annotated[
        dict[str, Any],
        Field(description="Resource name to quantity.", json_schema_extra={"additionalProperties": QUANTITY}),
    ]


class PredictedNUMAMemoryGroup(_Wire):
    """What the scheduler expects a group of NUMA nodes to give to the pod."""

    memory_nodes: Annotated[
        list[Annotated[str, Field(max_length=MAX_WORD)]], Field(max_length=MAX_ITEMS, description="NUMA nodes.")
    ] = Field(default_factory=list)
    amount: Annotated[
        dict[str, Any],
        Field(description="Resource name to quantity.", json_schema_extra={"additionalProperties": QUANTITY}),
    ] = Field(default_factory=dict)


class FractionalGPUGroup(_Wire):
    """A shared device, and the mode in which its pods share it."""

    id: Annotated[str, Field(min_length=1, max_length=MAX_WORD, description="Name of the group.")]
    compute_sharing_mode: Annotated[
        str,
        Field(
            max_length=63,
            json_schema_extra={"pattern": "^[a-z0-9-]*$"},
            description="time-slicing or sm-sharing; empty is time-slicing. A group has one mode.",
        ),
    ] = ""


class BindRequestSpec(_Wire):
    """The decision. Immutable but for backoffLimit."""

    pod_name: Annotated[str, Field(min_length=1, max_length=253, description="Pod to bind, in the same namespace.")]
    pod_uid: Annotated[
        str,
        Field(
            alias="podUID",
            max_length=128,
            description="UID of that pod. Filled from the owner reference at creation if absent.",
        ),
    ] = ""
    selected_node: Annotated[str, Field(min_length=1, max_length=253, pattern=_NODE, description="Node of the pod.")]
    received_resource_type: Annotated[ResourceType, Field(description="What the pod received; empty is Regular.")] = (
        ResourceType.NONE
    )
    received_gpu: Annotated[ReceivedGPU | None, Field(alias="receivedGPU", description="Devices it received.")] = None
    selected_gpu_groups: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=MAX_WORD)]],
        Field(
            alias="selectedGPUGroups",
            max_length=MAX_ITEMS,
            description="One group per shared device. Counts if selectedFractionalGpuGroups is empty.",
        ),
    ] = Field(default_factory=list)
    selected_fractional_gpu_groups: Annotated[
        list[FractionalGPUGroup],
        Field(max_length=MAX_ITEMS, description="One group per shared device, with its mode."),
    ] = Field(default_factory=list)
    resource_claim_allocations: Annotated[
        list[ResourceClaimAllocation],
        Field(max_length=MAX_ITEMS, description="Allocations of the pod's resource claims."),
    ] = Field(default_factory=list)
    extended_resource_claim_allocation: Annotated[
        ExtendedResourceClaimAllocation | None,
        Field(description="Allocation of the pod's extended resources."),
    ] = None
    predicted_numa_zones: Annotated[
        list[PredictedNUMAZone],
        Field(alias="predictedNUMAZones", max_length=MAX_ITEMS, description="Copied to an annotation of the pod."),
    ] = Field(default_factory=list)
    predicted_numa_memory_groups: Annotated[
        list[PredictedNUMAMemoryGroup],
        Field(
            alias="predictedNUMAMemoryGroups", max_length=MAX_ITEMS, description="Copied to an annotation of the pod."
        ),
    ] = Field(default_factory=list)
    backoff_limit: Annotated[
        _Number | None, Field(description="Retries after the first attempt; absent: the configured default.")
    ] = None

    @property
    def gpu_groups(self) -> tuple[str, ...]:
        """The groups of the shared devices; the newer list counts alone if it is not empty."""
        return tuple(group.id for group in self.selected_fractional_gpu_groups) or tuple(self.selected_gpu_groups)

    @property
    def compute_modes(self) -> Mapping[str, str]:
        """Modes other than time-slicing, by group."""
        modes = {group.id: group.compute_sharing_mode for group in self.selected_fractional_gpu_groups}
        return {group: mode for group, mode in modes.items() if mode not in ("", names.TIME_SLICING)}

    @property
    def demands(self) -> frozenset[AllocationKind]:
        """All demands that plugins must serve before the pod may be bound."""
        demands = {AllocationKind(self.received_resource_type or ResourceType.REGULAR)}
        if self.resource_claim_allocations:
            demands.add(AllocationKind.CLAIMS)
        if self.extended_resource_claim_allocation and self.extended_resource_claim_allocation.allocation:
            demands.add(AllocationKind.EXTENDED_CLAIM)
        return frozenset(demands)


SPEC_FIELDS = tuple(str(field.alias) for field in BindRequestSpec.model_fields.values())
_DECIDED = tuple(name for name in SPEC_FIELDS if name != "backoffLimit")


@dataclass(frozen=True, slots=True)
class BindRequest:
    """A decoded BindRequest. ``raw`` is the object as sent by the API server."""

    key: ObjectKey
    uid: ObjectUID
    resource_version: ResourceVersion
    generation: int
    created: datetime | None
    deleting: bool
    finalizers: tuple[str, ...]
    pod_uid: ObjectUID  # see ``pod_uid_of``
    spec: BindRequestSpec | None  # None: the spec is invalid, see ``errors``
    errors: tuple[FieldError, ...]
    phase: Phase
    raw: Object
    status: Object  # the stored ``.status``, with what a foreign CRD has pruned from it; empty if absent

    @property
    def pod_key(self) -> ObjectKey:
        """Key of the pod, which is the request's own; without a name if the request names no pod, or another one."""
        return self.key if _raw_text(self.raw, "podName") == self.key.name else ObjectKey(self.key.namespace, "")

    @property
    def is_misnamed(self) -> bool:
        """Whether it names a pod of another name than its own: nothing was or is attempted for it."""
        return _raw_text(self.raw, "podName") not in ("", self.key.name)

    @property
    def selected_node(self) -> str:
        """Name of the node; available even if the rest of the spec is invalid."""
        return self.spec.selected_node if self.spec else _raw_text(self.raw, "selectedNode")

    @property
    def has_finalizer(self) -> bool:
        """Whether the request has Bowline's finalizer, that is, whether side effects may exist."""
        return names.FINALIZER in self.finalizers

    @property
    def effects(self) -> frozenset[str] | None:
        """The plugins of which side effects may exist; None if the request does not record them."""
        record = (self.raw["metadata"].get("annotations") or {}).get(names.EFFECTS)
        return frozenset(record.split(",")) if isinstance(record, str) else None

    @property
    def is_share(self) -> bool:
        """Whether the pod received shares of devices; False for an invalid spec."""
        return self.spec is not None and self.spec.received_resource_type is ResourceType.FRACTION

    @property
    def conditions(self) -> tuple[Object, ...]:
        """The stored conditions, without those that have no type, as a foreign CRD may store them."""
        value = self.status.get("conditions")
        items = value if isinstance(value, list) else ()
        return tuple(item for item in items if isinstance(item, dict) and isinstance(item.get("type"), str))

    def condition(self, kind: str) -> Object:
        """Return the stored condition of that type; empty if there is none."""
        return next((condition for condition in self.conditions if condition["type"] == kind), {})

    @property
    def is_rollback_incomplete(self) -> bool:
        """Whether the status reports a rollback that has begun and is not complete."""
        return self.condition(ROLLED_BACK).get("status") == "False"

    @property
    def failed_attempts(self) -> int:
        """Number of failed attempts."""
        value = self.status.get("failedAttempts")
        return value if isinstance(value, int) and value > 0 else 0

    @property
    def attempt_id(self) -> str:
        """ID of the present attempt, for log lines: start of the request's UID, and the attempt's number."""
        return f"{self.uid[:8]}-{self.failed_attempts + 1}"

    @property
    def next_attempt(self) -> datetime | None:
        """No attempt is made before this time."""
        return parse_time(self.status.get("nextAttemptTime"))


def decode_spec(spec: Any) -> tuple[BindRequestSpec | None, tuple[FieldError, ...]]:
    """Decode a raw spec. Returns it, or None and all errors with their paths."""
    if not isinstance(spec, dict):
        return None, (FieldError(SCHEMA, "spec", spec, "must be an object with podName and selectedNode"),)
    try:
        decoded_spec = BindRequestSpec.model_validate(spec)
        ALLOCATION_FORM.model_validate(spec)
    except ValidationError as error:
        return None, tuple(schema_errors(SCHEMA, "spec", error.errors()))
    return decoded_spec, ()


def decode_bind_request(raw: Object, other_version: BindRequest | None = None) -> BindRequest:
    """Decode a raw BindRequest. Never raises for its content: errors of the spec are in ``errors``.

    ``other_version``: of the same object; its decoded spec is reused if the spec is unchanged, as usual.
    """
    metadata = raw["metadata"]
    same = other_version if other_version is not None and other_version.raw.get("spec") == raw.get("spec") else None
    spec, errors = decode_spec(raw.get("spec")) if same is None else (same.spec, same.errors)
    if is_reduced(raw):
        errors = (FieldError(SCHEMA, "spec", None, _UNREADABLE),)
    elif (misnamed := name_error(raw)) is not None:
        spec, errors = None, errors if same is not None else (misnamed, *errors)  # those of ``same`` have it
    return BindRequest(
        key=key_of(raw),
        uid=uid_of(raw),
        resource_version=version_of(raw),
        generation=metadata.get("generation") or 0,
        created=parse_time(metadata.get("creationTimestamp")),
        deleting=is_deleting(raw),
        finalizers=tuple(metadata.get("finalizers") or ()),
        pod_uid=pod_uid_of(raw),
        spec=spec,
        errors=errors,
        phase=_phase(status_of(raw).get("phase")),
        raw=raw,
        status=reported_status(raw),
    )


def name_error(raw: Object) -> FieldError | None:
    """Return the error of a request that has another name than its pod: by it a pod has one request."""
    pod_name, name = _raw_text(raw, "podName"), raw["metadata"].get("name")
    if pod_name in ("", name):
        return None
    return FieldError(POD_NAME, "metadata.name", name, f"must be {pod_name}, as spec.podName: a pod has one request")


def is_same_decision(request: BindRequest, other: BindRequest) -> bool:
    """Return whether two versions of a request decide the same; that a pod's UID becomes known changes nothing."""
    known_uids = {request.pod_uid, other.pod_uid} - {""}
    changes = set(changed_fields(request.raw, other.raw)) - {"podName", "podUID"}
    return request.pod_key == other.pod_key and len(known_uids) < 2 and not changes


def changed_fields(raw: Object, old: Object) -> Sequence[str]:
    """Return the fields of the spec, but for backoffLimit, that differ in two versions of a request."""
    spec, old_spec = raw.get("spec"), old.get("spec")
    if spec == old_spec:
        return ()
    if not isinstance(spec, dict) or not isinstance(old_spec, dict):
        return SPEC_FIELDS
    return [name for name in _DECIDED if spec.get(name, _DECIDED) != old_spec.get(name, _DECIDED)]


def effects_record(plugins: Iterable[str]) -> str:
    """Return the annotation ``names.EFFECTS`` for these plugins. See ``BindRequest.effects``."""
    return ",".join(sorted(plugins))


def gpu_groups_of(spec: Any) -> tuple[str, ...]:
    """Return the groups in an unvalidated spec, as ``BindRequestSpec.gpu_groups``; empty if it is malformed."""
    if not isinstance(spec, dict):
        return ()
    entries, group_names = spec.get("selectedFractionalGpuGroups"), spec.get("selectedGPUGroups")
    listed = [entry.get("id") for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    groups = listed or (group_names if isinstance(group_names, list) else [])
    return tuple(group for group in groups if isinstance(group, str) and group)


def owner_pod_uid(raw: Object) -> str:
    """Return the UID of the owning pod with the name in the spec; empty if no owner reference has it."""
    name = _raw_text(raw, "podName")
    for owner in raw["metadata"].get("ownerReferences") or ():
        if owner.get("kind") == "Pod" and owner.get("apiVersion") == "v1" and owner.get("name") == name:
            return str(owner.get("uid") or "")
    return ""


def pod_uid_of(raw: Object) -> ObjectUID:
    """Return the UID of a request's pod: from the spec, else the owner reference, else the reconciler's record of it.

    Empty if none has it: the request names its pod by name only, and nothing has tied it to one yet.
    """
    record = (raw["metadata"].get("annotations") or {}).get(names.POD_UID)
    return ObjectUID(_raw_text(raw, "podUID") or owner_pod_uid(raw) or (record if isinstance(record, str) else ""))


def _raw_text(raw: Object, field: str) -> str:
    """Return a string field of an unvalidated spec; empty if there is none."""
    spec = raw.get("spec")
    text = spec.get(field) if isinstance(spec, dict) else None
    return text if isinstance(text, str) else ""


def _phase(word: Any) -> Phase:
    # An unknown value (another controller's) counts as Pending: the pod itself shows whether it is bound.
    return Phase(word) if word in (Phase.SUCCEEDED, Phase.FAILED) else Phase.PENDING
