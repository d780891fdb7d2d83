"""Kubernetes' PodGroup of a pod, and which of the pod's claims it shares (KEP-5729). Pure.

A claim that is an entry of the PodGroup's ``spec.resourceClaims`` is one claim for all pods of the group: it is
reserved for the PodGroup, never for a pod, and its lifecycle is the PodGroup's. A pod knows only its PodGroup's name.
"""

from collections.abc import Mapping
from typing import Any

from bowline.api import names
from bowline.api.meta import Object, uid_of
from bowline.plugins.dynamic_resources.claim import Consumer, pod_consumer

# An entry of a pod and one of its PodGroup are the same claim if all of these are equal.
_IDENTITY = ("name", "resourceClaimName", "resourceClaimTemplateName")


def pod_group_name(pod: Object) -> str:
    """Return the name of the pod's PodGroup; empty if it has none."""
    return str((pod["spec"].get("schedulingGroup") or {}).get("podGroupName") or "")


def claim_consumer(pod: Object, entry: Mapping[str, Any], pod_group: Object | None) -> Consumer:
    """Return what a claim of the pod is reserved for. ``entry``: of the pod's ``spec.resourceClaims``.

    ``pod_group``: the pod's PodGroup; None if it has none.
    """
    if pod_group is None or _identity(entry) not in map(_identity, pod_group["spec"].get("resourceClaims") or ()):
        return pod_consumer(pod)
    uid = uid_of(pod_group)
    return Consumer(
        uid,
        {
            "apiGroup": names.POD_GROUP_GROUP,
            "resource": names.POD_GROUP_PLURAL,
            "name": pod_group["metadata"]["name"],
            "uid": uid,
        },
    )


def is_pod_group(owner: Mapping[str, Any]) -> bool:
    """Return whether an owner reference names a PodGroup of Kubernetes, in any version of its API."""
    group = str(owner.get("apiVersion") or "").partition("/")[0]
    return owner.get("kind") == names.POD_GROUP_KIND and group == names.POD_GROUP_GROUP


def _identity(entry: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(entry.get(field) or "") for field in _IDENTITY)
