"""docs/reference.md: every event, condition, reason and suggestion. The names are the code's, the meanings are here.

A reason or an event name of the code without a meaning here raises KeyError.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from bowline.api import names
from bowline.api.bindrequest import Phase
from bowline.framework.plugin_status import Reason, Suggestion
from bowline_reconciler.decide.snapshot import BOUND, PREPARED, ROLLED_BACK

_EVENT_NAMES: Final = sorted(
    name for key, name in vars(names).items() if key.startswith("EVENT_") and key != "EVENT_SOURCE"
)
_RESERVED, _UNRESERVED = "SharedGPUReserved", "SharedGPUUnreserved"

# Name to type and meaning.
EVENTS: Final[Mapping[str, tuple[str, str]]] = {
    names.EVENT_BOUND: ("Normal", "the pod is bound; not sent with `binding.boundEvents: false`"),
    names.EVENT_WAITING: ("Normal", "the request waits; the note names the cause, the object and the deadline"),
    names.EVENT_RETRY: ("Warning", "an attempt failed, or a bound pod's request cannot be completed; it is retried"),
    names.EVENT_FAILED: ("Warning", "the request has ended: `Reason: sentence (suggestion: ...)`"),
    names.EVENT_ROLLBACK_FAILED: ("Warning", "what was prepared cannot be undone yet; it is retried"),
    names.EVENT_NOT_PREPARED: ("Warning", "the pod is bound, but Bowline has not prepared its devices or claims"),
    names.EVENT_NOT_SERVED: ("Warning", "of the request: no shard selects it; sent once, within 30 s"),
    _UNRESERVED: ("Warning", "a running share's GPU is reserved no more; the kubelet may give it to another pod"),
    _RESERVED: ("Normal", "that GPU is reserved again"),
}

PHASES: Final[Mapping[Phase, str]] = {
    Phase.PENDING: "not ended: waiting, retrying, or not read yet",
    Phase.SUCCEEDED: "the pod is bound to the node",
    Phase.FAILED: "ended, rolled back, never retried; the scheduler may create a new request",
}

# Type to status, reason and meaning.
CONDITIONS: Final[Mapping[str, tuple[tuple[str, str, str], ...]]] = {
    PREPARED: (
        ("True", "Prepared", "everything that the pod needs on the node is in place"),
        ("False", "Waiting", "another component must act first; lastTransitionTime is the start of the wait"),
        ("False", "Retrying", "the last attempt failed"),
        ("False", "Released", "rolled back; this reconciler attempts it no more (uninstall)"),
        ("Unknown", "NotPrepared", "the pod was bound, but not by this controller"),
    ),
    BOUND: (
        ("True", "Bound", "the pod is on the node"),
        ("False", "a reason of a failure", "the request has failed, or fails when its rollback is complete"),
    ),
    ROLLED_BACK: (
        ("True", "RolledBack", "all preparations are undone"),
        ("False", "RollbackFailed", "the rollback is incomplete and is retried; the message names the obstacle"),
    ),
    names.CONDITION_POD_BOUND: (
        ("True", "Bound", "replaces an earlier False; a bind without a failure writes none"),
        ("False", names.EVENT_RETRY, "an attempt failed; it is retried"),
        (
            "False",
            "a reason of a failure",
            "the request has failed; `status.reason` has the same sentence",
        ),
    ),
    names.CONDITION_DECISION_FAILED: (
        (
            "True",
            "a reason of a failure",
            "a decision has failed; as JSON: which, how often, on what it depends",
        ),
        ("False", names.EVENT_RETRY, "its decision is attempted again"),
    ),
}

REASONS: Final[Mapping[Reason, str]] = {
    Reason.POD_GONE: "the pod is deleted, ended, or replaced by another one of its name",
    Reason.NODE_GONE: "the node does not exist or is being deleted",
    Reason.NODE_UNSCHEDULABLE: "the node is cordoned or tainted, and the pod does not tolerate it",
    Reason.BOUND_ELSEWHERE: "the pod runs on another node",
    Reason.NOT_OURS: "the pod's schedulerName is not in `schedulerNames`",
    Reason.NO_PLUGIN: "no enabled plugin serves what the request demands",
    Reason.INVALID: "the request contradicts itself or the pod",
    Reason.REJECTED: "the API server, a policy or a plugin rejects the bind; a plugin may use its own, `plugin/Word`",
    Reason.RBAC_MISSING: "the reconciler lacks a right",
    Reason.BACKOFF_LIMIT_EXCEEDED: "every attempt failed",
    Reason.WAIT_TIMEOUT: "a wait expired",
    Reason.DEVICE_CONFLICT: "a ResourceClaim or its device cannot be used",
    Reason.VOLUME_CONFLICT: "a volume cannot be used on the node",
    Reason.SUPERSEDED: "only passed to plugins that roll back a withdrawn request; no request ends with it",
}

# The first words of `status.reason` of an unfinished request.
PROGRESS: Final[Mapping[str, str]] = {
    "Created": "no reconciler has reported yet; if that lasts: no leader, or no shard selects the request",
    "Waiting": "see condition Prepared; ends with the deadline, if there is one",
    "Retrying": "an attempt failed; `status.nextAttemptTime`",
    "Released": "see condition Prepared",
    "RollbackFailed": "see condition RolledBack",
}

SUGGESTIONS: Final[Mapping[Suggestion, str]] = {
    Suggestion.RESCHEDULE_ELSEWHERE: "decide again without this node",
    Suggestion.RETRY_SAME_NODE: "the same decision may be repeated",
    Suggestion.DELETE_POD: "delete the pod, so that its controller creates another one",
}

_HEAD = """\
<!-- Generated by `make generate` from the code and tools/generate/reference.py. Do not edit. -->

