"""The cases of a binder's conformance: what the BindRequest API promises to schedulers and to pods.

Each case is a situation that was recorded with a real scheduler or found as a defect of a binder. A case raises
CaseFailure; reports that are false when they are made fail it as well.
"""

import time

from bowline.api import names
from bowline.conformance.binder import SILENT, Situation
from bowline.conformance.case import NODE, OTHER_NODE, Case

# How long a program is observed that must not do something.
OBSERVED_S = 5.0
_PODS, _KILLS = 30, 3


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


def _observe(case: Situation, name: str) -> None:
    """Wait until the request has ended or is deleted, but not longer than the program is observed, then that long."""
    deadline = time.monotonic() + OBSERVED_S
    case.until(
        f"request {name} ends, or {OBSERVED_S:g} s pass",
        lambda: case.phase(name) in ("Failed", "Succeeded", "deleted") or time.monotonic() > deadline,
    )
    deadline = time.monotonic() + OBSERVED_S
    case.until(f"{OBSERVED_S:g} s pass", lambda: time.monotonic() > deadline)


CASES: tuple[Case[Situation], ...] = (
    Case("binds", "a pod is bound to the node of its request, which ends Succeeded", _binds),
    Case("rejected", "a Binding that the API server rejects is never reported as Bound", _rejected),
    Case("bound-elsewhere", "a pod on another node is not reported as Bound", _bound_elsewhere),
    Case("absent-node", "a request for a node that does not exist ends Failed", _absent_node),
    Case("successor", "a pod is not bound by a request for its predecessor of the same name", _successor),
    Case("share", "shares of a group get the device that is reserved for it, and release it", _share),
    Case("withdrawn", "a request that is deleted during the bind leaves nothing behind", _withdrawn),
    Case("killed", "kill -9 at any time loses no request", _killed),
    Case("killed-share", "what a killed program has reserved is released after its restart", _killed_share),
)
