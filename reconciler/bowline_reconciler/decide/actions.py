"""What the reconciler does with a request and what it reports, as data: one type for each action."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

from bowline.api.failed_decision import Decision
from bowline.api.meta import ObjectRef, ObjectUID
from bowline.framework.interface.status import Cancelled, Fatal, Status, Transient

# status.reason, and the message of a condition, are limited to 1 KB.
MAX_REASON = 1024


@dataclass(frozen=True, slots=True)
class Forget:
    """Nothing is left to do; drop the in-memory state."""


@dataclass(frozen=True, slots=True)
class Rollback:
    """The request is abandoned: roll back, then drop the finalizer. The plugins determine what that takes."""

    why: Status


@dataclass(frozen=True, slots=True)
class DropFinalizer:
    """The pod is on its node: nothing may be rolled back; only drop the finalizer."""


@dataclass(frozen=True, slots=True)
class SetOwner:
    """The request names no pod UID: first write an owner reference to the present pod."""

    pod_uid: ObjectUID


@dataclass(frozen=True, slots=True)
class Complete:
    """The pod is on the selected node: run post_bind, drop the finalizer, report Succeeded."""


@dataclass(frozen=True, slots=True)
class Fail:
    """Terminal failure: roll back if side effects may exist, drop the finalizer, then report Failed.

    ``status``: the failure, as plugins receive it. ``history``: what preceded it.
    """

    status: Fatal
    history: str = ""  # such as: waited for 30 s


# Causes of waits before an attempt, and of one after pre_bind.
DEFECT = "plugins"  # a defective plugin might serve what the request asks for
GATES = "scheduling gates"
NODE_HEALTH = "health of the node"
GANG = "gang"


@dataclass(frozen=True, slots=True)
class Wait:
    """Blocked on objects: decide again when one changes, at the latest when ``left`` is over and the wait expires."""

    on: tuple[ObjectRef, ...]
    why: str
    left: timedelta
    cause: str
    limits: Mapping[str, timedelta] = field(default_factory=dict)  # of each cause, how long it may last
    poll: timedelta | None = None  # requeue at this interval, whatever the watches report
    plugin: str = ""  # that waits, the first of several

    @property
    def is_of_attempt(self) -> bool:
        """Whether an attempt waits, and not the request before it."""
        return self.cause not in (GATES, NODE_HEALTH, DEFECT)


@dataclass(frozen=True, slots=True)
class RequeueAfter:
    """Too early: decide again after that time. ``why`` is set only where it is not obvious."""

    after: timedelta
    why: str = ""


@dataclass(frozen=True, slots=True)
class Attempt:
    """Run an attempt. ``effects``: the plugins that may leave side effects, so the finalizer records them first."""

    effects: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Event:
    """The event for the pod's owner."""

    type: Literal["Normal", "Warning"]
    reason: str
    note: str


@dataclass(frozen=True, slots=True)
class PodBound:
    """The PodBound condition: False after a failure, True after the bind that follows it.

    - ``message``: the cause alone, so that a repetition of the failure does not change it; at most MAX_REASON.
    - ``since``: when this failure began, unless the pod's condition has an earlier one for the same cause.
    - ``objects``: that the failure is about.
    - ``decision``: the one that has failed. It is stored in a condition of its own (``bowline.api.failed_decision``).
    - ``has_ended``: the decision has ended Failed; else it is attempted again.
    - ``denial``: the print of the API server's denial of the Binding.
    """

    status: Literal["True", "False"]
    reason: str
    message: str
    decision: Decision | None = None
    has_ended: bool = False
    denial: str = ""
    since: datetime | None = None
    objects: tuple[ObjectRef, ...] = ()


@dataclass(frozen=True, slots=True)
class Nomination:
    """The pod's ``status.nominatedNodeName``: ``node`` while its decision is carried out; withdrawn, it is no more.

    Autoscalers keep a node on which a pod is nominated. That of another node is another component's: it is replaced
    by a nomination, and never removed by a withdrawal.
    """

    node: str
    is_withdrawn: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """What is written of a request: its complete status; event, condition and nomination of the pod, if any."""

    status: Mapping[str, Any]
    event: Event | None = None
    condition: PodBound | None = None
    nomination: Nomination | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended, and when it started."""

    status: Status
    started_at: datetime


@dataclass(frozen=True, slots=True)
class RetryAt:
    """Report the failure and run another attempt after ``pause``."""

    pause: timedelta
    report: Report
    outcome: Outcome


# What is executed. Transient: backoff in memory, no write, no attempt counted. Cancelled: decide again immediately.
Action = Forget | Rollback | DropFinalizer | SetOwner | Complete | Fail | Wait | RequeueAfter | Attempt
OutcomeAction = Complete | Fail | RetryAt | Wait | Transient | Cancelled
