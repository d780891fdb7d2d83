"""Random calls for the comparison of the model with a real API server, and what is compared of their answers.

Both get the same calls: creations, updates with the current, an older or no version, patches with the right and a
wrong UID, deletions with preconditions, finalizers, status, Bindings, lists in pages. Versions and UIDs differ, so
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
VOLUME_CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
NODES = "/api/v1/nodes"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
PATHS = (
    *(BINDREQUESTS, BINDREQUESTS, PODS, PODS, CLAIMS, CLAIMS),
    *(CONFIGMAPS, VOLUMES, VOLUME_CLAIMS, NODES, LEASES, LEASES),
)
# The selections of the product's watches.
WATCHES = (
    (BINDREQUESTS, "fieldSelector=status.phase%21%3DSucceeded"),
    (PODS, "fieldSelector=spec.nodeName%3D"),
    (PODS, "labelSelector=app%3Dx"),
    (PODS, "labelSelector=app+in+(x,z),!other"),
    (CLAIMS, ""),
)
_VERBS = (
    *("create", "create", "get", "patch", "patch", "status", "status", "put"),
    *("delete", "delete", "finalizers", "bind", "spec"),
)
_CHANGES: Mapping[str, dict[str, Any]] = {
    BINDREQUESTS: {"backoffLimit": 2},
    VOLUMES: {"claimRef": {"namespace": "default", "name": "c", "uid": "u"}},
    VOLUME_CLAIMS: {"volumeName": "pv"},
    NODES: {"taints": [{"key": "x", "effect": "NoSchedule"}]},
    LEASES: {"holderIdentity": None},
}
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
    if path in (BINDREQUESTS, CONFIGMAPS, LEASES):
        makers["put"] = lambda stored: Call(
            "PUT", target, target, {**body, "metadata": {**body["metadata"], **guards(stored)}}
        )
    if path in (BINDREQUESTS, CLAIMS, CONFIGMAPS):
        finalizer = names.FINALIZER if path == BINDREQUESTS else "example.com/f"
        finalizers = [] if label is None else [finalizer]
        makers["finalizers"] = lambda stored: patch({"metadata": {"finalizers": finalizers}}, stored)
    if path in (VOLUMES, VOLUME_CLAIMS):
        del makers["delete"]  # admission protects them by a finalizer
    if path == PODS:
        makers["bind"] = lambda stored: _bind(target, name, guards(stored).get("uid"))
    if path in _CHANGES:
        makers["spec"] = lambda stored: patch({"spec": _CHANGES[path]}, stored)
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
    storage = {"accessModes": ["ReadWriteOnce"], "storageClassName": "late"}
    gates = {"schedulingGates": [{"name": "example.com/g"}]} if is_gated else {}
    volume = {"capacity": {"storage": "1Gi"}, "persistentVolumeReclaimPolicy": "Retain", "hostPath": {"path": "/x"}}
    finalizer = {BINDREQUESTS: names.FINALIZER, CLAIMS: names.RESOURCE_CLAIM_PROTECTION, CONFIGMAPS: "example.com/f"}
    specs: Mapping[str, tuple[str, str, dict[str, Any]]] = {
        PODS: ("v1", "Pod", {"schedulerName": "kai-scheduler", "containers": [{"name": "m", "image": "i"}], **gates}),
        NODES: ("v1", "Node", {}),
        LEASES: ("coordination.k8s.io/v1", "Lease", {"holderIdentity": chance.choice("ab")}),
        VOLUMES: ("v1", "PersistentVolume", {**storage, **volume}),
        VOLUME_CLAIMS: ("v1", "PersistentVolumeClaim", {**storage, "resources": {"requests": {"storage": "1Gi"}}}),
        BINDREQUESTS: (
            *(names.API_VERSION, names.KIND),
            {"podName": name, "selectedNode": "n", "receivedGPU": {"portion": "0.00"}},
        ),
        CLAIMS: (
            *("resource.k8s.io/v1", "ResourceClaim"),
            {"devices": {"requests": [{"name": "dev", "exactly": {"deviceClassName": "c"}}]}},
        ),
    }
    metadata: dict[str, Any] = {"name": name, "labels": {"app": label}}
    if path in finalizer:
        metadata["finalizers"] = [finalizer[path]] if is_held else []
    if path == CONFIGMAPS:
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"a": chance.choice("12")}}
    api_version, kind, spec = specs[path]
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec}


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
        (spec.get("volumeName"), spec.get("holderIdentity")),
        # Admission adds that of a node that is not ready.
        [taint["key"] for taint in spec.get("taints") or () if not taint["key"].startswith("node.kubernetes.io/")],
        # Of volumes and nodes the world sets it.
        status.get("phase") if not stored["kind"].startswith(("PersistentVolume", "Node")) else None,
        sorted((condition["type"], condition["status"]) for condition in status.get("conditions") or ()),
        status.get("failedAttempts"),
        bool(status.get("allocation")),
        [entry["uid"] for entry in status.get("reservedFor") or ()],
        stored.get("data"),
    )