# Reference: events, conditions, reasons

What Bowline reports, by the name that you see. [Stuck pods](stuck-pods.md) starts from the symptom,
[suggestions.md](suggestions.md) lists the suggestion of each failure.
"""
_CONDITIONS_TEXT = (
    f"`{names.CONDITION_POD_BOUND}` and `{names.CONDITION_DECISION_FAILED}` are of the pod, the others are "
    "of the BindRequest."
)


def as_markdown() -> str:
    """Return the page."""
    conditions = [
        (f"`{kind}`", status, reason if " " in reason else f"`{reason}`", meaning)
        for kind, rows in CONDITIONS.items()
        for status, reason, meaning in rows
    ]
    events = [(f"`{name}`", *EVENTS[name]) for name in (*_EVENT_NAMES, _UNRESERVED, _RESERVED)]
    phases = [(f"`{phase.value}`", PHASES[phase]) for phase in Phase]
    parts = [
        _HEAD,
        _table("Events", ("event", "type", "meaning"), events, f"Source `{names.EVENT_SOURCE}`."),
        _table("Phases of a BindRequest", ("`status.phase`", "meaning"), phases),
        _table("Conditions", ("condition", "status", "reason", "meaning"), conditions, _CONDITIONS_TEXT),
        _table(
            "Reasons of an unfinished request",
            ("first word of `status.reason`", "meaning"),
            [(f"`{word}`", meaning) for word, meaning in PROGRESS.items()],
        ),
        _table(
            "Reasons of a failure",
            ("first word of `status.reason`", "meaning"),
            [(f"`{reason.value}`", REASONS[reason]) for reason in Reason],
        ),
        _table(
            "Suggestions",
            ("`status.suggestion`", "meaning"),
            [(f"`{suggestion.value}`", SUGGESTIONS[suggestion]) for suggestion in Suggestion],
        ),
    ]
    return "\n".join(parts)


def _table(title: str, head: tuple[str, ...], rows: Iterable[tuple[str, ...]], text: str = "") -> str:
    body = "\n".join(
        (f"| {' | '.join(head)} |", "|---" * len(head) + "|", *(f"| {' | '.join(row)} |" for row in rows))
    )
    return f"## {title}\n\n" + (f"{text}\n\n" if text else "") + body + "\n"
