"""What a decision still requires: the order of an attempt and that of an end, each a table, read top to bottom. Pure.

``decide`` states what becomes of a request, and ``outcome`` what an attempt's result means for it; ``attempt_step``
and ``end_step`` return the next effect: the first one that this still requires, or its own. The driver executes the
effect, adds what it has learnt to the facts, and asks again, until an attempt is concluded, or an effect closes the
request or lets it rest. A decision that needs nothing else is its own effect, such as a wait.

What the tables guarantee of an attempt:

- A failure is counted before the next attempt begins.
- Before plugins leave anything, the finalizer and their names are recorded, by this leader.
- No Binding is sent for a request that was withdrawn, and none before all is prepared and the pod's gang is complete.
- Without an acknowledged Binding, what follows is decided by the pod, read live, if anybody may have bound it.

And of an end, whatever has caused it:

- Success: the pod is read after its bind, whoever has bound it; then post_bind, finalizer, Succeeded. A request that
  reports Succeeded has no work left, except that it keeps its finalizer if plugins hold something for its pod.
- Failure: rollback, finalizer, then Failed. **Failed means released**: no finalizer of Bowline remains, so the
  scheduler can delete the request and create another one of the same name in the same cycle.
- Nothing is undone, and no failure is final, below a pod that is bound as asked (by a live read) or while a write may
  still take effect.
- A crash at any point costs a repetition at most: no fact of a reconcile outlives it, except the failure whose
  execution has begun.

Decision 115.
"""

from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Literal

from bowline.api.bindrequest import BindRequest
from bowline.api.meta import ObjectRef
from bowline.framework.interface.status import WITHDRAWN, Cancelled, Done, Status, Transient
from bowline.framework.reason import Reason
from bowline_reconciler.decide.actions import (
    Action,
    Attempt,
    Complete,
    DropFinalizer,
    Fail,
    Forget,
    OutcomeAction,
    RequeueAfter,
    RetryAt,
    Rollback,
    SetOwner,
    Wait,
)

_WRITE_IN_FLIGHT = (
    "a write of the previous leader, or one without a reply, may still take effect; the rollback follows"
)
_WITHDRAWN = Status.fatal("the request was withdrawn without a rollback", Reason.SUPERSEDED)


@dataclass(frozen=True, slots=True)
class Abandon:
    """The request is gone, or has another decision: undo what no finalizer records, and drop what is known of it."""

    why: Status = _WITHDRAWN


class InAttempt(Enum):
    """The effects of an attempt that need nothing but its facts."""

    RECORD = "add the finalizer, and the plugins of which side effects may exist from here on"
    PREPARE = "call the plugins' pre_bind"
    GATHER = "ask whether the gang of the prepared pod is complete"
    POST = "pass the point of no return: call the plugins' bind"
    READ_POD = "read the pod live: anybody may have bound it"


class AtEnd(Enum):
    """The effects of an end that need nothing else."""

    READ_POD = "read the pod live"
    READ_BOUND_POD = "read the pod after its bind: from the watch event of an acknowledged Binding, or live"
    RUN_POST_BIND = "call the plugins' post_bind"


class Last(Enum):
    """What a reconcile ends with."""

    DEFER = "others are not bound yet: complete the bound request after them"
    RECONSIDER = "the pod is not on its node after all: read it live, then decide again"
    CLOSE = "nothing is left: drop what is known of the request"


@dataclass(frozen=True, slots=True)
class Blame:
    """The bind plugin has answered OK, and the pod is on no node."""

    plugin: str


@dataclass(frozen=True, slots=True)
class Conclude:
    """The attempt is over: observe its result, unless it was before (``is_new``), and read what it depends on."""

    status: Status
    is_new: bool = True


@dataclass(frozen=True, slots=True)
class Undo:
    """Call the plugins' rollback. Nothing can be reported of an abandoned request any more."""

    decision: Fail | Rollback | Abandon


