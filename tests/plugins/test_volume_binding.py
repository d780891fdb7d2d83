"""Volumes before pods: the pair's writes and how the API server and the real volume controller process them."""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import count
from typing import Any

import pytest

from bowline.api import names
from tests.audit import PLAIN_BIND, WRITES, Calls, call_of, calls_about, count_calls, once_logged, writes_about
from tests.live import Live
from tests.plugins.denied_bindings import denied_bindings, denied_node
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


def writes_for(live: Live, pod: str) -> list[tuple[str, str]]:
    """The reconciler's writes to namespaced objects whose names are the pod's, or begin with it and a dot."""
    return [
        call_of(event)
        for event in calls_about(live, "bowline-reconciler")
        if event["verb"] in WRITES and event["objectRef"].get("name", "").partition(".")[0] == pod
    ]


def test_a_volume_costs_one_write_besides_those_of_every_bind(pair: Live, storage: Storage) -> None:
    storage.make_class()
    for name in ("first", "second", "third"):
        storage.make_volume(name)
        storage.make_claim(name)
        storage.make_pod(name, name)
        pair.request_bind(name)
        pair.phase(name, "Succeeded")
        pair.event(name, "Bound")
        if not has_reported_wait(pair, name):
            # The volume is cluster-scoped and not counted here.
            writes = once_logged(pair, len(PLAIN_BIND), lambda name=name: writes_for(pair, name))  # type: ignore[misc]
            assert writes == PLAIN_BIND
            return
    pytest.fail("each of the binds has waited for seconds")


def test_two_claims_of_a_pod_get_two_volumes(pair: Live, storage: Storage) -> None:
    storage.make_class()
    for short, size in (("a", "2Gi"), ("b", "3Gi")):
        storage.make_volume(short, size=size)
        storage.make_claim(short, size="2Gi" if short == "b" else "1Gi")
    storage.make_pod("pod", "a", "b", "a")
    pair.request_bind()
    pair.phase("pod", "Succeeded")
    assert {storage.volume_of("a"), storage.volume_of("b")} == {"a", "b"}


def request_eight(live: Live, storage: Storage) -> list[str]:
    """Create eight pods with a PVC and a free volume each, and request their bind together; returns their names."""
    storage.make_class()
    pods = [f"pod-{number}" for number in range(8)]
    for name in pods:
        storage.post_volume(name, "gpu-node-0")
        storage.make_claim(name)
        storage.make_pod(name, name)
    for name in pods:
        storage.available(name)
    for name in pods:
        live.request_bind(name)
    return pods


def test_pods_at_the_same_time_never_get_the_same_volume(pair: Live, storage: Storage) -> None:
    pods = request_eight(pair, storage)
    for name in pods:
        assert "failedAttempts" not in pair.phase(name, "Succeeded")["status"]
    assert {storage.volume_of(name) for name in pods} == set(pods)


def test_the_volume_controllers_steps_cause_no_reads(pair: Live, storage: Storage) -> None:
    pods = request_eight(pair, storage)
    for name in pods:
        pair.phase(name, "Succeeded")
    read = ("get", "persistentvolumeclaims")
    expectation: Calls = Counter({read: 8, ("create", "pods/binding"): 8, ("patch", "bindrequests/status"): 8})
    # If the controller's writes caused reconciles, it would be 16 to 32. A reported wait takes one more.
    reported_waits = sum(has_reported_wait(pair, name) for name in pods)
    assert 8 <= count_calls(pair, "bowline-reconciler", expectation)[read] - reported_waits < 13


def test_a_volume_reserved_for_the_claim_by_hand_is_used_and_not_marked(pair: Live, storage: Storage) -> None:
    storage.make_class()
    storage.make_volume("any")
    claim_ref = {"namespace": pair.namespace, "name": "data"}
    storage.make_volume("kept", size="9Gi", claimRef=claim_ref)
    storage.make_claim()
    storage.make_pod()
    pair.request_bind()
    pair.phase("pod", "Succeeded")
    assert storage.volume_of() == "kept"
    # With the annotation the controller could unbind the volume again.
    assert names.BOUND_BY_CONTROLLER not in (storage.volume("kept")["metadata"].get("annotations") or {})


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


def test_without_a_volume_the_request_fails_and_nothing_is_written(pair: Live, storage: Storage) -> None:
    storage.make_class()
    storage.make_volume("one")
    for name in ("a", "b"):
        storage.make_claim(name)
    storage.make_pod("pod", "a", "b")
    pair.request_bind()
    status = failure(pair)
    assert status["failure"]["reason"] == "VolumeConflict"
    assert status["suggestion"] == "RescheduleElsewhere"
    # Not even for the claim that could have had one.
    assert "claimRef" not in storage.volume("one")["spec"]


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
    held = ["bindrequests", "persistentvolumeclaims", "bindrequests"]  # with the finalizer, decision 303
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


