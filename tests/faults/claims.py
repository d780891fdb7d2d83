"""What the reconciler claims, read off objects: that a pod is on its node, or that nothing of a request is left."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shared.api import names


@dataclass(frozen=True, slots=True)
class Claim:
    """Somebody (``who``) says of a pod that it is on this node; as ``kind`` of claim, for the count."""

    kind: str
    who: str
    namespace: str
    pod: str
    uid: str
    node: str


@dataclass(frozen=True, slots=True)
class UndoneClaim:
    """A request says that nothing of its preparations is left."""

    who: str
    namespace: str
    uid: str
    kind: str = "RolledBack=True"


AnyClaim = Claim | UndoneClaim
ClaimsOf = Callable[[dict[str, Any]], list[AnyClaim]]


def claims_of_pod(pod: dict[str, Any]) -> list[AnyClaim]:
    """Return what a pod's condition says; it names no node, any will do."""
    metadata = pod["metadata"]
    if _condition(pod, names.CONDITION_POD_BOUND) != "True":
        return []
    who = f"pod {metadata['namespace']}/{metadata['name']}"
    return [Claim("PodBound=True", who, metadata["namespace"], metadata["name"], metadata["uid"], "")]


def claims_of_request(request: dict[str, Any]) -> list[AnyClaim]:
    """Return what a request's phase and conditions say."""
    metadata, spec = request["metadata"], request["spec"]
    namespace, who = metadata["namespace"], f"request {metadata['namespace']}/{metadata['name']}"
    owners = [owner["uid"] for owner in metadata.get("ownerReferences") or () if owner["kind"] == "Pod"]
    uid = spec.get("podUID") or (owners[0] if owners else "")
    kinds = {
        "Succeeded": (request.get("status") or {}).get("phase") == "Succeeded",
        "Bound=True": _condition(request, "Bound") == "True",
    }
    said = [kind for kind, is_said in kinds.items() if is_said]
    claims: list[AnyClaim] = [
        Claim(kind, who, namespace, spec["podName"], uid, spec["selectedNode"]) for kind in said
    ]
    if _condition(request, "RolledBack") == "True":
        claims.append(UndoneClaim(who, namespace, metadata["uid"]))
    return claims


def claims_of_event(event: dict[str, Any]) -> list[AnyClaim]:
    """Return what an event of ours says."""
    about = event.get("regarding") or {}
    if event.get("reportingController") != names.EVENT_SOURCE or event.get("reason") != "Bound":
        return []
    node, who = event["note"].removeprefix("bound to node "), f"event {event['metadata']['name']}"
    return [Claim("event Bound", who, about["namespace"], about["name"], about["uid"], node)]


def _condition(obj: dict[str, Any], kind: str) -> str:
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return next((str(c["status"]) for c in conditions if c["type"] == kind), "")
