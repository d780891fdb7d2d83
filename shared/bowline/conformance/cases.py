"""The cases of a binder's conformance: what the BindRequest API promises to schedulers and to pods.

Each case is a situation that was recorded with a real scheduler or found as a defect of a binder. A case raises
CaseFailure; reports that are false when they are made fail it as well.
"""

import time
from contextlib import suppress

from bowline.api import names
from bowline.conformance.binder import SILENT, Situation
from bowline.conformance.case import NODE, OTHER_NODE, Case
from bowline.kube.resources import BINDREQUESTS, PODS, RESOURCECLAIMS
from bowline.localcluster.errors import LocalApiError
from bowline.testing.builders import bind_request, resource_claim

# How long a program is observed that must not do something.
OBSERVED_S = 5.0
_PODS, _KILLS = 30, 3
# A creationTimestamp has full seconds.
_OLDER_S = 1.5


def _binds(case: Situation) -> None:
    case.create_pod("pod")
    case.request("pod")
    case.await_phase("pod", "Succeeded")
    case.require(case.node_of("pod") == NODE, f"the pod is on {case.node_of('pod') or 'no node'}, not on {NODE}")


def _rejected(case: Situation) -> None:
    # The API server rejects the Binding of a pod with a scheduling gate, each time.
    _await_running(case)
    case.create_pod("pod", schedulingGates=[{"name": "example.com/gate"}])
    case.request("pod")
    _observe(case, "pod")
    case.require(not case.node_of("pod"), "the pod was bound")


def _bound_elsewhere(case: Situation) -> None:
    case.create_pod("pod")
    case.bind("pod", OTHER_NODE)
    case.request("pod")
    case.await_phase("pod", "Failed", "deleted", "Succeeded")
    case.require(case.phase("pod") != "Succeeded", f"Succeeded for {NODE}, but the pod is on {OTHER_NODE}")


def _bound_already(case: Situation) -> None:
    # As after a Binding whose reply was lost.
    case.create_pod("pod")
    case.bind("pod", NODE)
    case.request("pod", backoffLimit=1)
    case.await_phase("pod", "Succeeded")


def _deleted_request(case: Situation) -> None:
    _await_running(case)
    uid = case.create_pod("pod")
    request = bind_request("pod", NODE, case.namespace, uid, backoffLimit=1000)
    request["metadata"]["finalizers"] = ["example.com/kept"]
    path = BINDREQUESTS.path(case.namespace)
    try:
        with case.denied_binds("pod"):
            case.api.post(path, request)
            case.delete_request("pod")
            _let_run(case)
        _let_run(case)
        case.require(not case.node_of("pod"), "the pod was bound by a request that is being deleted")
        case.require(case.phase("pod") != "deleted", "a finalizer of another program was removed")
    finally:
        with suppress(LocalApiError):  # the case has failed, and the request is gone
            _remove_finalizers(case, f"{path}/pod")


def _absent_node(case: Situation) -> None:
    case.create_pod("pod")
    case.request("pod", "absent-node", backoffLimit=0)
    case.await_phase("pod", "Failed", "deleted")
    case.require(not case.node_of("pod"), "the pod was bound")


def _successor(case: Situation) -> None:
    _await_running(case)
    uid = case.create_pod("pod")
    case.delete_pod("pod")
    case.create_pod("pod")
    # The garbage collector deletes the request as well, sooner or later.
    case.request("pod", uid=uid, backoffLimit=0)
    _observe(case, "pod")
    case.require(not case.node_of("pod"), "the pod was bound by a request for its deleted predecessor")


def _share(case: Situation) -> None:
    for name in ("one", "two"):
        case.create_pod(name, share=True)
        case.request_share(name, case.namespace)
    devices = set()
    for name in ("one", "two"):
        case.await_phase(name, "Succeeded")
        devices.add(case.configmaps()[f"{name}-bcdfghj-shared-gpu-0"].get(names.VISIBLE_DEVICES, ""))
    reserved = {
        entry["metadata"]["annotations"][names.RESERVED_DEVICE] for entry in case.reservations(case.namespace)
    }
    case.require(devices == reserved, f"the containers get {sorted(devices)}, reserved is {sorted(reserved)}")
    for name in ("one", "two"):
        case.delete_pod(name)
    case.until("the device is released", lambda: not case.reservations(case.namespace))