@dataclass(frozen=True, slots=True)
class ReportEnd:
    """Write how the request ends: Succeeded, Failed with RolledBack in one patch, or that it was rolled back."""

    decision: Complete | Fail | Rollback


# What an end begins with, or what is decided without one.
Decided = Action | OutcomeAction | Conclude | Abandon
# What ends a reconcile, and what does or begins something else; all other effects add a fact.
Rest = (
    Wait | RetryAt | Transient | Cancelled | RequeueAfter | SetOwner | Forget | Literal[Last.DEFER, Last.RECONSIDER]
)
Following = Rest | Complete | Fail | Attempt | Last
AttemptEffect = InAttempt | Blame | Conclude
EndEffect = Following | AtEnd | Undo | DropFinalizer | ReportEnd | Conclude


@dataclass(frozen=True, slots=True)
class Facts:
    """What the next effect of an end depends on: what is stored, what is remembered, what this reconcile has done."""

    request: BindRequest  # as stored after the last write
    is_bound: bool = False  # the pod, read live or after its bind, is on the selected node: nothing may be undone
    is_pod_live: bool = False  # the pod was read live in this reconcile
    has_side_effects: bool = False  # an attempt of this process may have left some
    has_late_writes: bool = False  # a write of this process has no reply, or a previous leader may have sent one
    quiet_in: timedelta = timedelta()  # for how long such a write may still take effect, if the pod was read live
    has_read_bound_pod: bool = False
    has_undone: bool = False
    has_run_post_bind: bool = False
    is_held: bool = False  # plugins hold something for the bound pod until it has ended; known after post_bind
    has_reported: bool = False
    may_defer: bool = False  # this reconcile has bound the pod, and more requests wait for a worker
    is_gone: bool = False  # the request was deleted when its finalizer was removed


class Stage(Enum):
    """What an attempt has done last."""

    BEGUN = "begun"
    RECORDED = "recorded"
    PREPARED = "prepared"
    GATHERED = "gathered"
    POSTED = "posted"


@dataclass(frozen=True, slots=True)
class AttemptFacts:
    """What the next effect of an attempt depends on."""

    request: BindRequest  # as stored after the last write
    plugins: frozenset[str] = frozenset()  # of which the attempt may leave side effects
    uncounted: Status | None = None  # how an earlier reconcile's attempt has failed, if that is not stored yet
    is_inherited: bool = False  # a previous leader may have written for it, and this process has prepared nothing
    gang: ObjectRef | None = None  # with which the pod is bound; known once it is prepared
    is_withdrawn: bool = False  # what the attempt is for has ended or changed
    stage: Stage = Stage.BEGUN
    status: Status | None = None  # the last result of the plugins
    is_acknowledged: bool = False  # the API server has accepted a Binding
    is_rejected: bool = False  # no Binding of the attempt can have taken effect
    has_lost_reply: bool = False  # a Binding of this attempt or an earlier one has no reply
    is_pod_live: bool = False  # the pod was read live after the calls
    is_bound: bool = False  # and is on the selected node
    end: Fail | None = None  # what such a pod means for the request if it is elsewhere or gone


def end_step(decision: Decided, facts: Facts) -> EndEffect:
    """Return the next effect of what was decided on."""
    if facts.is_gone:
        return Last.CLOSE
    match decision:
        case Complete():
            return _of_success(decision, facts)
        case Fail():
            return _of_failure(decision, facts)
        case Rollback():
            return _of_rollback(decision, facts)
        case Abandon():
            return _of_abandoned(decision, facts)
        case DropFinalizer():
            return decision if facts.request.has_finalizer else Last.CLOSE
        case _:
            return decision


