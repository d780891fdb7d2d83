"""The actions of users, schedulers and controllers around one pod, and the end of each scenario.

``play`` acts from outside: it writes, waits for states in the API, writes again, and never checks whether the
reconciler runs. ``ended`` defines when the undisturbed run is over; its final state then is the expected state of
every disturbed run.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bowline.kube.resources import KAI_PODGROUPS
from bowline.localcluster.errors import LocalApiError
from bowline.testing.builders import bind_request, pod
from tests.faults.plugins.fault_effects import EFFECT, GATE, OWNER, REFUSE, WAKES
from tests.live import FLAKY, LiveCluster
from tests.pod_groups import in_group, install_pod_groups, pod_group

NODE = "gpu-node-0"
# The other pods of a gang.
PEER = "peer"
LATE = "late"
# For longer than a PodGroup is cached.
_TOUCH_S = 3


@dataclass(frozen=True, slots=True)
class Scenario:
    """A short scenario. ``last_event``: the last event about the pod, if any; ``undoes``: whether it contains a
    rollback; ``reason``: of the request's status in the end, if the request fails."""

    name: str
    play: Callable[[LiveCluster], None]
    ended: Callable[[LiveCluster], bool]
    last_event: str = ""
    undoes: bool = False
    reason: str = ""


def make_pod(
    live: LiveCluster, annotations: Mapping[str, str] | None = None, *, name: str = "pod", **spec: Any
) -> str:
    """Create the pod; returns its UID."""
    body = pod(name, live.namespace, **spec)
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
    name: str = "pod",
    has_owner: bool = True,
    **spec: Any,
) -> None:
    """Create the pod's request; one that is not ``owned`` by it names it only by its UID."""
    body = bind_request(name, NODE, live.namespace, uid if has_owner else "", podUID=uid, **spec)
    body["metadata"]["annotations"] = dict(annotations or {})
    live.cluster.api.post(live.request_path().rpartition("/")[0], body)


def make_gate(live: LiveCluster, name: str = "gate") -> None:
    """Create the object that requests wait for."""
    body = {"metadata": {"name": name, "labels": {WAKES: "pod"}}}
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


def in_phase(phase: str, name: str = "pod") -> Callable[[LiveCluster], bool]:
    """Return whether the request has this phase, and no finalizer is left."""

    def is_in_phase(live: LiveCluster) -> bool:
        request: dict[str, Any] = live.request(name)
        return (request.get("status") or {}).get("phase") == phase and not request["metadata"].get("finalizers")

    return is_in_phase


def _plain(live: LiveCluster) -> None:
    make_request(live, make_pod(live))


def _fails_twice(live: LiveCluster) -> None:
    make_request(live, make_pod(live, {FLAKY: "2"}))


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


def _is_a_gang(live: LiveCluster) -> None:
    """Two pods of a PodGroup that requires both: the second is decided when the first waits for it."""
    install_pod_groups(live.cluster)
    live.cluster.api.post(KAI_PODGROUPS.path(live.namespace), pod_group("gang", 2))
    make_request(live, make_pod(live, in_group("gang")), {EFFECT: "yes"})
    live.until("the wait is reported", lambda: _reason(live).startswith("Waiting"))
    make_request(live, make_pod(live, in_group("gang"), name=PEER), {EFFECT: "yes"}, name=PEER)


def _a_gang_loses_a_member(live: LiveCluster) -> None:
    """The prepared pod is deleted: what it had is released, and the two that come later are bound without it."""
    install_pod_groups(live.cluster)
    live.cluster.api.post(KAI_PODGROUPS.path(live.namespace), pod_group("gang", 2))
    # Without an owner: the order of garbage collector and reconciler would vary.
    make_request(live, make_pod(live, in_group("gang")), {EFFECT: "yes"}, has_owner=False)
    live.until("the wait is reported", lambda: _reason(live).startswith("Waiting"))
    remove(live, f"/api/v1/namespaces/{live.namespace}/pods/pod")
    live.until("its request has failed", lambda: _failed_cleanly(live))
    remove(live, live.request_path())
    for name in (PEER, LATE):
        make_request(live, make_pod(live, in_group("gang"), name=name), {EFFECT: "yes"}, name=name)


def _a_gang_grows(live: LiveCluster) -> None:
    """`minMember` is raised while a pod waits: two prepared pods are no longer enough, and a third completes them."""
    install_pod_groups(live.cluster)
    live.cluster.api.post(KAI_PODGROUPS.path(live.namespace), pod_group("gang", 2))
    make_request(live, make_pod(live, in_group("gang")), {EFFECT: "yes"})
    live.until("the wait is reported", lambda: "fewer than 2" in _reason(live))
    live.cluster.api.patch(f"{KAI_PODGROUPS.path(live.namespace)}/gang", {"spec": {"minMember": 3}})
    live.until("the new minimum is reported", lambda: "fewer than 3" in _touched(live))
    _touch(live, None)
    for name in (PEER, LATE):
        make_request(live, make_pod(live, in_group("gang"), name=name), {EFFECT: "yes"}, name=name)


def _touched(live: LiveCluster) -> str:
    """Have the reconciler process the request every few seconds, instead of at the next poll; returns its reason.

    A patch that changes nothing is no write. Frequent writes would each time reject the status with a conflict.
    """
    _touch(live, str(int(time.monotonic() / _TOUCH_S)))
    return _reason(live)


def _touch(live: LiveCluster, label: str | None) -> None:
    live.cluster.api.patch(live.request_path(), {"metadata": {"labels": {"touched": label}}})


def _are_bound(*pods: str) -> Callable[[LiveCluster], bool]:
    return lambda live: all(in_phase("Succeeded", name)(live) for name in pods)


def _reason(live: LiveCluster) -> str:
    return str((live.request().get("status") or {}).get("reason", ""))


def _is_deleted(live: LiveCluster) -> bool:
    return live.not_found(live.request_path()) and effects(live) == 0


def _failed_cleanly(live: LiveCluster) -> bool:
    return in_phase("Failed")(live) and effects(live) == 0


GANG = Scenario("gang", _is_a_gang, _are_bound("pod", PEER), "Bound")
PLAIN = Scenario("plain", _plain, in_phase("Succeeded"), "Bound")
REFUSED = Scenario("final-failure", _make_rejected, _failed_cleanly, "BindingFailed", undoes=True, reason="Rejected")
SCENARIOS = (
    PLAIN,
    Scenario("fails-twice", _fails_twice, in_phase("Succeeded"), "Bound"),
    Scenario("waits", _waits, in_phase("Succeeded"), "Bound"),
    GANG,
    Scenario("gang-loses-member", _a_gang_loses_a_member, _are_bound(PEER, LATE), undoes=True),
    Scenario("gang-grows", _a_gang_grows, _are_bound("pod", PEER, LATE), "Bound"),
    REFUSED,
    Scenario("deleted-waiting", _deleted_while_waiting, _is_deleted, undoes=True),
    Scenario("pod-recreated", _recreate_pod, in_phase("Succeeded"), "Bound", undoes=True),
)
