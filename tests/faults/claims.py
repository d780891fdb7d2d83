"""The reconciler's claims in objects: that a pod is on its node, or that nothing of a request is left."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bowline.api import names


@dataclass(frozen=True, slots=True)
class Claim:
    """An object (``source``) states that a pod is on this node; ``kind`` of claim is for the count."""

    kind: str
    source: str
    namespace: str
    pod: str
    uid: str
    node: str


@dataclass(frozen=True, slots=True)
class UndoneClaim:
    """A request states that its side effects are completely undone."""

    source: str
    namespace: str
    uid: str
    kind: str = "RolledBack=True"


AnyClaim = Claim | UndoneClaim
ClaimsOf = Callable[[dict[str, Any]], list[AnyClaim]]


def claims_of_pod(pod: dict[str, Any]) -> list[AnyClaim]:
    """Return the claim of a pod's condition; it names no node, so any node fits."""
    metadata = pod["metadata"]
    if _condition(pod, names.CONDITION_POD_BOUND) != "True":
        return []
    source = f"pod {metadata['namespace']}/{metadata['name']}"
    return [Claim("PodBound=True", source, metadata["namespace"], metadata["name"], metadata["uid"], "")]


def claims_of_request(request: dict[str, Any]) -> list[AnyClaim]:
    """Return the claims of a request's phase and conditions."""
    metadata, spec = request["metadata"], request["spec"]
    namespace, source = metadata["namespace"], f"request {metadata['namespace']}/{metadata['name']}"
    owners = [owner["uid"] for owner in metadata.get("ownerReferences") or () if owner["kind"] == "Pod"]
    uid = spec.get("podUID") or (owners[0] if owners else "")
    kinds = {
        "Succeeded": (request.get("status") or {}).get("phase") == "Succeeded",
        "Bound=True": _condition(request, "Bound") == "True",
    }
    claim_kinds = [kind for kind, is_claimed in kinds.items() if is_claimed]
    claims: list[AnyClaim] = [
        Claim(kind, source, namespace, spec["podName"], uid, spec["selectedNode"]) for kind in claim_kinds
    ]
    if _condition(request, "RolledBack") == "True":
        claims.append(UndoneClaim(source, namespace, metadata["uid"]))
    return claims


def claims_of_event(event: dict[str, Any]) -> list[AnyClaim]:
    """Return the claim of an event of ours."""
    about = event.get("regarding") or {}
    if event.get("reportingController") != names.EVENT_SOURCE or event.get("reason") != "Bound":
        return []
    node, source = event["note"].removeprefix("bound to node "), f"event {event['metadata']['name']}"
    return [Claim("event Bound", source, about["namespace"], about["name"], about["uid"], node)]


def _condition(obj: dict[str, Any], kind: str) -> str:
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return next((str(c["status"]) for c in conditions if c["type"] == kind), "")
