"""The actions of users, schedulers and controllers around one pod, and the end of each scenario.

``play`` acts from outside: it writes, waits for states in the API, writes again, and never checks whether the
reconciler runs. ``ended`` defines when the undisturbed run is over; its final state then is the expected state of
every disturbed run.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bowline.localcluster.errors import LocalApiError
from bowline.testing.builders import bind_request, pod
from tests.faults.plugins.fault_effects import EFFECT, GATE, OWNER, REFUSE, WAKES
from tests.live import LiveCluster

NODE = "gpu-node-0"


@dataclass(frozen=True, slots=True)
class Scenario:
    """A short scenario. ``last_event``: the last event about the pod, if any; ``reason``: of the request's status in
    the end, if the request fails."""

    name: str
    play: Callable[[LiveCluster], None]
    ended: Callable[[LiveCluster], bool]
    last_event: str = ""
    reason: str = ""


def make_pod(live: LiveCluster, annotations: Mapping[str, str] | None = None, **spec: Any) -> str:
    """Create the pod; returns its UID."""
    body = pod("pod", live.namespace, **spec)
    body["metadata"]["annotations"] = dict(annotations or {})
    return post_pod(live, body)


def post_pod(live: LiveCluster, body: dict[str, Any]) -> str:
    """Create a pod; returns its UID."""
    return str(live.cluster.api.post(f"/api/v1/namespaces/{live.namespace}/pods", body)["metadata"]["uid"])


def make_request(
    live: LiveCluster,
    uid: str,
    annotations: Mapping[str, str] | None = None,
    *,
    node: str = NODE,
    has_owner: bool = True,
    **spec: Any,
) -> None:
    """Create the pod's request; one without the pod as owner names it only by its UID."""
    body = bind_request("pod", node, live.namespace, uid if has_owner else "", podUID=uid, **spec)
    body["metadata"]["annotations"] = dict(annotations or {})
    live.cluster.api.post(live.request_path().rpartition("/")[0], body)


def make_gate(live: LiveCluster) -> None:
    """Create the object that requests wait for."""
    body = {"metadata": {"name": "gate", "labels": {WAKES: "pod"}}}
    live.cluster.api.post(f"/api/v1/namespaces/{live.namespace}/configmaps", body)


def effects(live: LiveCluster) -> int:
    """The number of effects."""
    return len(live.cluster.api.get(f"/api/v1/namespaces/{live.namespace}/secrets?labelSelector={OWNER}")["items"])


def remove(live: LiveCluster, path: str) -> None:
    """Delete an object, if it exists."""
    try:
        live.cluster.api.request("DELETE", path, {"gracePeriodSeconds": 0})
    except LocalApiError as error:
        if error.status != 404:
            raise


def in_phase(phase: str) -> Callable[[LiveCluster], bool]:
    """Return whether the request has this phase, and no finalizer is left."""

    def is_in_phase(live: LiveCluster) -> bool:
        request: dict[str, Any] = live.request()
        return (request.get("status") or {}).get("phase") == phase and not request["metadata"].get("finalizers")

    return is_in_phase


def _waits(live: LiveCluster) -> None:
    make_request(live, make_pod(live), {EFFECT: "yes", GATE: "gate"})
    live.until("the wait is reported", lambda: _reason(live).startswith("Waiting"))
    make_gate(live)


def _make_rejected(live: LiveCluster) -> None:
    make_request(live, make_pod(live), {EFFECT: "yes", REFUSE: "yes"})


def _deleted_while_waiting(live: LiveCluster) -> None:
    make_request(live, make_pod(live), {EFFECT: "yes", GATE: "gate"})
    live.until("the effect is there", lambda: effects(live) > 0)
    remove(live, live.request_path())


def _recreate_pod(live: LiveCluster) -> None:
    # Without an owner: the order of garbage collector and reconciler would vary.
    make_request(live, make_pod(live), {EFFECT: "yes", GATE: "never"}, has_owner=False)
    live.until("the effect is there", lambda: effects(live) > 0)
    remove(live, f"/api/v1/namespaces/{live.namespace}/pods/pod")
    uid = make_pod(live)
    live.until("the old request has failed", lambda: _failed_cleanly(live))
    remove(live, live.request_path())
    make_request(live, uid, {EFFECT: "yes"})


def _reason(live: LiveCluster) -> str:
    return str((live.request().get("status") or {}).get("reason", ""))


def _is_deleted(live: LiveCluster) -> bool:
    return live.not_found(live.request_path()) and effects(live) == 0


def _failed_cleanly(live: LiveCluster) -> bool:
    return in_phase("Failed")(live) and effects(live) == 0


SCENARIOS = (
    Scenario("waits", _waits, in_phase("Succeeded"), "Bound"),
    Scenario("final-failure", _make_rejected, _failed_cleanly, "BindingFailed", reason="Rejected"),
    Scenario("deleted-waiting", _deleted_while_waiting, _is_deleted),
    Scenario("pod-recreated", _recreate_pod, in_phase("Succeeded"), "Bound"),
)
