"""The last decision for a pod that has failed, as a condition of the pod stores it. Pure.

The reconciler writes the condition, the webhook reads it when the decision is repeated: every replica finds it, also
after a restart and after the deletion of the request. `bowline explain` reads it between two decisions. Its message
is JSON, for programs; the sentence for people is that of the condition PodBound beside it. Decisions 200 and 275.

    type: bowline.dev/DecisionFailed, reason: <that of the failure>
    status: "True" once the decision has ended Failed; "False" while it is attempted again
    message: {"node": NAME, "digest": HEX, "failures": COUNT, "denial": HEX,
              "objects": [{"kind": KIND, "name": NAME, "print": TEXT}]}
    lastTransitionTime: the first of consecutive failures of the decision; lastProbeTime: the last one

``digest`` identifies the decision on that node, ``failures`` counts its consecutive ends. The *prints* are of the
objects as they were after the failure: the decision may succeed once one of them differs. GPU groups are no part of
the digest, because schedulers name a new group in each decision. ``denial`` is there if the API server has denied the
Binding: the print of its answer. Another node that gets the same answer shows that no node helps.
"""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from bowline.api import names
from bowline.api.meta import Object, ObjectRef, format_time, parse_time, status_of
from bowline.api.node_view import facts_of

# The shortest time for which a repeated decision is denied.
SHORTEST: Final = timedelta(seconds=5)
# Claims that are compared, at most: a failure is about one or two.
MAX_CLAIMS: Final = 4
POD, NODE = "Pod", "Node"
CLAIM, VOLUME_CLAIM = "ResourceClaim", "PersistentVolumeClaim"
# The print of an object that does not exist.
ABSENT: Final = "absent"

_DECIDED = ("receivedResourceType", "receivedGPU", "resourceClaimAllocations", "extendedResourceClaimAllocation")
_OWN_PREFIX = "bowline.dev/"
_METADATA = ("labels", "annotations")


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision for a pod: the node, and the digest of the rest."""

    node: str
    digest: str


@dataclass(frozen=True, slots=True)
class Dependency:
    """An object on which a decision's result depends, and its print. ``name``: empty for the pod and its node."""

    kind: str
    name: str
    print: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" if self.name else self.kind


@dataclass(frozen=True, slots=True)
class FailedDecision:
    """A decision that has failed. ``has_ended``: its request is Failed, so that another one may repeat it.

    - ``reason``: as in the status of the request.
    - ``first``, ``last``: the first and the last of its consecutive failures; ``failures``: how many.
    - ``objects``: on which the result depends; empty until it has ended.
    - ``denial``: the print of the API server's denial of the Binding; empty if it has denied none.
    """

    decision: Decision
    reason: str
    first: datetime
    last: datetime
    has_ended: bool = True
    failures: int = 1
    objects: tuple[Dependency, ...] = ()
    denial: str = ""

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
            "objects": [{"kind": entry.kind, "name": entry.name, "print": entry.print} for entry in self.objects],
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
    return Decision(str(spec.get("selectedNode") or ""), _print({key: spec.get(key) for key in _DECIDED}))


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
        objects = tuple(Dependency(str(o["kind"]), str(o["name"]), str(o["print"])) for o in content["objects"])
    except (ValueError, TypeError, LookupError, RecursionError):
        return None
    has_ended = condition.get("status") == "True"
    return FailedDecision(decision, str(condition.get("reason")), first, last, has_ended, failures, objects, denial)


def condition_of(obj: Object, kind: str) -> Object:
    """Return the stored condition of that type of a raw object; empty if there is none."""
    conditions = status_of(obj).get("conditions")
    entries = conditions if isinstance(conditions, list) else ()
    return next((entry for entry in entries if isinstance(entry, dict) and entry.get("type") == kind), {})


def claims_of(objects: Iterable[ObjectRef]) -> tuple[ObjectRef, ...]:
    """Return the claims among the objects that a failure is about, at most MAX_CLAIMS."""
    claims = {(ref.kind, ref.key): ref for ref in objects if ref.kind in (CLAIM, VOLUME_CLAIM)}
    return tuple(claims.values())[:MAX_CLAIMS]


def denial_print(message: str) -> str:
    """Return the print of the API server's denial of a Binding."""
    return _print(message)


def pod_print(pod: Object) -> str:
    """Return the print of what users and schedulers write of an unbound pod: labels, annotations and the spec.

    Without what the reconciler or a plugin has written to it, by name or by the object's record of its writers: that
    is there during an attempt and gone after its rollback. ``pod``: from a live read or from the reconciler's cache.
    """
    metadata, spec, written = pod["metadata"], pod.get("spec") or {}, _keys_of_binder(pod)
    labels, annotations = (
        {
            key: value
            for key, value in (metadata.get(field) or {}).items()
            if not _is_own(key) and f"f:{key}" not in written[field]
        }
        for field in _METADATA
    )
    return _print([labels, annotations, spec])


def node_print(node: Object | None) -> str:
    """Return the print of a node: its identity, the labels of its GPUs, and what decisions use of it."""
    return ABSENT if node is None else _print(facts_of(node))


def binder_entries(pod: Object) -> list[Any]:
    """Return the entries of the pod's managedFields that record writes of the reconciler and its plugins."""
    entries = pod["metadata"].get("managedFields") or ()
    return [
        entry
        for entry in entries
        if entry.get("manager") == names.FIELD_MANAGER_RECONCILER and not entry.get("subresource")
    ]


def _keys_of_binder(pod: Object) -> Mapping[str, Collection[str]]:
    recorded = [(entry.get("fieldsV1") or {}).get("f:metadata") or {} for entry in binder_entries(pod)]
    return {field: {key for fields in recorded for key in fields.get(f"f:{field}") or ()} for field in _METADATA}


def _is_own(key: str) -> bool:
    return key == names.LAST_APPLIED or key.startswith((_OWN_PREFIX, names.LABEL_GPU_GROUP))


def _print(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, default=dict)
    return hashlib.sha256(text.encode()).hexdigest()[:8]
