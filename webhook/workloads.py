"""Workloads of the built-in controllers: where their pod template is, and when it is judged.

Pure. A bad template is refused where the user is looking, at ``kubectl apply``, instead of in an event of a
ReplicaSet later. It is judged by the same chain as a pod; the pod hook stays the gate, this only tells earlier.

What must never be refused here is what a controller does on a user's behalf: objects owned by a controller whose own
template is judged (the next ReplicaSet of an old Deployment), and updates that leave the template alone (scaling,
labels, finalizers).
"""

from collections.abc import Mapping
from typing import Any, Final

from shared.api.meta import Object
from shared.framework import structure
from shared.framework.admission import ALLOWED, AdmissionChain, Judgement
from shared.framework.plugin import AdmissionInfo

# (API group, kind) -> fields down to the pod template. The version does not matter: the template never moved.
TEMPLATES: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    ("apps", "Deployment"): ("spec", "template"),
    ("apps", "StatefulSet"): ("spec", "template"),
    ("apps", "DaemonSet"): ("spec", "template"),
    ("apps", "ReplicaSet"): ("spec", "template"),
    ("", "ReplicationController"): ("spec", "template"),
    ("batch", "Job"): ("spec", "template"),
    ("batch", "CronJob"): ("spec", "jobTemplate", "spec", "template"),
}


def is_workload(group: str, kind: str) -> bool:
    """Return whether the kind has a pod template that is judged."""
    return (group, kind) in TEMPLATES


def judge_workload(
    chain: AdmissionChain, group: str, raw: dict[str, Any], old: Object | None, info: AdmissionInfo
) -> Judgement:
    """Judge the pod template of a workload of ``info.kind``. The template's content is changed in place."""
    if structure.is_deleting(raw):
        return ALLOWED
    malformed = structure.workload_faults(raw)
    if malformed:
        return Judgement(malformed)
    if _has_judged_owner(raw):
        return ALLOWED
    fields = TEMPLATES[group, info.kind]
    template = _at(raw, fields)
    if template is None or (old is not None and _at(old, fields) == template):
        return ALLOWED  # without a template there is nothing to judge; the API server says whether it may be so
    return chain.validate_template(template, ".".join(fields), info)


def _has_judged_owner(raw: Object) -> bool:
    return any(
        owner.get("controller") and is_workload(_group(owner.get("apiVersion") or ""), owner.get("kind") or "")
        for owner in raw["metadata"].get("ownerReferences") or ()
    )


def _group(api_version: str) -> str:
    return api_version.rpartition("/")[0]


def _at(raw: Any, fields: tuple[str, ...]) -> Any:
    """Return what is at the fields; None where the way there ends."""
    for field in fields:
        if not isinstance(raw, dict):
            return None
        raw = raw.get(field)
    return raw