def _withdrawn(case: Situation) -> None:
    _begin_share(case)
    case.delete_request("share")
    _await_nothing(case)


def _killed(case: Situation) -> None:
    pods = [f"pod-{number}" for number in range(_PODS)]
    for name in pods:
        case.create_pod(name)
    batch = _PODS // _KILLS
    for number in range(0, _PODS, batch):
        *before, last = pods[number : number + batch]
        for name in before:
            case.request(name)
        case.until("a pod is bound", lambda before=before: any(map(case.node_of, before)))  # type: ignore[misc]
        case.binder.kill()
        # Its creation is seen by no watch.
        case.request(last)
        case.binder.start()
    for name in pods:
        case.await_phase(name, "Succeeded")
        case.require(case.node_of(name) == NODE, f"pod {name} is on {case.node_of(name) or 'no node'}")


def _killed_share(case: Situation) -> None:
    _begin_share(case)
    case.binder.kill()
    case.delete_request("share")
    case.binder.start()
    _await_nothing(case)


def _backoff_limit(case: Situation) -> None:
    _await_running(case)
    for name in ("limited", "patient"):
        case.create_pod(name)
    with case.denied_binds("limited", "patient"):
        case.request("patient", backoffLimit=1000)
        case.request("limited", backoffLimit=1)
        case.await_phase("limited", "Failed", "deleted")
        _let_run(case)
        case.require(case.phase("patient") in ("", "Pending"), "a request with attempts left has ended")
    case.await_phase("patient", "Succeeded")


def _final_phases(case: Situation) -> None:
    case.create_pod("failed")
    case.request("failed", "absent-node", backoffLimit=0)
    case.await_phase("failed", "Failed", "deleted")
    case.create_pod("bound")
    case.request("bound")
    case.await_phase("bound", "Succeeded")
    for name in ("failed", "bound"):
        case.touch(PODS.path(case.namespace, name))
        if case.phase(name) != "deleted":
            case.touch(BINDREQUESTS.path(case.namespace, name))
    _let_run(case)
    case.require(case.phase("failed") in ("Failed", "deleted"), f"Failed has become {case.phase('failed')}")
    case.require(case.phase("bound") in ("Succeeded", "deleted"), f"Succeeded has become {case.phase('bound')}")


def _two_requests(case: Situation) -> None:
    _await_running(case)
    uid = case.create_pod("pod")
    case.binder.kill()
    # The names are in the other order.
    case.request("pod", NODE, uid, named="z-older")
    time.sleep(_OLDER_S)
    case.request("pod", OTHER_NODE, uid, named="a-newer")
    case.binder.start()
    node = case.until("the pod is bound", lambda: case.node_of("pod") or None)
    case.require(node == NODE, f"the pod is on {node}: the newer request was carried out before the older one")


def _terminating(case: Situation) -> None:
    case.create_pod("leaving")
    kept = {"metadata": {"finalizers": ["example.com/kept"]}}
    path = PODS.path(case.namespace, "leaving")
    case.api.request("PATCH", path, kept, "application/merge-patch+json")
    case.api.request("DELETE", path, {"gracePeriodSeconds": 0})
    try:
        case.create_pod("pod")
        case.request("leaving", backoffLimit=1)
        case.request("pod")
        case.await_phase("pod", "Succeeded")
        _observe(case, "leaving")
        case.require(case.phase("leaving") != "Succeeded", "Succeeded for a pod that is being deleted, on no node")
    finally:
        _remove_finalizers(case, path)


def _uid_in_binding(case: Situation) -> None:
    case.create_pod("pod")
    with case.bindings_that("has(object.metadata.uid) && object.metadata.uid != ''"):
        case.request("pod", backoffLimit=3)
        case.await_phase("pod", "Succeeded", "Failed", "deleted")
    why = "its Binding does not name the pod's UID: a pod that is created in the meantime would be bound in its place"
    case.require(bool(case.node_of("pod")), why)


def _mig_instance(case: Situation) -> None:
    for name in ("mig", "pod"):
        case.create_pod(name)
    case.request("mig", receivedResourceType="MigInstance")
    case.request("pod")
    case.await_phase("pod", "Succeeded")
    _let_run(case)