def test_a_claim_being_provisioned_for_another_node_is_not_changed(pair: Live, storage: Storage) -> None:
    storage.make_class(PROVISIONER)
    storage.make_claim()
    pair.kubectl("annotate", "pvc", "data", f"{names.SELECTED_NODE}=gpu-node-2")
    storage.make_pod()
    pair.request_bind()
    status = failure(pair)
    assert status["failure"]["reason"] == "VolumeConflict"
    assert status["suggestion"] == "RescheduleElsewhere"
    assert storage.asked_for() == "gpu-node-2"


def test_a_node_outside_the_classs_topologies_is_never_selected(pair: Live, storage: Storage) -> None:
    only = {"key": "kubernetes.io/hostname", "values": ["gpu-node-3"]}
    storage.make_class(PROVISIONER, allowedTopologies=[{"matchLabelExpressions": [only]}])
    storage.make_claim()
    storage.make_pod()
    pair.request_bind()
    assert failure(pair)["suggestion"] == "RescheduleElsewhere"
    assert names.SELECTED_NODE not in (storage.claim()["metadata"].get("annotations") or {})


def test_a_wait_for_a_provisioner_survives_a_restart(pair: Live, storage: Storage) -> None:
    storage.make_class(PROVISIONER)
    storage.make_claim()
    storage.make_pod()
    pair.request_bind()
    storage.asked_for()
    assert pair.pair.reconcilers[0].stop()
    storage.provision()
    pair.until("the claim is bound", lambda: storage.claim()["status"].get("phase") == "Bound")
    pair.pair.launch_reconciler().wait_ready()
    pair.phase("pod", "Succeeded")


def test_a_withdrawn_request_withdraws_what_no_provisioner_has_answered(pair: Live, storage: Storage) -> None:
    storage.make_class(PROVISIONER)
    storage.make_claim()
    storage.make_pod()
    pair.request_bind()
    storage.asked_for()
    pair.kubectl("delete", "bindrequest", "pod")
    assert pair.not_found(pair.request_path())
    assert names.SELECTED_NODE not in (storage.claim()["metadata"].get("annotations") or {})
    pair.request_bind(node="gpu-node-1")
    assert storage.asked_for() == "gpu-node-1"
    storage.provision()
    pair.phase("pod", "Succeeded")


# --- where else ---


def test_a_pod_whose_local_volume_is_bound_is_not_sent_to_another_node(pair: Live, storage: Storage) -> None:
    storage.make_class()
    with denied_bindings(pair):
        for number in count():  # until the API server applies the policy
            name = f"pod-{number}"
            storage.make_volume(name)
            storage.make_claim(name)
            storage.make_pod(name, name)
            pair.request_bind(name)
            if pair.phase(name, "Failed", "Succeeded")["status"]["phase"] == "Failed":
                break
    status = failure(pair, name)
    assert status["suggestion"] == "RetrySameNode"
    assert status["reason"].startswith("Rejected: ")

    def nominated() -> str:
        return str(pair.pod(name)["status"].get("nominatedNodeName"))

    pair.until("an autoscaler keeps that node", lambda: nominated() == "gpu-node-0")
    pair.kubectl("delete", "bindrequest", name)
    pair.request_bind(name, node="gpu-node-1")
    status = failure(pair, name)
    assert (status["reason"].partition(":")[0], status["suggestion"]) == ("VolumeConflict", "RescheduleElsewhere")
    pair.until("the failure is recorded", lambda: denied_node(pair, name) == "gpu-node-1")
    assert nominated() == "gpu-node-0", "in the patch of the failure"


def is_asked(storage: Storage, claim: str, node: str) -> bool:
    """Return whether the volume is requested on that node."""
    return storage.asked_for(claim) == node


def test_a_node_that_is_deleted_while_its_volume_is_provisioned_does_not_keep_the_claim(
    pair: Live, storage: Storage
) -> None:
    doomed = f"{pair.namespace}-doomed"
    pair.cluster.api.post("/api/v1/nodes", {"metadata": {"name": doomed}})
    storage.make_class(PROVISIONER)
    for name in ("data", "left"):
        storage.make_claim(name)
        storage.make_pod(name, name)
    pair.request_bind("data", node=doomed)
    assert storage.asked_for() == doomed
    pair.cluster.api.delete(f"/api/v1/nodes/{doomed}")
    status = failure(pair, "data")
    assert (status["reason"].partition(":")[0], status["suggestion"]) == ("NodeGone", "RescheduleElsewhere")
    assert names.SELECTED_NODE not in (storage.claim()["metadata"].get("annotations") or {})
    # As another component, or a request that was deleted, has left it.
    pair.kubectl("annotate", "pvc", "left", f"{names.SELECTED_NODE}={doomed}")
    pair.kubectl("delete", "bindrequest", "data")
    for name in ("data", "left"):
        pair.request_bind(name, node="gpu-node-1")
        pair.until("another node is asked", partial(is_asked, storage, name, "gpu-node-1"))
        storage.provision(name)
        pair.phase(name, "Succeeded")


