"""The last decision for a pod that ended Failed, as the pod's PodBound condition stores it. Pure.

The reconciler writes the condition, the webhook reads it when the decision is repeated: every replica finds it, also
after a restart and after the deletion of the request. Decision 200.

    type: PodBound, status: "False", reason: <that of the failure>
    message: <sentence> [decision <node> <digest>; Pod <print>, Node <print>, ResourceClaim/<name> <print>]
    lastTransitionTime: the first of consecutive failures of the decision; lastProbeTime: the last one

``digest`` identifies the decision on that node. The *prints* are of the objects as they were after the failure: the
decision may succeed once one of them differs. GPU groups are no part of the digest, because schedulers name a new
group in each decision.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from bowline.api import names
from bowline.api.meta import Object, ObjectKey, parse_time, status_of, uid_of
from bowline.api.taints import hard_taints

# The shortest time for which a repeated decision is denied.
SHORTEST: Final = timedelta(seconds=5)
# Claims that are compared, at most: a message names one or two.
MAX_CLAIMS: Final = 4
POD, NODE = "Pod", "Node"
CLAIM, VOLUME_CLAIM = "ResourceClaim", "PersistentVolumeClaim"
# The print of an object that does not exist.
ABSENT: Final = "absent"

_DECIDED = ("receivedResourceType", "receivedGPU", "resourceClaimAllocations", "extendedResourceClaimAllocation")
_NOTE = re.compile(r" \[decision (\S+) ([0-9a-f]{8})(?:; (.*))?\]$", re.DOTALL)
_GPU_LABELS = "nvidia.com/gpu."
_OWN_PREFIX = "bowline.dev/"
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision for a pod: the node, and the digest of the rest."""

    node: str
    digest: str


@dataclass(frozen=True, slots=True)
class FailedDecision:
    """A decision that ended Failed. ``prints``: of the objects on which the result depends, by kind or kind/name."""

    decision: Decision
    reason: str
    message: str
    first: datetime
    last: datetime
    prints: Mapping[str, str]

    def denied_until(self, longest: timedelta) -> datetime:
        """Return until when the same decision is denied: as long again as it has failed, within the bounds."""
        return self.last + max(min(SHORTEST, longest), min(longest, self.last - self.first))


def decision_of(spec: Any) -> Decision:
    """Return the decision in a BindRequest's raw spec; an invalid one decides nothing."""
    spec = spec if isinstance(spec, Mapping) else {}
    return Decision(str(spec.get("selectedNode") or ""), _print({key: spec.get(key) for key in _DECIDED}))


def note_of(decision: Decision, prints: Mapping[str, str] | None = None) -> str:
    """Return what is appended to the condition's message; without prints the decision has not ended."""
    objects = ", ".join(f"{name} {value}" for name, value in (prints or {}).items())
    return f" [decision {decision.node} {decision.digest}{f'; {objects}' if objects else ''}]"


def without_note(message: str) -> str:
    """Return a condition's message for people."""
    return _NOTE.sub("", message)


def noted_decision(condition: Object) -> Decision | None:
    """Return the decision of a condition PodBound=False, ended or not; None if it names none."""
    match = _NOTE.search(str(condition.get("message") or ""))
    return Decision(match[1], match[2]) if match is not None and condition.get("status") == "False" else None


def failed_decision_of(pod: Object) -> FailedDecision | None:
    """Return the failed decision that a raw pod's condition stores; None if there is none."""
    condition = pod_bound(pod)
    decision, message = noted_decision(condition), str(condition.get("message") or "")
    first, last = parse_time(condition.get("lastTransitionTime")), parse_time(condition.get("lastProbeTime"))
    match = _NOTE.search(message)
    if decision is None or match is None or not match[3] or first is None or last is None:
        return None
    pairs = (entry.rpartition(" ") for entry in match[3].split(", "))
    prints = {name: value for name, _, value in pairs}
    return FailedDecision(decision, str(condition.get("reason")), without_note(message), first, last, prints)


def pod_bound(pod: Object) -> Object:
    """Return the stored PodBound condition of a raw pod; empty if there is none."""
    conditions = status_of(pod).get("conditions") or ()
    return next((entry for entry in conditions if entry.get("type") == names.CONDITION_POD_BOUND), {})


def pod_print(pod: Object) -> str:
    """Return the print of what users change of an unbound pod: labels, annotations, tolerations, gates, resources."""
    metadata, spec = pod["metadata"], pod.get("spec") or {}
    labels = {key: value for key, value in (metadata.get("labels") or {}).items() if not _is_group(key)}
    annotations = {key: value for key, value in (metadata.get("annotations") or {}).items() if not _is_own(key)}
    return _print([labels, annotations, spec])


def node_print(node: Object | None) -> str:
    """Return the print of a node: its identity, its taints and the labels of its GPUs."""
    if node is None:
        return ABSENT
    labels = node["metadata"].get("labels") or {}
    gpu_labels = {key: value for key, value in labels.items() if key.startswith(_GPU_LABELS)}
    return _print([uid_of(node), gpu_labels, hard_taints(node.get("spec") or {})])


def claims_named(pod: Object, message: str) -> Iterator[tuple[str, ObjectKey]]:
    """Yield kind and key of the pod's claims that a failure's message names."""
    namespace = pod["metadata"].get("namespace") or ""
    words = set(re.findall(r"[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?", message))
    named = [(kind, name) for kind, name in _claims(pod) if name in words]
    for kind, name in named[:MAX_CLAIMS]:
        yield kind, ObjectKey(namespace, name)


def _claims(pod: Object) -> Iterator[tuple[str, str]]:
    spec = pod.get("spec") or {}
    generated = {
        entry.get("name"): entry.get("resourceClaimName")
        for entry in status_of(pod).get("resourceClaimStatuses") or ()
    }
    for entry in spec.get("resourceClaims") or ():
        name = entry.get("resourceClaimName") or generated.get(entry.get("name"))
        if name:
            yield CLAIM, name
    for volume in spec.get("volumes") or ():
        if volume.get("persistentVolumeClaim"):
            yield VOLUME_CLAIM, volume["persistentVolumeClaim"].get("claimName") or ""
        elif volume.get("ephemeral"):
            yield VOLUME_CLAIM, f"{pod['metadata']['name']}-{volume.get('name')}"


def _is_group(label: str) -> bool:
    return label.startswith(names.LABEL_GPU_GROUP)


def _is_own(annotation: str) -> bool:
    return annotation == _LAST_APPLIED or annotation.startswith(_OWN_PREFIX)


def _print(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, default=dict)
    return hashlib.sha256(text.encode()).hexdigest()[:8]
