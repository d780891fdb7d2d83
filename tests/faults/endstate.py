"""What a run has come to, in a form that two runs can be compared by: no UIDs, no times, no sentences."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from localcluster.api import ApiClient
from localcluster.cluster import Cluster
from shared.api import names
from tests.faults.plugins.fault_effects import OWNER
from tests.live import LiveCluster

RECONCILER = "bowline-reconciler"
# In place of the name of a request that is gone.
ORPHAN = "of nobody"
State = Mapping[str, Any]


def state_of(live: LiveCluster) -> State:
    """Return pods, requests and effects of the namespace."""
    pods = live.cluster.api.get(f"/api/v1/namespaces/{live.namespace}/pods")["items"]
    found = live.cluster.api.get(f"/apis/{names.API_VERSION}/namespaces/{live.namespace}/{names.PLURAL}")["items"]
    owners = {request["metadata"]["uid"]: request["metadata"]["name"] for request in found}
    effects = live.cluster.api.get(f"/api/v1/namespaces/{live.namespace}/configmaps?labelSelector={OWNER}")["items"]
    return {
        "pods": {pod["metadata"]["name"]: _pod(pod) for pod in pods},
        "requests": {request["metadata"]["name"]: _request(request) for request in found},
        "effects": sorted(owners.get(e["metadata"]["labels"][OWNER], ORPHAN) for e in effects),
    }


def leftovers(api: ApiClient, namespace: str, request_uid: str) -> list[str]:
    """Return the effects of one request; the truth observer's idea of what a rollback leaves behind."""
    found = api.get(f"/api/v1/namespaces/{namespace}/configmaps?labelSelector={OWNER}%3D{request_uid}")["items"]
    return [effect["metadata"]["name"] for effect in found]


def _pod(pod: dict[str, Any]) -> State:
    return {
        "node": pod["spec"].get("nodeName", ""),
        "annotations": pod["metadata"].get("annotations") or {},
        names.CONDITION_POD_BOUND: _conditions(pod).get(names.CONDITION_POD_BOUND),
    }


def _request(request: dict[str, Any]) -> State:
    status = request.get("status") or {}
    return {
        "phase": status.get("phase"),
        "reason": (status.get("reason") or "").partition(":")[0],
        # Equal, not at most: an attempt whose end was not written is made again and then counted, once.
        "failedAttempts": status.get("failedAttempts"),
        "conditions": _conditions(request),
        "nodeName": status.get("nodeName"),
        "suggestion": status.get("suggestion"),
        "finalizers": request["metadata"].get("finalizers") or [],
        "deleting": "deletionTimestamp" in request["metadata"],
    }


def _conditions(obj: dict[str, Any]) -> dict[str, str]:
    return {c["type"]: c["status"] for c in (obj.get("status") or {}).get("conditions") or () if _is_ours(c["type"])}


def _is_ours(kind: str) -> bool:
    return kind in ("Prepared", "Bound", "RolledBack", names.CONDITION_POD_BOUND)


@dataclass(frozen=True, slots=True)
class Deeds:
    """What the reconcilers have done in one namespace, by the API server's own account of what it carried out."""

    bindings: int
    effects_made: int
    effects_removed: int


def deeds(cluster: Cluster) -> Mapping[str, Deeds]:
    """Return the deeds by namespace."""
    counts: Counter[tuple[str, str]] = Counter()
    namespaces = set()
    for line in cluster.audit_log.read_text().splitlines():
        event = json.loads(line)
        about = event.get("objectRef") or {}
        if event["stage"] != "ResponseComplete" or not event["user"]["username"].endswith(f":{RECONCILER}"):
            continue
        if not 200 <= event["responseStatus"]["code"] < 300:
            continue
        namespace = about.get("namespace", "")
        namespaces.add(namespace)
        what = "/".join(filter(None, (about.get("resource"), about.get("subresource"))))
        counts[namespace, f"{event['verb']} {what}"] += 1
    return {
        namespace: Deeds(
            counts[namespace, "create pods/binding"],
            counts[namespace, "create configmaps"],
            counts[namespace, "delete configmaps"],
        )
        for namespace in namespaces
    }