# --- claims that are missing, foreign or unusable ---


def test_steps_of_other_controllers_are_awaited_and_reported(pair: Live, storage: Storage) -> None:
    """All of them in one test: a wait is reported after five seconds."""
    storage.make_class(PROVISIONER)
    storage.make_class(PROVISIONER, mode="Immediate")
    storage.make_claim("immediate", cls="early")
    storage.make_claim("classless", cls="none")
    storage.make_claim("full", size="5Gi")
    make_capacity(pair, storage, "1Gi")
    # The last one: its wait ends after half a minute.
    for name in ("immediate", "classless", "full", "missing"):
        storage.make_pod(name, name)
        pair.request_bind(name)
    for name in ("immediate", "classless", "missing", "full"):
        pair.event(name, "BindingWaiting")
        wait = pair.request(name)["status"]["wait"]
        assert ("PersistentVolumeClaim", name) in {(ref["kind"], ref["name"]) for ref in wait["objects"]}
    assert names.SELECTED_NODE not in (storage.claim("immediate")["metadata"].get("annotations") or {})
    # The missing objects are created, and the pods are bound.
    storage.make_claim("missing", cls="late")
    storage.provision("missing")
    storage.provision("full")
    for name in ("missing", "full"):
        assert "failedAttempts" not in pair.phase(name, "Succeeded")["status"]


def make_capacity(live: Live, storage: Storage, size: str) -> None:
    """Publish the driver's capacity on every node."""
    driver = {"metadata": {"name": PROVISIONER}, "spec": {"storageCapacity": True, "attachRequired": False}}
    live.kubectl("apply", "-f", "-", objects={"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", **driver})
    live.cluster.api.post(
        f"/apis/storage.k8s.io/v1/namespaces/{live.namespace}/csistoragecapacities",
        {
            "metadata": {"name": "room"},
            "storageClassName": storage.name("late"),
            "nodeTopology": {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "Exists"}]},
            "maximumVolumeSize": size,
        },
    )


def test_a_claim_that_is_being_deleted_is_a_terminal_failure(pair: Live, storage: Storage) -> None:
    storage.make_class(PROVISIONER)
    storage.make_claim()
    pair.kubectl("patch", "pvc", "data", "--type=merge", '-p={"metadata":{"finalizers":["example.com/keep"]}}')
    pair.kubectl("delete", "pvc", "data", "--wait=false")
    storage.make_pod()
    pair.request_bind()
    assert failure(pair)["failure"]["reason"] == "VolumeConflict"
    pair.kubectl("patch", "pvc", "data", "--type=merge", '-p={"metadata":{"finalizers":null}}')


def test_a_claim_that_lost_its_volume_is_a_terminal_failure(pair: Live, storage: Storage) -> None:
    storage.make_class()
    # Bound by hand to a volume that does not exist: the controller reports Lost.
    storage.make_claim(volumeName=storage.name("absent"))
    pair.kubectl("annotate", "pvc", "data", f"{names.BIND_COMPLETED}=yes")
    pair.until("the claim is lost", lambda: storage.claim()["status"].get("phase") == "Lost")
    storage.make_pod()
    pair.request_bind()
    assert failure(pair)["failure"]["reason"] == "VolumeConflict"


def ephemeral(storage: Storage) -> list[dict[str, Any]]:
    return [{"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": storage.claim_spec()}}}]


def test_an_ephemeral_volume_is_bound_with_its_pod(pair: Live, storage: Storage) -> None:
    storage.make_class(PROVISIONER)
    pair.create_pod(volumes=ephemeral(storage))
    pair.request_bind()
    pair.until("the claim is made", lambda: not pair.not_found(storage.claim_path("pod-scratch")) or None)
    storage.provision("pod-scratch")
    pair.phase("pod", "Succeeded")


def test_a_foreign_claim_under_an_ephemeral_volumes_name_is_never_used(pair: Live, storage: Storage) -> None:
    storage.make_class(PROVISIONER)
    storage.make_claim("pod-scratch")
    pair.create_pod(volumes=ephemeral(storage))
    pair.request_bind()
    status = failure(pair)
    assert status["failure"]["reason"] == "VolumeConflict"
    assert status["suggestion"] == "DeletePod"
    assert names.SELECTED_NODE not in (storage.claim("pod-scratch")["metadata"].get("annotations") or {})
