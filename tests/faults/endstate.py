"""The final state of a run, in a form that can be compared: without UIDs, times and messages.

The pod condition PodBound is best effort, as events are: a crash may lose it, so it is not compared.

Random names are replaced by what they refer to: a UID by its object, a generated name by its prefix. ``left_of`` is
the other half: the side effects that exist for an unbound pod.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bowline.api import names
from bowline.localcluster.cluster import Cluster
from bowline.plugins.gpu_sharing.reservation import reservation_name
from tests.faults.plugin_objects import GROUPS, group_name, read_objects
from tests.faults.plugins.fault_effects import OWNER
from tests.faults.scenarios import NODE
from tests.live import LiveCluster
from tests.plugins.claims import is_cleared
from tests.plugins.sharing import group_of

RECONCILER = "bowline-reconciler"
RESERVATIONS = names.RESERVATION_APP
# Replaces the name of a deleted request.
ORPHAN = "of a deleted request"
State = Mapping[str, Any]


def state_of(live: LiveCluster) -> State:
    """Return everything that a run may leave: pods, requests, effects, and the plugins' objects."""
    objects = read_objects(live)
    owners = {request["metadata"]["uid"]: request["metadata"]["name"] for request in objects.requests}
    claim_names = {claim["metadata"]["name"] for claim in objects.claims}
    state = {
        "pods": {pod["metadata"]["name"]: _pod(pod, claim_names) for pod in objects.pods},
        "requests": {request["metadata"]["name"]: _request(request) for request in objects.requests},
        "effects": sorted(owners.get(e["metadata"]["labels"][OWNER], ORPHAN) for e in objects.effects),
        "maps": {obj["metadata"]["name"]: obj.get("data", {}) for obj in objects.maps},
        **objects.plugins_state(),
    }
    anonymous: State = json.loads(_replace(json.dumps(state, sort_keys=True), objects.aliases()))
    return anonymous


def left_of(live: LiveCluster, name: str = "pod") -> list[str]:
    """Return the side effects for the run's pod of that name; none count once it is bound."""
    objects = read_objects(live)
    pod = next((obj for obj in objects.pods if obj["metadata"]["name"] == name), None)
    if pod is not None and pod["spec"].get("nodeName"):
        return []
    other_uids = {obj["metadata"]["uid"] for obj in objects.requests if obj["metadata"]["name"] != name}
    effects = [obj for obj in objects.effects if obj["metadata"]["labels"][OWNER] not in other_uids]
    return [f"effect {obj['metadata']['name']}" for obj in effects] + (
        objects.held_by(pod) if pod is not None else []
    )


def _replace(text: str, aliases: Mapping[str, str]) -> str:
    for generated_name in sorted(aliases, key=len, reverse=True):
        text = text.replace(generated_name, aliases[generated_name])
    return text


def _pod(pod: dict[str, Any], claim_names: Collection[str]) -> State:
    metadata, status = pod["metadata"], pod.get("status") or {}
    is_without_claim = is_cleared(pod, claim_names)
    return {
        "node": pod["spec"].get("nodeName", ""),
        "runtimeClass": pod["spec"].get("runtimeClassName"),
        "annotations": metadata.get("annotations") or {},
        "labels": metadata.get("labels") or {},
        "extendedResourceClaim": None if is_without_claim else status.get("extendedResourceClaimStatus"),
    }


