"""Random calls for the comparison of the model with a real API server, and what is compared of their answers.

Both get the same calls: creations, updates with the current, an older or no version, patches with the right and a
wrong UID, deletions with preconditions, finalizers, status, Bindings. Versions and UIDs differ between the two, so
they are filled in for each.

Not compared, because the model leaves it out: what admission adds, and managed fields (with the first patch by a
client a custom resource gets a new version, whatever it changes).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from bowline.api import names
from bowline.api.meta import Object
from tests.simulation.server import MERGE, STRATEGIC

BINDREQUESTS = "/apis/scheduling.run.ai/v1alpha2/namespaces/default/bindrequests"
PODS = "/api/v1/namespaces/default/pods"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
CONFIGMAPS = "/api/v1/namespaces/default/configmaps"
VOLUMES = "/api/v1/persistentvolumes"
PATHS = (BINDREQUESTS, BINDREQUESTS, PODS, PODS, CLAIMS, CLAIMS, CONFIGMAPS, VOLUMES)
# The selections of the product's watches.
WATCHES = (
    (BINDREQUESTS, "fieldSelector=status.phase%21%3DSucceeded"),
    (PODS, "fieldSelector=spec.nodeName%3D"),
    (PODS, "labelSelector=app%3Dx"),
    (CLAIMS, ""),
)
_VERBS = (
    *("create", "create", "get", "patch", "patch", "status", "status", "put"),
    *("delete", "delete", "finalizers", "bind", "spec"),
)
_WRONG_UID = "00000000-0000-4000-8000-00000000000f"


@dataclass(frozen=True, slots=True)
class Call:
    """One request. ``target``: the path of the object that it is about."""

    method: str
    path: str
    target: str
    body: Any = None
    content_type: str = "application/json"


# What each side has stored last, by path; None if it has nothing there.
Stored = Mapping[str, Object | None]


def draw_call(chance: Random, name: str) -> Callable[[Stored], Call]:
    """Draw a call about an object of that name; returns how it is made for one side."""
    path, verb = chance.choice(PATHS), chance.choice(_VERBS)
    version, uid = chance.choice(("", "", "current", "stale")), chance.choice(("", "", "right", "wrong"))
    grace, label = chance.choice((None, 0, 5)), chance.choice(("x", "y", None))
    body, status = new_object(path, name, chance), _status(path, chance)
    content_type = STRATEGIC if path == PODS and chance.random() < 0.5 else MERGE
    target = f"{path}/{name}"

    def guards(stored: Stored) -> dict[str, str]:
        present = stored.get(target)
        conditions: dict[str, str] = {}
        if version and present:
            now = present["metadata"]["resourceVersion"]
            conditions["resourceVersion"] = now if version == "current" else str(int(now) - 1)
        if uid and present:
            conditions["uid"] = present["metadata"]["uid"] if uid == "right" else _WRONG_UID
        return conditions

    def patch(content: dict[str, Any], stored: Stored, how: str = MERGE, subresource: str = "") -> Call:
        metadata = {**content.get("metadata", {}), **guards(stored)}
        return Call("PATCH", target + subresource, target, {**content, "metadata": metadata}, how)

    makers: dict[str, Callable[[Stored], Call]] = {
        "create": lambda _: Call("POST", path, target, body),
        "patch": lambda stored: patch({"metadata": {"labels": {"app": label}}}, stored, content_type),
        "delete": lambda stored: _delete(target, guards(stored), grace if path == PODS else None),
    }
    if path in (BINDREQUESTS, PODS, CLAIMS):
        makers["status"] = lambda stored: patch({"status": status}, stored, content_type, "/status")
    if path in (BINDREQUESTS, CONFIGMAPS):
        makers["put"] = lambda stored: Call(
            "PUT", target, target, {**body, "metadata": {**body["metadata"], **guards(stored)}}
        )
    if path in (BINDREQUESTS, CLAIMS, CONFIGMAPS):
        finalizer = names.FINALIZER if path == BINDREQUESTS else "example.com/f"
        finalizers = [] if label is None else [finalizer]
        makers["finalizers"] = lambda stored: patch({"metadata": {"finalizers": finalizers}}, stored)
    if path == VOLUMES:
        del makers["delete"]  # admission protects volumes by a finalizer
    if path == PODS:
        makers["bind"] = lambda stored: _bind(target, name, guards(stored).get("uid"))
    if path in (BINDREQUESTS, VOLUMES):
        reference = {"namespace": "default", "name": "c", "uid": "u"}
        spec: dict[str, Any] = {"backoffLimit": 2} if path == BINDREQUESTS else {"claimRef": reference}
        makers["spec"] = lambda stored: patch({"spec": spec}, stored)
    return makers.get(verb, lambda _: Call("GET", target, target))


def _delete(target: str, guards: dict[str, str], grace: int | None) -> Call:
    options: dict[str, Any] = {"preconditions": guards} if guards else {}
    if grace is not None:
        options["gracePeriodSeconds"] = grace
    return Call("DELETE", target, target, options or None)


def _bind(target: str, name: str, uid: str | None) -> Call:
    metadata = {"name": name, "annotations": {"bound": "yes"}, **({"uid": uid} if uid else {})}
    node = {"apiVersion": "v1", "kind": "Node", "name": "gpu-node-0"}
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": node}
    return Call("POST", f"{target}/binding", target, body)


def new_object(path: str, name: str, chance: Random) -> dict[str, Any]:
    """Return an object to create."""
    is_held, label, is_gated = chance.random() < 0.4, chance.choice("xy"), chance.random() < 0.2
    metadata: dict[str, Any] = {"name": name, "labels": {"app": label}}
    if path == PODS:
        gates = {"schedulingGates": [{"name": "example.com/g"}]} if is_gated else {}
        spec = {"schedulerName": "bowline", "containers": [{"name": "m", "image": "i"}], **gates}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    if path == VOLUMES:
        volume = {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "late",
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": "/x"},
        }
        return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata, "spec": volume}
    if path == BINDREQUESTS:
        metadata["finalizers"] = [names.FINALIZER] if is_held else []
        request = {"podName": name, "selectedNode": "n", "receivedGPU": {"portion": "0.00"}}
        return {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": metadata, "spec": request}
    if path == CLAIMS:
        metadata["finalizers"] = [names.RESOURCE_CLAIM_PROTECTION] if is_held else []
        devices = {"requests": [{"name": "dev", "exactly": {"deviceClassName": "c"}}]}
        kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
        return {**kind, "metadata": metadata, "spec": {"devices": devices}}
    metadata["finalizers"] = ["example.com/f"] if is_held else []
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"a": chance.choice("12")}}


def _status(path: str, chance: Random) -> dict[str, Any]:
    if path == BINDREQUESTS:
        phase = chance.choice(("Pending", "Succeeded", "Failed"))
        return {"phase": phase, "failedAttempts": chance.randint(0, 2)}
    if path == PODS:
        kind = chance.choice(("PodBound", "Other"))
        return {"conditions": [{"type": kind, "status": chance.choice(("True", "False"))}]}
    result = {"request": "dev", "driver": "d.example.com", "pool": "p", "device": "d0"}
    allocation = {"devices": {"results": [result]}}
    consumer = {"resource": "pods", "name": "p", "uid": chance.choice(("u1", "u2"))}
    return chance.choice(
        (
            {"allocation": allocation},
            {"allocation": allocation, "reservedFor": [consumer]},
            {"reservedFor": None},
            {"allocation": None, "reservedFor": None},
            {"reservedFor": [consumer]},
        )
    )


def compared(code: int, body: Object) -> Any:
    """Return what is compared of an answer."""
    if code >= 400:
        causes = [cause.get("field") for cause in (body.get("details") or {}).get("causes") or ()]
        return code, body.get("reason"), "metadata.uid" in causes
    return (code, "Status") if body.get("kind") == "Status" else (code, *content_of(body))


def content_of(stored: Object) -> tuple[Any, ...]:
    """Return what is compared of an object."""
    metadata, spec, status = stored["metadata"], stored.get("spec") or {}, stored.get("status") or {}
    return (
        stored["kind"],
        # Added by admission, which is not modelled.
        [name for name in metadata.get("finalizers") or [] if not name.startswith("kubernetes.io/")],
        bool(metadata.get("deletionTimestamp")),
        metadata.get("deletionGracePeriodSeconds"),
        dict(metadata.get("labels") or {}),
        dict(metadata.get("annotations") or {}),
        metadata.get("generation") if stored["kind"] == names.KIND else None,
        spec.get("nodeName"),
        spec.get("backoffLimit"),
        (spec.get("claimRef") or {}).get("name"),
        status.get("phase") if stored["kind"] != "PersistentVolume" else None,
        sorted((condition["type"], condition["status"]) for condition in status.get("conditions") or ()),
        status.get("failedAttempts"),
        bool(status.get("allocation")),
        [entry["uid"] for entry in status.get("reservedFor") or ()],
        stored.get("data"),
    )
