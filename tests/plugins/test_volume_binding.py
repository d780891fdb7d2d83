"""Volumes before pods: the pair's writes and how the API server and the real volume controller process them."""

from collections.abc import Iterator
from typing import Any

import pytest

from bowline.api import names
from tests.audit import PLAIN_BIND, call_of, calls_about, once_logged, writes_about
from tests.live import Live
from tests.plugins.storage import PROVISIONER, Storage


@pytest.fixture
def storage(pair: Live) -> Iterator[Storage]:
    """The storage of this test."""
    storage = Storage(pair)
    yield storage
    storage.clean()


def failure(live: Live, name: str = "pod") -> dict[str, Any]:
    """Wait for the request's terminal failure; the pod must not be bound."""
    status: dict[str, Any] = live.phase(name, "Failed", "Succeeded")["status"]
    assert status["phase"] == "Failed", status
    assert "nodeName" not in live.pod(name)["spec"]
    return status


# --- existing volumes ---


def test_a_free_volume_of_the_node_is_bound_before_the_pod(pair: Live, storage: Storage) -> None:
    storage.make_class()
    storage.make_volume("elsewhere", "gpu-node-1")
    storage.make_volume("large", size="5Gi")
    storage.make_volume("right", size="2Gi")
    storage.make_volume("small", size="512Mi")
    storage.make_claim(size="1Gi")
    storage.make_pod()
    claim = storage.claim()
    pair.request_bind()
    pair.phase("pod", "Succeeded")
    assert storage.volume_of() == "right"
    volume = storage.volume("right")
    assert volume["metadata"]["annotations"][names.BOUND_BY_CONTROLLER] == "yes"
    assert volume["spec"]["claimRef"] == {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": pair.namespace,
        "name": "data",
        "uid": claim["metadata"]["uid"],
        "resourceVersion": claim["metadata"]["resourceVersion"],
    }
    assert names.SELECTED_NODE not in storage.claim()["metadata"]["annotations"]
    pair.until("the claim is bound", lambda: storage.claim()["status"]["phase"] == "Bound")


def has_reported_wait(live: Live, name: str) -> bool:
    """Return whether a wait was reported, which costs calls: a busy volume controller takes seconds."""
    return "BindingWaiting" in {reason for reason, _ in live.events(name)}


def calls_for(live: Live, pod: str) -> list[tuple[str, str]]:
    """The reconciler's calls for namespaced objects whose names are the pod's, or begin with it and a dot.

    Without reads of pods: two watches have no common order, so a request may be cached before its pod.
    """
    return [
        call
        for event in calls_about(live, "bowline-reconciler")
        if (call := call_of(event)) != ("get", "pods") and event["objectRef"].get("name", "").partition(".")[0] == pod
    ]


def test_a_volume_costs_one_write_and_two_reads_besides_the_calls_of_every_bind(pair: Live, storage: Storage) -> None:
    storage.make_class()
    for name in ("first", "second", "third"):
        storage.make_volume(name)
        storage.make_claim(name)
        storage.make_pod(name, name)
        pair.request_bind(name)
        pair.phase(name, "Succeeded")
        pair.event(name, "Bound")
        if not has_reported_wait(pair, name):
            # The volume is cluster-scoped and not counted here. The request is read again after its wait.
            calls = [("get", "persistentvolumeclaims"), ("get", "bindrequests"), *PLAIN_BIND]
            assert once_logged(pair, len(calls), lambda name=name: calls_for(pair, name)) == calls  # type: ignore[misc]
            return
    pytest.fail("each of the binds has waited for seconds")


def test_a_bound_claim_costs_no_write_and_must_reach_the_node(pair: Live, storage: Storage) -> None:
    storage.make_class()
    storage.make_volume("right")
    storage.make_claim()
    for name in ("first", "second", "third"):
        storage.make_pod(name)
    pair.request_bind("first")
    pair.phase("first", "Succeeded")
    pair.until("the claim is bound", lambda: storage.claim()["status"]["phase"] == "Bound")
    version = storage.volume("right")["metadata"]["resourceVersion"]
    pair.request_bind("second")
    pair.phase("second", "Succeeded")
    pair.request_bind("third", node="gpu-node-1")
    status = failure(pair, "third")
    assert status["failure"]["reason"] == "VolumeConflict"
    assert status["suggestion"] == "RescheduleElsewhere"
    assert storage.volume("right")["metadata"]["resourceVersion"] == version


# --- provisioned volumes ---


def test_a_volume_is_requested_and_awaited(pair: Live, storage: Storage) -> None:
    storage.make_class(PROVISIONER)
    storage.make_claim()
    pair.kubectl("annotate", "pvc", "data", "example.com/note=kept")
    storage.make_pod()
    pair.request_bind()
    assert storage.asked_for() == "gpu-node-0"
    assert "nodeName" not in pair.pod()["spec"]
    storage.provision()
    request = pair.phase("pod", "Succeeded")
    assert "failedAttempts" not in request["status"]
    assert storage.claim()["metadata"]["annotations"]["example.com/note"] == "kept"
    writes = [resource for verb, resource in writes_about(pair, user="bowline-reconciler") if verb != "create"]
    # A wait that lasts for seconds is reported there.
    reports = ("bindrequests/status", "pods/status")
    held = ["bindrequests", "persistentvolumeclaims", "bindrequests"]  # with the finalizer
    assert [resource for resource in writes if resource not in reports] == held


def test_a_rejection_is_terminal_for_the_node(pair: Live, storage: Storage) -> None:
    storage.make_class(PROVISIONER)
    storage.make_claim()
    storage.make_pod()
    pair.request_bind()
    storage.refuse()
    status = failure(pair)
    assert status["failure"]["reason"] == "VolumeConflict"
    assert status["suggestion"] == "RescheduleElsewhere"
    assert names.SELECTED_NODE not in (storage.claim()["metadata"].get("annotations") or {})
    # The scheduler decides again: another node is selected, which may have capacity.
    pair.kubectl("delete", "bindrequest", "pod")
    pair.request_bind(node="gpu-node-1")
    assert storage.asked_for() == "gpu-node-1"
    storage.provision()
    pair.phase("pod", "Succeeded")


# --- claims that are missing, foreign or unusable ---


def ephemeral(storage: Storage) -> list[dict[str, Any]]:
    return [{"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": storage.claim_spec()}}}]


def test_an_ephemeral_volume_is_bound_with_its_pod(pair: Live, storage: Storage) -> None:
    storage.make_class(PROVISIONER)
    pair.create_pod(volumes=ephemeral(storage))
    pair.request_bind()
    pair.until("the claim is made", lambda: not pair.not_found(storage.claim_path("pod-scratch")) or None)
    storage.provision("pod-scratch")
    pair.phase("pod", "Succeeded")