def _request(request: dict[str, Any]) -> State:
    status = request.get("status") or {}
    return {
        "phase": status.get("phase"),
        "reason": (status.get("reason") or "").partition(":")[0],
        # Equal, not at most: an attempt whose end was not written is repeated and then counted once.
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
    return kind in ("Prepared", "Bound", "RolledBack")


@dataclass(slots=True)
class Deeds:
    """What the reconcilers have done in one namespace, from the API server's audit log of executed requests.

    ``made`` and ``removed`` are by resource and name.
    """

    bindings: int = 0
    creations: Counter[tuple[str, str]] = field(default_factory=Counter)
    removals: Counter[tuple[str, str]] = field(default_factory=Counter)

    def remaining(self, resource: str, name: str = "") -> int:
        """Return how many objects must exist: those created and not deleted; of one name, or of all."""
        return sum(
            count if deed is self.creations else -count
            for deed in (self.creations, self.removals)
            for (kind, object_name), count in deed.items()
            if kind == resource and name in ("", object_name)
        )


def deeds(cluster: Cluster) -> Mapping[str, Deeds]:
    """Return the deeds by namespace."""
    deeds_by_namespace: dict[str, Deeds] = {}
    for line in cluster.audit_lines():
        if f":{RECONCILER}" not in line:
            continue
        event = json.loads(line)
        about = event.get("objectRef") or {}
        if event["stage"] != "ResponseComplete" or not event["user"]["username"].endswith(f":{RECONCILER}"):
            continue
        if not 200 <= event["responseStatus"]["code"] < 300:
            continue
        here = deeds_by_namespace.setdefault(about.get("namespace", ""), Deeds())
        object_ = about.get("resource", ""), about.get("name", "")
        match event["verb"], about.get("subresource", ""):
            case "create", "binding":
                here.bindings += 1
            case "create", "":
                here.creations[object_] += 1
            case "delete", "":
                here.removals[object_] += 1
    return deeds_by_namespace


def made_by_us(objects: Iterable[Any]) -> int:
    """Return how many of these a reconciler has created; the test creates the others."""
    # Who joins a group annotates its reservation: only the creator has written more than metadata.
    creators = (
        {
            entry.get("manager")
            for entry in obj["metadata"].get("managedFields") or ()
            if not entry.get("subresource") and set(entry["fieldsV1"]) - {"f:metadata"}
        }
        for obj in objects
    )
    return sum(RECONCILER in each for each in creators)


def differences(expected: State, actual: State) -> str:
    """Return the differences, kind by kind."""
    return "; ".join(
        f"{kind}: {expected[kind]} became {actual[kind]}" for kind in expected if expected[kind] != actual[kind]
    )


def miscounts(live: LiveCluster, deeds_by_namespace: Mapping[str, Deeds]) -> list[str]:
    """Return where the executed writes of a run do not match the existing objects."""
    objects, did = read_objects(live), deeds_by_namespace[live.namespace]
    elsewhere = deeds_by_namespace.get(RESERVATIONS, Deeds())
    groups = [group_name(live, group) for group in GROUPS]
    extended_claims = [
        obj for obj in objects.claims if names.EXTENDED_RESOURCE_CLAIM in (obj["metadata"].get("annotations") or {})
    ]
    reservations = [obj for obj in objects.reservations if group_of(obj) in groups]
    counts = (
        ("effective Bindings and bound pods", did.bindings, sum("nodeName" in pod["spec"] for pod in objects.pods)),
        ("ConfigMaps made less removed and left", did.remaining("configmaps"), made_by_us(objects.maps)),
        ("effects made less removed and left", did.remaining("secrets"), len(objects.effects)),
        ("claims made less removed and left", did.remaining("resourceclaims"), len(extended_claims)),
        (
            "reservations made less removed and left",
            sum(elsewhere.remaining("pods", reservation_name(NODE, group)) for group in groups),
            made_by_us(reservations),
        ),
    )
    return [f"{what}: {executed} and {left}" for what, executed, left in counts if executed != left]


def left_behind(live: LiveCluster) -> list[str]:
    """Return the existing objects that belong to pods; after these are deleted, all of them must be deleted."""
    objects = read_objects(live)
    mine = [obj for obj in objects.maps if obj["metadata"].get("ownerReferences")]
    return [obj["metadata"]["name"] for obj in (*objects.pods, *objects.claims, *objects.reservations, *mine)]
