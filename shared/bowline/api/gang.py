"""Gangs: which pods belong to a PodGroup, and how many of them it requires at least. Pure.

Read from objects only, so that whoever reads them answers the same. What follows is for others to decide.
"""

from collections.abc import Collection, Mapping
from typing import Any

from bowline.api import names
from bowline.api.meta import Object, ObjectKey, ObjectRef, has_ended, is_deleting, key_of


def gang_of(pod: Object) -> ObjectRef | None:
    """Return the PodGroup that the pod names; None if it is in no gang.

    Of a pod that names both, KAI-Scheduler's counts.
    """
    namespace = key_of(pod).namespace
    kai_name = (pod["metadata"].get("annotations") or {}).get(names.POD_GROUP_NAME)
    if kai_name:
        return ObjectRef(names.KAI_POD_GROUP_API, names.POD_GROUP_KIND, ObjectKey(namespace, kai_name))
    own_name = ((pod.get("spec") or {}).get("schedulingGroup") or {}).get("podGroupName")
    if own_name:
        return ObjectRef(names.POD_GROUP_API, names.POD_GROUP_KIND, ObjectKey(namespace, own_name))
    return None


def min_members(pod_group: Object) -> int:
    """Return how many pods of the PodGroup are bound together at least; 0 if each is bound by itself.

    Of a group of KAI-Scheduler without ``minMember`` it is the sum over its subgroups without subgroups of their own.
    One with ``minSubGroup`` has no minimum here: which of its subgroups the scheduler chose is not recorded.
    """
    spec = pod_group.get("spec") or {}
    gang = (spec.get("schedulingPolicy") or {}).get("gang") or {}
    own = _count(spec.get("minMember")) or _count(gang.get("minCount"))
    subgroups: Collection[Mapping[str, Any]] = spec.get("subGroups") or ()
    if own or any(_count(part.get("minSubGroup")) for part in (spec, *subgroups)):
        return own
    parents = {subgroup.get("parent") for subgroup in subgroups}
    return sum(_count(subgroup.get("minMember")) for subgroup in subgroups if subgroup.get("name") not in parents)


def counts_as_bound(pod: Object) -> bool:
    """Return whether a pod is on a node and counts for its gang."""
    return bool(pod["spec"].get("nodeName")) and counts_for_gang(pod)


def counts_for_gang(pod: Object) -> bool:
    """Return whether a pod counts for its gang: one that is ending, or has failed, leaves its place."""
    has_failed = has_ended(pod) and (pod.get("status") or {}).get("phase") == "Failed"
    return not is_deleting(pod) and not has_failed


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0
