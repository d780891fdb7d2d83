"""What a decision still requires: the order in which a request is ended, as one table, read top to bottom. Pure.

``decide`` states what becomes of a request; ``step`` returns the next effect of that decision: the first one that it
still requires, or its own. The driver (``reconciler``) executes the effect, adds what it has learnt to the facts, and
asks again, until an effect closes the request or lets it rest. A decision that needs nothing else is its own effect,
such as an attempt.

What the table guarantees, whatever caused the end:

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

from bowline.api.bindrequest import BindRequest
from bowline.framework.plugin_status import Status
from bowline.framework.reason import Reason
from bowline_reconciler.decide.actions import (
    Action,
    Attempt,
    Complete,
    DropFinalizer,
    Fail,
    Forget,
    RequeueAfter,
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


@dataclass(frozen=True, slots=True)
class ReadPod:
    """Read the pod live."""


@dataclass(frozen=True, slots=True)
class ReadBoundPod:
    """Read the pod after its bind: from the watch event of an acknowledged Binding, or live."""


@dataclass(frozen=True, slots=True)
class Reconsider:
    """The pod is not on its node after all: read it live, then decide again."""


@dataclass(frozen=True, slots=True)
class Settle:
    """Determine for how long a write for the request may still take effect."""


@dataclass(frozen=True, slots=True)
class Advise:
    """Ask the plugins what the failure means for another decision."""

    fail: Fail


@dataclass(frozen=True, slots=True)
class Undo:
    """Call the plugins' rollback. ``fail``: the failure that follows it, if one does."""

    why: Status
    fail: Fail | None = None
    is_orphan: bool = False  # nothing can be reported of the request any more


@dataclass(frozen=True, slots=True)
class RunPostBind:
    """Call the plugins' post_bind."""


@dataclass(frozen=True, slots=True)
class ReportSucceeded:
    """Write Succeeded, with what the pod shows of its preparation."""


@dataclass(frozen=True, slots=True)
class ReportFailed:
    """Write Failed and RolledBack in one patch."""

    fail: Fail


@dataclass(frozen=True, slots=True)
class ReportRolledBack:
    """Write that the request was rolled back, unless it is being deleted."""

    why: Status


@dataclass(frozen=True, slots=True)
class Close:
    """Nothing is left: drop what is known of the request."""


# Those that end a request.
EndEffect = (
    ReadPod
    | ReadBoundPod
    | Settle
    | Advise
    | Undo
    | RunPostBind
    | DropFinalizer
    | ReportSucceeded
    | ReportFailed
    | ReportRolledBack
)
# Those that begin something else, or end the reconcile.
OtherEffect = Attempt | Wait | RequeueAfter | SetOwner | Forget | Complete | Fail | Rollback | Reconsider | Close
Effect = EndEffect | OtherEffect


@dataclass(frozen=True, slots=True)
class Facts:
    """What the next effect depends on: what is stored, what is remembered, and what this reconcile has done.

    - ``request``: as stored after the last write.
    - ``is_pod_live``: the pod was read live in this reconcile.
    - ``is_bound``: the pod, read live or after its bind, is on the selected node: then nothing may be undone.
    - ``has_side_effects``: an attempt of this process may have left some.
    - ``has_late_writes``: a write of this process has no reply, and may take effect.
    - ``is_inherited``: a previous leader may have written for the request.
    - ``quiet_in``: for how long such a write may still take effect; None: not determined.
    - ``is_held``: plugins hold something for the bound pod until it has ended; known after post_bind.
    - ``is_gone``: the request was deleted when its finalizer was removed.
    """

    request: BindRequest
    is_bound: bool = False
    is_pod_live: bool = False
    has_side_effects: bool = False
    has_late_writes: bool = False
    is_inherited: bool = False
    quiet_in: timedelta | None = None
    has_read_bound_pod: bool = False
    has_undone: bool = False
    has_run_post_bind: bool = False
    is_held: bool = False
    has_reported: bool = False
    is_gone: bool = False


def step(action: Action | Abandon, facts: Facts) -> Effect:
    """Return the next effect of the action that was decided on."""
    if facts.is_gone:
        return Close()
    match action:
        case Complete():
            return _of_success(facts)
        case Fail():
            return _of_failure(action, facts)
        case Rollback():
            return _of_rollback(action, facts)
        case Abandon():
            return _of_abandoned(facts)
        case DropFinalizer():
            return action if facts.request.has_finalizer else Close()
        case _:
            return action


def _of_success(facts: Facts) -> Effect:
    if not facts.is_pod_live and not facts.has_read_bound_pod:
        return ReadBoundPod()
    if not facts.is_bound:
        return Reconsider()
    if not facts.has_run_post_bind:
        return RunPostBind()
    if facts.request.has_finalizer and not facts.is_held:
        return DropFinalizer()
    return Close() if facts.has_reported else ReportSucceeded()


def _of_failure(fail: Fail, facts: Facts) -> Effect:
    request = facts.request
    has_effects = request.has_finalizer or facts.has_side_effects or request.is_rollback_incomplete
    may_undo = has_effects and not request.is_misnamed and not facts.has_undone
    if (may_undo or facts.has_late_writes or facts.is_inherited) and request.pod_key.name and not facts.is_pod_live:
        return ReadPod()
    if facts.is_pod_live and facts.is_bound:
        return Complete()
    if (awaiting := _until_quiet(facts)) is not None:
        return awaiting
    if not fail.is_advised and request.pod_key.name:
        return Advise(fail)
    if may_undo:
        return Undo(fail.status, fail)
    if request.has_finalizer:
        return DropFinalizer()
    return Close() if facts.has_reported else ReportFailed(fail)


def _of_rollback(action: Rollback, facts: Facts) -> Effect:
    """Being deleted, Failed with side effects, or of a release that ends. ``decide`` requires a live pod."""
    if (awaiting := _until_quiet(facts)) is not None:
        return awaiting
    if not facts.has_undone:
        return Undo(action.why)
    if not facts.has_reported:
        return ReportRolledBack(action.why)
    return DropFinalizer() if facts.request.has_finalizer else Close()


def _of_abandoned(facts: Facts) -> Effect:
    if not facts.has_side_effects and not facts.has_late_writes:
        return Close()
    if not facts.is_pod_live:
        return ReadPod()
    if facts.is_bound:
        return Close()
    if (awaiting := _until_quiet(facts)) is not None:
        return awaiting
    return Undo(_WITHDRAWN, is_orphan=True) if facts.has_side_effects else Close()


def _until_quiet(facts: Facts) -> Effect | None:
    """Return what precedes everything that a late write could make untrue; None if no write may take effect."""
    if not facts.has_late_writes and not facts.is_inherited:
        return None
    quiet_in = facts.quiet_in
    if quiet_in is None:
        return Settle()
    return RequeueAfter(quiet_in, _WRITE_IN_FLIGHT) if quiet_in > timedelta() else None
