"""What users, schedulers and controllers do around one pod, and how it is to end.

``play`` is the outside world: it acts, waits for what the API server shows, acts again, and never looks at whether
the reconciler is alive. ``ended`` says when the undisturbed run is over; what it has come to then is what every
disturbed run must come to.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from localcluster.errors import ApiError
from shared.testing.builders import bind_request, pod
from tests.faults.plugins.fault_effects import EFFECT, GATE, OWNER, REFUSE, WAKES
from tests.live import LiveCluster

FLAKY = "example.bowline.dev/fail-attempts"
NODE = "gpu-node-0"


@dataclass(frozen=True, slots=True)
class Scenario:
    """A short story. ``last_event``: the last event about the pod, if there is one; ``undoes``: whether something is
    rolled back in it; ``reason``: of the request's status in the end, if the request fails."""

    name: str
    play: Callable[[LiveCluster], None]
    ended: Callable[[LiveCluster], bool]
    last_event: str = ""
    undoes: bool = False
    reason: str = ""


def make_pod(live: LiveCluster, annotations: Mapping[str, str] | None = None, **spec: Any) -> str:
    """Create the pod; returns its UID."""
    wanted = pod("pod", live.namespace, **spec)
    wanted["metadata"]["annotations"] = dict(annotations or {})
    return post_pod(live, wanted)


def post_pod(live: LiveCluster, wanted: dict[str, Any]) -> str:
    """Create a pod; returns its UID."""
    return str(live.cluster.api.post(f"/api/v1/namespaces/{live.namespace}/pods", wanted)["metadata"]["uid"])


def make_request(
    live: LiveCluster, uid: str, annotations: Mapping[str, str] | None = None, *, owned: bool = True, **spec: Any
) -> None:
    """Create the pod's request; one that is not ``owned`` by it names it by its UID alone."""
    wanted = bind_request("pod", NODE, live.namespace, uid if owned else "", podUID=uid, **spec)
    wanted["metadata"]["annotations"] = dict(annotations or {})
    live.cluster.api.post(live.request_path().rpartition("/")[0], wanted)


def make_gate(live: LiveCluster, name: str = "gate") -> None:
    """Create what requests wait for."""
    body = {"metadata": {"name": name, "labels": {WAKES: "pod"}}}
    live.cluster.api.post(f"/api/v1/namespaces/{live.namespace}/configmaps", body)


def effects(live: LiveCluster) -> int:
    """How many effects there are."""
    return len(live.cluster.api.get(f"/api/v1/namespaces/{live.namespace}/secrets?labelSelector={OWNER}")["items"])


def remove(live: LiveCluster, path: str) -> None:
    """Delete an object; one that is gone already will do."""
    try:
        live.cluster.api.request("DELETE", path, {"gracePeriodSeconds": 0})
    except ApiError as error:
        if error.status != 404:
            raise


def in_phase(phase: str) -> Callable[[LiveCluster], bool]:
    """Return whether the request has come to this, and nothing holds it any more."""

    def ended(live: LiveCluster) -> bool:
        found: dict[str, Any] = live.request()
        return (found.get("status") or {}).get("phase") == phase and not found["metadata"].get("finalizers")

    return ended


def _plain(live: LiveCluster) -> None:
    make_request(live, make_pod(live))


def _fails_twice(live: LiveCluster) -> None:
    make_request(live, make_pod(live, {FLAKY: "2"}))


def _waits(live: LiveCluster) -> None:
    make_request(live, make_pod(live), {EFFECT: "yes", GATE: "gate"})
    live.until("the wait is told", lambda: _reason(live).startswith("Waiting"))
    make_gate(live)


def _refused(live: LiveCluster) -> None:
    make_request(live, make_pod(live), {EFFECT: "yes", REFUSE: "yes"})


def _deleted_while_waiting(live: LiveCluster) -> None:
    make_request(live, make_pod(live), {EFFECT: "yes", GATE: "gate"})
    live.until("the effect is there", lambda: effects(live) > 0)
    remove(live, live.request_path())


def _recreated(live: LiveCluster) -> None:
    # Without an owner: who is first, garbage collector or reconciler, would be another story each time.
    make_request(live, make_pod(live), {EFFECT: "yes", GATE: "never"}, owned=False)
    live.until("the effect is there", lambda: effects(live) > 0)
    remove(live, f"/api/v1/namespaces/{live.namespace}/pods/pod")
    uid = make_pod(live)
    live.until("the old request has failed", lambda: _failed_cleanly(live))
    remove(live, live.request_path())
    make_request(live, uid, {EFFECT: "yes"})


def _reason(live: LiveCluster) -> str:
    return str((live.request().get("status") or {}).get("reason", ""))


def _gone(live: LiveCluster) -> bool:
    return live.not_found(live.request_path()) and effects(live) == 0


def _failed_cleanly(live: LiveCluster) -> bool:
    return in_phase("Failed")(live) and effects(live) == 0


PLAIN = Scenario("plain", _plain, in_phase("Succeeded"), "Bound")
REFUSED = Scenario("final-failure", _refused, _failed_cleanly, "BindingFailed", undoes=True, reason="Rejected")
SCENARIOS = (
    PLAIN,
    Scenario("fails-twice", _fails_twice, in_phase("Succeeded"), "Bound"),
    Scenario("waits", _waits, in_phase("Succeeded"), "Bound"),
    REFUSED,
    Scenario("deleted-waiting", _deleted_while_waiting, _gone, undoes=True),
    Scenario("pod-recreated", _recreated, in_phase("Succeeded"), "Bound", undoes=True),
)