def _claims(case: Situation) -> None:
    case.publish_devices()
    case.api.post(RESOURCECLAIMS.path(case.namespace), resource_claim("dev", case.namespace))
    case.create_pod("pod", resourceClaims=[{"name": "dev", "resourceClaimName": "dev"}])
    result = {"request": "dev", "driver": "dra.example.com", "pool": NODE, "device": "d0"}
    allocation = {"devices": {"results": [result]}}
    case.request("pod", resourceClaimAllocations=[{"name": "dev", "allocation": allocation}])
    case.until("the request ends", lambda: case.phase("pod") in ("Succeeded", "Failed", "deleted"))
    if case.node_of("pod"):
        status = case.api.get(RESOURCECLAIMS.path(case.namespace, "dev")).get("status") or {}
        is_reserved = any(entry["name"] == "pod" for entry in status.get("reservedFor") or ())
        why = "the pod is bound, and its claim is not allocated as the request says, and reserved for it"
        case.require(bool(status.get("allocation")) and is_reserved, why)


def _begin_share(case: Situation) -> None:
    """Bring a share so far that its device is being reserved, which never ends."""
    case.create_pod("share", share=True, tolerations=SILENT)
    case.request_share("share", case.namespace)
    case.until("a reservation pod is created", lambda: case.reservations(case.namespace) or None)


def _await_nothing(case: Situation) -> None:
    case.until("the request is deleted", lambda: case.phase("share") == "deleted")
    case.until(
        "reservation pods, ConfigMaps and labels are removed", lambda: not case.remains("share", case.namespace)
    )
    case.require(not case.node_of("share"), "the pod was bound without a request")


def _await_running(case: Situation) -> None:
    """Wait until the program binds: one that is still starting does nothing wrong."""
    case.create_pod("before")
    case.request("before")
    case.until("a pod is bound", lambda: case.node_of("before") or None)


def _remove_finalizers(case: Situation, path: str) -> None:
    case.api.request("PATCH", path, {"metadata": {"finalizers": None}}, "application/merge-patch+json")


def _let_run(case: Situation) -> None:
    """Let the program go on for the time of an observation."""
    deadline = time.monotonic() + OBSERVED_S
    case.until(f"{OBSERVED_S:g} s pass", lambda: time.monotonic() > deadline)


def _observe(case: Situation, name: str) -> None:
    """Wait until the request has ended or is deleted, but not longer than the program is observed, then that long."""
    deadline = time.monotonic() + OBSERVED_S
    case.until(
        f"request {name} ends, or {OBSERVED_S:g} s pass",
        lambda: case.phase(name) in ("Failed", "Succeeded", "deleted") or time.monotonic() > deadline,
    )
    _let_run(case)


CASES: tuple[Case[Situation], ...] = (
    Case("binds", "a pod is bound to the node of its request, which ends Succeeded", _binds),
    Case("rejected", "a Binding that the API server rejects is never reported as Bound", _rejected),
    Case("bound-elsewhere", "a pod on another node is not reported as Bound", _bound_elsewhere),
    Case("bound-already", "a request for a pod that is on its node already ends Succeeded", _bound_already),
    Case(
        "deleted-request",
        "a request that is being deleted binds no pod, and keeps finalizers of other programs",
        _deleted_request,
    ),
    Case("absent-node", "a request for a node that does not exist ends Failed", _absent_node),
    Case("successor", "a pod is not bound by a request for its predecessor of the same name", _successor),
    Case("share", "shares of a group get the device that is reserved for it, and release it", _share),
    Case("withdrawn", "a request that is deleted during the bind leaves nothing behind", _withdrawn),
    Case("killed", "kill -9 at any time loses no request", _killed),
    Case("backoff-limit", "a failed attempt is repeated, and not more often than backoffLimit", _backoff_limit),
    Case("final-phases", "Succeeded and Failed are final", _final_phases),
    Case("two-requests", "of two requests for one pod the older one is carried out", _two_requests),
    Case(
        "terminating", "a pod that is being deleted is not reported as Bound, and delays no other one", _terminating
    ),
    Case("uid-in-binding", "a Binding names the UID of its pod, so that no successor is bound", _uid_in_binding),
    Case("mig-instance", "a request of a kind that is not served keeps no other one from its end", _mig_instance),
    Case("claims", "a pod is not bound without the claims that its request allocates", _claims),
    Case("killed-share", "what a killed program has reserved is released after its restart", _killed_share),
)
