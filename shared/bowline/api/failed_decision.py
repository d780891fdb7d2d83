"""The last decision for a pod that has failed, as a condition of the pod stores it. Pure.

The reconciler writes the condition and counts with it; `bowline explain` reads it between two decisions. The webhook
has the same of the requests that it has seen failing. The condition's message is JSON, for programs; the sentence for
people is that of the condition PodBound beside it. Decisions 200 and 275.

    type: bowline.dev/DecisionFailed, reason: <that of the failure>
    status: "True" once the decision has ended Failed; "False" while it is attempted again
    message: {"node": NAME, "digest": HEX, "failures": COUNT, "denial": HEX, "objects": [REFERENCE]}
    lastTransitionTime: the first of consecutive failures of the decision; lastProbeTime: the last one

``digest`` identifies the decision on that node, ``failures`` counts its consecutive ends. GPU groups are no part of
the digest, because schedulers name a new group in each decision. ``denial`` is there if the API server has denied the
Binding: the print of its answer. Another node that gets the same answer shows that no node helps. ``objects``: that
the failure is about, as in the status of the request.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from bowline.api import names
from bowline.api.meta import Object, ObjectRef, format_time, parse_time, status_of
from bowline.api.request_facts import refs_of, stored_refs

# The shortest time for which a repeated decision is denied.
SHORTEST: Final = timedelta(seconds=5)

_DECIDED = ("receivedResourceType", "receivedGPU", "resourceClaimAllocations", "extendedResourceClaimAllocation")


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision for a pod: the node, and the digest of the rest."""

    node: str
    digest: str


@dataclass(frozen=True, slots=True)
class FailedDecision:
    """A decision that has failed. ``has_ended``: its request is Failed, so that another one may repeat it.

    - ``reason``: as in the status of the request.
    - ``first``, ``last``: the first and the last of its consecutive failures; ``failures``: how many.
    - ``denial``: the print of the API server's denial of the Binding; empty if it has denied none.
    """

    decision: Decision
    reason: str
    first: datetime
    last: datetime
    has_ended: bool = True
    failures: int = 1
    denial: str = ""
    objects: tuple[ObjectRef, ...] = ()

    def denied_until(self, longest: timedelta) -> datetime:
        """Return until when the same decision is denied: as long again as it has failed, within the bounds."""
        return self.last + max(min(SHORTEST, longest), min(longest, self.last - self.first))

    def after(self, earlier: "FailedDecision | None") -> "FailedDecision":
        """Return this failure as the next one after ``earlier``: of one decision and reason the first time is kept.

        An attempt that is retried has no reason of its own: it begins, or continues, the row of failures.
        """
        if earlier is None or earlier.decision != self.decision:
            return self
        if self.has_ended and earlier.has_ended and self.reason != earlier.reason:
            return self
        failures = earlier.failures + self.failures
        return replace(self, first=earlier.first, failures=failures)

    def as_condition(self) -> dict[str, Any]:
        """Return the pod's condition."""
        content = {
            "node": self.decision.node,
            "digest": self.decision.digest,
            "failures": self.failures,
            **({"denial": self.denial} if self.denial else {}),
            **({"objects": stored_refs(self.objects)} if self.objects else {}),
        }
        return {
            "type": names.CONDITION_DECISION_FAILED,
            "status": "True" if self.has_ended else "False",
            "reason": self.reason,
            "message": json.dumps(content, separators=(",", ":")),
            "lastTransitionTime": format_time(self.first),
            "lastProbeTime": format_time(self.last),
        }


def decision_of(spec: Any) -> Decision:
    """Return the decision in a BindRequest's raw spec; an invalid one decides nothing."""
    spec = spec if isinstance(spec, Mapping) else {}
    return Decision(str(spec.get("selectedNode") or ""), print_of({key: spec.get(key) for key in _DECIDED}))


def failed_decision_of(pod: Object) -> FailedDecision | None:
    """Return the failed decision that a raw pod's condition stores, ended or not; None if there is none.

    What another version or another writer has stored in its place is none.
    """
    condition = condition_of(pod, names.CONDITION_DECISION_FAILED)
    first, last = parse_time(condition.get("lastTransitionTime")), parse_time(condition.get("lastProbeTime"))
    if first is None or last is None:
        return None
    try:
        content = json.loads(str(condition.get("message")))
        decision = Decision(str(content["node"]), str(content["digest"]))
        failures, denial = int(content["failures"]), str(content.get("denial", ""))
        objects = refs_of(content.get("objects"))
    except (ValueError, OverflowError, TypeError, LookupError, RecursionError):
        return None
    has_ended = condition.get("status") == "True"
    return FailedDecision(decision, str(condition.get("reason")), first, last, has_ended, failures, denial, objects)


def condition_of(obj: Object, kind: str) -> Object:
    """Return the stored condition of that type of a raw object; empty if there is none."""
    conditions = status_of(obj).get("conditions")
    entries = conditions if isinstance(conditions, list) else ()
    return next((entry for entry in entries if isinstance(entry, dict) and entry.get("type") == kind), {})


def print_of(content: Any) -> str:
    """Return the print of a JSON value, such as the message of the API server's denial of a Binding."""
    text = json.dumps(content, sort_keys=True, default=dict)
    return hashlib.sha256(text.encode()).hexdigest()[:8]
