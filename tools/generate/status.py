"""The ``.status`` of a BindRequest, as the model from which the CRD's schema is generated.

The reconciler builds status patches as plain dictionaries and reads them leniently, because the CRD of another
project may store less; this model is only the schema. ``phase``, ``reason`` and ``failedAttempts`` are
KAI-Scheduler's, the rest is Bowline's and optional.
"""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from bowline.api.request_facts import MAX_OBJECTS

# Of conditions, see metav1.Condition: the limits are Kubernetes' own.
_CONDITION_TYPE = (
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"
)
_CONDITION_REASON = r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"

Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
Generation = Annotated[int, Field(ge=0, le=2**63 - 1)]


class StoredPhase(StrEnum):
    """Valid values of ``phase``; a Go client writes the empty string for none."""

    NONE = ""
    PENDING = "Pending"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class _StatusWire(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore")


class DocumentedCondition(_StatusWire):
    """One observation, in the shape that all of Kubernetes uses."""

    type: Annotated[
        str,
        Field(
            max_length=316,
            json_schema_extra={"pattern": _CONDITION_TYPE},
            description="What is observed: Prepared, Bound or RolledBack.",
        ),
    ]
    status: Annotated[Literal["True", "False", "Unknown"], Field(description="Whether it holds.")]
    observed_generation: Annotated[
        Generation, Field(description="metadata.generation that the observation is about.")
    ] = 0
    last_transition_time: Annotated[datetime, Field(description="When status last changed.")]
    reason: Annotated[
        str,
        Field(
            min_length=1,
            max_length=1024,
            json_schema_extra={"pattern": _CONDITION_REASON},
            description="Why, in one word for programs.",
        ),
    ]
    message: Annotated[str, Field(max_length=32768, description="The reason, as a sentence for users.")]


class DocumentedReference(_StatusWire):
    """An object, as in ``status.wait`` and ``status.failure``."""

    api_version: Annotated[str, Field(max_length=317, description="Group and version.")] = ""
    kind: Annotated[str, Field(max_length=63, description="Kind.")] = ""
    namespace: Annotated[str, Field(max_length=63, description="Namespace; absent for a cluster's object.")] = ""
    name: Annotated[str, Field(max_length=253, description="Name.")] = ""


class DocumentedWait(_StatusWire):
    """What an unfinished request waits for."""

    cause: Annotated[str, Field(max_length=1024, description="Whose wait it is, such as that of a plugin.")]
    objects: Annotated[
        list[DocumentedReference], Field(max_length=MAX_OBJECTS, description="A change of one of these may end it.")
    ] = Field(default_factory=list)
    deadline: Annotated[datetime | None, Field(description="When the request fails; absent: never.")] = None


class DocumentedFailure(_StatusWire):
    """Why a request has failed, or fails when its rollback is complete."""

    reason: Annotated[str, Field(max_length=128, description="The reason, one of a closed list.")]
    plugin: Annotated[str, Field(max_length=128, description="The plugin whose failure it is, if it is one's.")] = ""
    plugin_reason: Annotated[str, Field(max_length=253, description="A plugin's own reason, as plugin/Word.")] = ""
    objects: Annotated[
        list[DocumentedReference], Field(max_length=MAX_OBJECTS, description="What the failure is about.")
    ] = Field(default_factory=list)


class BindRequestStatus(_StatusWire):
    """Progress of the binding. Written by the reconciler only."""

    phase: Annotated[
        StoredPhase,
        Field(description="Pending (also absent or empty), Succeeded or Failed. The last two are final."),
    ] = StoredPhase.NONE
    reason: Annotated[str, Field(description='Why the phase is what it is, as "Word: message".')] = ""
    failed_attempts: Annotated[
        Count,
        Field(description="Attempts that failed. Raised to backoffLimit, where one is set, when a failure is final."),
    ] = 0
    conditions: Annotated[
        list[DocumentedCondition],
        Field(
            max_length=32,
            description="Prepared, Bound and RolledBack, as far as they have been observed.",
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
        ),
    ] = Field(default_factory=list)
    observed_generation: Annotated[
        Generation, Field(description="metadata.generation that this status is about.")
    ] = 0
    start_time: Annotated[datetime | None, Field(description="When the first attempt began.")] = None
    last_attempt_time: Annotated[datetime | None, Field(description="When the latest attempt began.")] = None
    next_attempt_time: Annotated[datetime | None, Field(description="No attempt is made before this.")] = None
    completion_time: Annotated[datetime | None, Field(description="When the phase became final.")] = None
    node_name: Annotated[str, Field(max_length=253, description="Node the pod really is on.")] = ""
    suggestion: Annotated[
        str,
        Field(
            max_length=128,
            description="What the scheduler may do about a final failure, as one word for programs.",
        ),
    ] = ""
    wait: Annotated[DocumentedWait | None, Field(description="What an unfinished request waits for.")] = None
    failure: Annotated[
        DocumentedFailure | None,
        Field(description="Why it has failed, or fails when its rollback is complete."),
    ] = None