def attempt_step(facts: AttemptFacts) -> AttemptEffect:
    """Return the next effect of an attempt."""
    request, stage, status = facts.request, facts.stage, facts.status
    if facts.uncounted is not None:
        return Conclude(facts.uncounted, is_new=False)
    if status is not None and (stage is Stage.POSTED or not isinstance(status, Done)):
        return _of_result(status, facts)
    if facts.is_withdrawn:
        return Conclude(WITHDRAWN)
    if stage is Stage.BEGUN and facts.plugins:
        is_recorded = request.effects is None or facts.plugins <= request.effects  # None: all of them
        if not request.has_finalizer or not is_recorded or facts.is_inherited:
            return InAttempt.RECORD
    if stage in (Stage.BEGUN, Stage.RECORDED):
        return InAttempt.PREPARE
    return InAttempt.GATHER if stage is Stage.PREPARED and facts.gang is not None else InAttempt.POST


def _of_result(status: Status, facts: AttemptFacts) -> AttemptEffect:
    """All plugins have been called, or one has ended the attempt."""
    is_ok = isinstance(status, Done)
    # The bind may have succeeded and only its reply been lost, in this attempt or in an earlier one. Or a bind plugin
    # or another client has sent a Binding of its own.
    may_be_bound = is_ok or facts.has_lost_reply or (facts.stage is Stage.POSTED and not facts.is_rejected)
    if (is_ok and facts.is_acknowledged) or not may_be_bound:
        return Conclude(status)
    if not facts.is_pod_live:
        return InAttempt.READ_POD
    if facts.is_bound:
        return Conclude(Status.ok())
    if facts.end is not None:
        return Conclude(facts.end.status)
    return Blame(status.plugin) if is_ok else Conclude(status)


def _of_success(decision: Complete, facts: Facts) -> EndEffect:
    if facts.may_defer:
        return Last.DEFER
    if not facts.is_pod_live and not facts.has_read_bound_pod:
        return AtEnd.READ_BOUND_POD
    if not facts.is_bound:
        return Last.RECONSIDER
    if not facts.has_run_post_bind:
        return AtEnd.RUN_POST_BIND
    if facts.request.has_finalizer and not facts.is_held:
        return DropFinalizer()
    return Last.CLOSE if facts.has_reported else ReportEnd(decision)


def _of_failure(fail: Fail, facts: Facts) -> EndEffect:
    request = facts.request
    has_effects = request.has_finalizer or facts.has_side_effects or request.is_rollback_incomplete
    may_undo = has_effects and not request.is_misnamed and not facts.has_undone
    if (may_undo or facts.has_late_writes) and request.pod_key.name and not facts.is_pod_live:
        return AtEnd.READ_POD
    if facts.is_pod_live and facts.is_bound:
        return Complete()
    if (awaiting := _until_quiet(facts)) is not None:
        return awaiting
    if may_undo:
        return Undo(fail)
    if request.has_finalizer:
        return DropFinalizer()
    return Last.CLOSE if facts.has_reported else ReportEnd(fail)


def _of_rollback(action: Rollback, facts: Facts) -> EndEffect:
    """Being deleted, Failed with side effects, or of a release that ends. ``decide`` requires a live pod."""
    if (awaiting := _until_quiet(facts)) is not None:
        return awaiting
    if not facts.has_undone:
        return Undo(action)
    if not facts.has_reported:
        return ReportEnd(action)
    return DropFinalizer() if facts.request.has_finalizer else Last.CLOSE


def _of_abandoned(decision: Abandon, facts: Facts) -> EndEffect:
    if not facts.has_side_effects and not facts.has_late_writes:
        return Last.CLOSE
    if not facts.is_pod_live:
        return AtEnd.READ_POD
    if facts.is_bound:
        return Last.CLOSE
    if (awaiting := _until_quiet(facts)) is not None:
        return awaiting
    return Undo(decision) if facts.has_side_effects else Last.CLOSE


def _until_quiet(facts: Facts) -> EndEffect | None:
    """Return what precedes everything that a late write could make untrue; None if no write may take effect."""
    return RequeueAfter(facts.quiet_in, _WRITE_IN_FLIGHT) if facts.quiet_in > timedelta() else None
