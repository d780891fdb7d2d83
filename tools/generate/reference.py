"""The tables of docs/reference.md: every event, condition, reason and suggestion.

The names are the code's. Reasons and suggestions have their meanings themselves; those of events and conditions are
here: an event name of the code without one raises KeyError.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from bowline.api import names
from bowline.api.bindrequest import BOUND, PREPARED, ROLLED_BACK, Phase
from bowline.framework.reason import Reason, Suggestion
from tools.generate.tables import between, table

_EVENT_NAMES: Final = sorted(
    name for key, name in vars(names).items() if key.startswith("EVENT_") and key != "EVENT_SOURCE"
)

# Name to type and meaning.
EVENTS: Final[Mapping[str, tuple[str, str]]] = {
    names.EVENT_BOUND: ("Normal", "the pod is bound"),
    names.EVENT_WAITING: (
        "Normal",
        "the request waits; the note names cause, object and limit; `status.reason` has the deadline",
    ),
    names.EVENT_RETRY: ("Warning", "an attempt failed, or a bound pod's request cannot be completed; it is retried"),
    names.EVENT_FAILED: ("Warning", "the request has ended: `Reason: sentence (suggestion: ...)`"),
    names.EVENT_ROLLBACK_FAILED: ("Warning", "what was prepared cannot be undone yet; it is retried"),
    names.EVENT_RELEASE_FAILED: (
        "Warning",
        "of the request: its pod has ended, and what a plugin holds for it cannot be returned yet; it is retried",
    ),
    names.EVENT_NOT_RELEASED: (
        "Warning",
        "what the named plugins hold for the pod is not returned: they are off, or Bowline is uninstalled",
    ),
    names.EVENT_NOT_PREPARED: ("Warning", "the pod is bound, but Bowline has not prepared its devices or claims"),
    names.EVENT_NOT_READ: ("Warning", "of an object that is not decoded; sent once for each process"),
    names.EVENT_UNRESERVED: (
        "Warning",
        "a running share's GPU is reserved no more; the kubelet may give it to another pod",
    ),
    names.EVENT_RESERVED: ("Normal", "that GPU is reserved again"),
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
        ("False", "RolledBack", "rolled back; this reconciler attempts it no more (uninstall)"),
        ("Unknown", "NotPrepared", "the pod is bound, but does not show that this controller has prepared it"),
    ),
    BOUND: (
        ("True", "Bound", "the pod is on the node"),
        ("False", "a reason of a failure", "the request has failed, or fails when its rollback is complete"),
    ),
    ROLLED_BACK: (
        ("True", "RolledBack", "all preparations are undone"),
        ("False", "RollbackFailed", "the rollback is incomplete and is retried; the message names the obstacle"),
        (
            "False",
            "ReleaseFailed",
            "what a plugin holds for a pod that has ended cannot be returned yet; it is retried",
        ),
        (
            "Unknown",
            "NotUndone",
            "undone but for what the message names: an object not read or another's, or a plugin that is off",
        ),
    ),
    names.CONDITION_SET_ASIDE: (
        (
            "True",
            "an extension point",
            "a plugin's call for the request has blocked the process and ended it: not taken up again for an hour",
        ),
    ),
    names.CONDITION_POD_BOUND: (
        ("True", "Bound", "replaces an earlier False; a bind without a failure writes none"),
        ("False", names.EVENT_RETRY, "an attempt failed; it is retried"),
        (
            "False",
            "a reason of a failure",
            "the request has failed; since when the pod has this cause, on whatever node",
        ),
    ),
    names.CONDITION_DECISION_FAILED: (
        (
            "True",
            "a reason of a failure",
            "a decision has failed; as JSON: which, and how often",
        ),
        ("False", names.EVENT_RETRY, "its decision is attempted again"),
    ),
}

# The first words of `status.reason` of an unfinished request.
PROGRESS: Final[Mapping[str, str]] = {
    "Created": "nothing is reported in the first 5 s; if that lasts: no reconciler leads",
    "Waiting": "see condition Prepared; ends with the deadline, if there is one",
    "Working": "a call has had no reply for 5 s; which one",
    "Retrying": "an attempt failed; `status.nextAttemptTime`; without one, a call has failed for 5 s",
    "RolledBack": "see condition Prepared",
    "RollbackFailed": "see condition RolledBack",
    "ReleaseFailed": "see condition RolledBack",
}

_NO_SUGGESTION: Final = (
    "no scheduling decision helps: the pod is deleted or running, or the cause in the reason must be fixed first, in "
    "the pod, its claims or the configuration"
)
_NEVER: Final = {None: "no request ends with it: passed to plugins that roll back a withdrawn request"}
PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "reference.md"


def as_markdown() -> str:
    """Return the page with its tables as the code has them."""
    text = PAGE.read_text(encoding="utf-8")
    for name, content in _tables().items():
        text = between(text, name, content)
    return text


def _tables() -> Mapping[str, str]:
    conditions = [
        (f"`{kind}`", status, reason if " " in reason else f"`{reason}`", meaning)
        for kind, rows in CONDITIONS.items()
        for status, reason, meaning in rows
    ]
    failures = [
        (f"`{reason.value}`", f"`{suggestion.value}`" if suggestion else "none", when)
        for reason in Reason
        for suggestion, when in (reason.cases or _NEVER).items()
    ]
    meanings = [*((f"`{each.value}`", each.meaning) for each in Suggestion), ("none", _NO_SUGGESTION)]
    events = [(f"`{name}`", *EVENTS[name]) for name in _EVENT_NAMES]
    progress = [(f"`{word}`", meaning) for word, meaning in PROGRESS.items()]
    phases = [(f"`{phase.value}`", PHASES[phase]) for phase in Phase]
    return {
        "progress": table(("first word of `status.reason`", "meaning"), progress),
        "failures": table(("first word of `status.reason`", "suggestion", "when"), failures),
        "suggestions": table(("`status.suggestion`", "meaning"), meanings),
        "events": table(("event", "type", "meaning"), events),
        "phases": table(("`status.phase`", "meaning"), phases),
        "conditions": table(("condition", "status", "reason", "meaning"), conditions),
    }
