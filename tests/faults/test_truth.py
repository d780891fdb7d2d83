"""The truth observer is tested with false claims: it must find each kind."""

import uuid
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from bowline.api import names
from bowline.testing.builders import bind_request, pod
from tests.faults.endstate import leftovers
from tests.faults.lab import Lab
from tests.faults.plugins.fault_effects import OWNER
from tests.faults.truth import TruthObserver
from tests.live import LiveCluster


def bind(live: LiveCluster, node: str = "gpu-node-0") -> None:
    """Bind the pod as another scheduler would."""
    target = {"metadata": {"name": "pod"}, "target": {"apiVersion": "v1", "kind": "Node", "name": node}}
    live.cluster.api.post(f"/api/v1/namespaces/{live.namespace}/pods/pod/binding", target)


def claim_bound(live: LiveCluster, uid: str) -> None:
    """Publish the event Bound."""
    event = {
        "metadata": {"name": f"pod.{uuid.uuid4().hex}", "namespace": live.namespace},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reason": "Bound",
        "action": "Binding",
        "type": "Normal",
        "note": "bound to node gpu-node-0",
        "reportingController": names.EVENT_SOURCE,
        "reportingInstance": "test",
        "regarding": {"apiVersion": "v1", "kind": "Pod", "namespace": live.namespace, "name": "pod", "uid": uid},
    }
    live.cluster.api.post(f"/apis/events.k8s.io/v1/namespaces/{live.namespace}/events", event)


def claim_status(live: LiveCluster, **status: Any) -> None:
    """Write the request's status."""
    live.cluster.api.patch(f"{live.request_path()}/status", {"status": status})


def condition(kind: str) -> dict[str, Any]:
    """Return a condition with status True, whether true or not."""
    since = "2026-01-01T00:00:00Z"
    return {"type": kind, "status": "True", "reason": "Test", "message": "", "lastTransitionTime": since}


def claim_pod_bound(live: LiveCluster, _: str) -> None:
    """Write the pod's condition."""
    path = f"/api/v1/namespaces/{live.namespace}/pods/pod/status"
    body = {"status": {"conditions": [condition(names.CONDITION_POD_BOUND)]}}
    live.cluster.api.patch(path, body, "application/strategic-merge-patch+json")


def leave_effect(live: LiveCluster, _: str) -> None:
    """Claim that all is undone while an effect is left."""
    owner = live.request()["metadata"]["uid"]
    body = {"metadata": {"name": "effect", "labels": {OWNER: owner}}}
    live.cluster.api.post(f"/api/v1/namespaces/{live.namespace}/secrets", body)
    claim_status(live, phase="Failed", conditions=[condition("RolledBack")])


def bound_elsewhere(live: LiveCluster, uid: str) -> None:
    """Claim the wrong node."""
    bind(live, "gpu-node-1")
    claim_bound(live, uid)


def deleted_unbound(live: LiveCluster, uid: str) -> None:
    """Claim it for a pod that was never bound and no longer exists."""
    live.kubectl("delete", "pod", "pod", "--grace-period=0", "--force")
    claim_bound(live, uid)


Lie = Callable[[LiveCluster, str], None]
FALSE_CLAIMS: list[tuple[Lie, str]] = [
    (claim_bound, "event Bound, but pod {} is on no node"),
    (bound_elsewhere, "event Bound, but pod {} is on gpu-node-1"),
    (deleted_unbound, "event Bound, but pod {} is on no node"),
    (claim_pod_bound, "PodBound=True, but pod {} is on no node"),
    (lambda live, _: claim_status(live, phase="Succeeded"), "Succeeded, but pod {} is on no node"),
    (
        lambda live, _: claim_status(live, phase="Pending", conditions=[condition("Bound")]),
        "Bound=True, but pod {} is on no node",
    ),
    (leave_effect, "RolledBack=True, but left are effect"),
]


def with_request(live: LiveCluster) -> str:
    """Create a pod and its request; returns the pod's UID."""
    live.cluster.api.post(f"/api/v1/namespaces/{live.namespace}/pods", pod("pod", live.namespace))
    uid = str(live.pod()["metadata"]["uid"])
    body = bind_request("pod", "gpu-node-0", live.namespace, uid)
    live.cluster.api.post(live.request_path().rpartition("/")[0], body)
    return uid


def make_claims(
    lies: Sequence[tuple[Lie, str]], places: Sequence[LiveCluster], uids: list[str], observer: TruthObserver
) -> None:
    """Make every false claim in its own namespace while it is observed; stores the pods' UIDs."""
    with observer:
        for live, (lie, _) in zip(places, lies, strict=True):
            uids.append(with_request(live))
            lie(live, uids[-1])


def test_every_kind_of_false_claim_is_found(lab: Lab) -> None:
    # The false claims remain; no component works on this cluster, and earlier claims are not checked.
    places = [lab.namespace("truth") for _ in FALSE_CLAIMS]
    observer = TruthObserver(lab.cluster, leftovers)
    uids: list[str] = []
    with pytest.raises(AssertionError) as error_info:
        make_claims(FALSE_CLAIMS, places, uids, observer)
    lines = sorted(line.partition(": ")[2] for line in str(error_info.value).splitlines())
    assert lines == sorted(
        words.format(f"{live.namespace}/pod ({uid})")
        for live, uid, (_, words) in zip(places, uids, FALSE_CLAIMS, strict=True)
    )


def test_a_true_claim_about_a_deleted_pod_passes(lab: Lab) -> None:
    live = lab.namespace("truth")
    with TruthObserver(lab.cluster, leftovers) as observer:
        uid = with_request(live)
        bind(live)
        claim_bound(live, uid)
        claim_status(live, phase="Succeeded", conditions=[condition("Bound")])
        live.until("it is checked", lambda: observer.checked.get("Bound=True") or None)
        live.kubectl("delete", "pod", "pod", "--grace-period=0", "--force")
        claim_bound(live, uid)
    assert observer.checked["event Bound"] == 2
