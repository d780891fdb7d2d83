"""Shared GPUs with errors in the cluster: ended reservations, foreign objects, no leader."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

import pytest

from bowline.api import names
from tests.plugins.series import Series
from tests.plugins.sharing import RESERVATIONS, SILENT, Shares, device_of


def lose_reservation(shares: Shares, group: str) -> None:
    """Delete the group's reservation pod, as an eviction or a mistaken user does."""
    (reservation,) = shares.reservations(group)
    shares.api.request("DELETE", f"{RESERVATIONS}/{reservation['metadata']['name']}", {"gracePeriodSeconds": 0})


def silent_reservation(shares: Shares, group: str) -> str:
    """Wait for a reservation pod of the group whose agent has not reported a device; returns its name."""
    return str(
        shares.live.until(
            "a device is being reserved",
            lambda: next((o["metadata"]["name"] for o in shares.reservations(group) if not device_of(o)), None),
        )
    )


def report_device(shares: Shares, name: str, device: str) -> None:
    """Act as the agent of a reservation pod."""
    shares.api.patch(f"{RESERVATIONS}/{name}", {"metadata": {"annotations": {names.RESERVED_DEVICE: device}}})


def change_device(shares: Shares, group: str) -> None:
    """Report another device for the group's reservation, as its agent does after a restart of the kubelet."""
    (reservation,) = shares.reservations(group)
    report_device(shares, reservation["metadata"]["name"], "GPU-3")


def end_reservation(shares: Shares, group: str) -> None:
    """End the group's reservation pod, as a kubelet does that is short of memory."""
    (reservation,) = shares.reservations(group)
    path = f"{RESERVATIONS}/{reservation['metadata']['name']}"
    # kwok would overwrite an earlier end.
    shares.live.until("kwok has started it", lambda: shares.api.get(path)["status"]["phase"] == "Running")
    shares.api.patch(f"{path}/status", {"status": {"phase": "Failed", "reason": "Evicted"}})


@pytest.mark.parametrize("lose", [lose_reservation, change_device, end_reservation])
def test_a_lost_reservation_is_replaced_by_one_of_the_same_device(
    shares: Shares, lose: Callable[[Shares, str], object]
) -> None:
    shares.make("runs", tolerations=SILENT)
    shares.ask("runs", ["lost"])
    report_device(shares, silent_reservation(shares, "lost"), "GPU-1")
    shares.live.phase("runs", "Succeeded")
    # Later it does not change: only what is seen of the reservation shows the loss.
    shares.live.until("kwok has started it", lambda: shares.live.pod("runs")["status"]["phase"] == "Running")
    lose(shares, "lost")
    assert "the GPU of group lost is no longer reserved" in shares.live.event("runs", "SharedGPUUnreserved")
    first = silent_reservation(shares, "lost")
    shares.share("joins", "lost")
    # The kubelet assigns another device: it is kept meanwhile, otherwise it would be assigned again.
    report_device(shares, first, "GPU-2")
    second = silent_reservation(shares, "lost")
    assert {reservation["metadata"]["name"] for reservation in shares.reservations("lost")} >= {first, second}
    report_device(shares, second, "GPU-1")
    shares.live.phase("joins", "Succeeded")
    prefix = shares.live.pod("joins")["metadata"]["annotations"][names.SHARED_GPU_CONFIGMAP]
    assert shares.maps()[f"{prefix}-0"][names.VISIBLE_DEVICES] == "GPU-1"
    shares.live.until("the other device is released", lambda: len(shares.reservations("lost")) == 1)
    assert shares.device("lost") == "GPU-1"
    assert "the GPU of group lost is reserved again" in shares.live.event("runs", "SharedGPUReserved")


def test_a_pods_configmap_with_other_devices_is_replaced_and_cannot_be_changed(shares: Shares) -> None:
    uid = shares.make("half", {names.SHARED_GPU_CONFIGMAP: "earlier"})["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "half", "uid": uid}
    path = f"/api/v1/namespaces/{shares.live.namespace}/configmaps"
    earlier = {
        "metadata": {"name": "earlier-0", "ownerReferences": [owner]},
        "data": {names.VISIBLE_DEVICES: "GPU-0", "OTHER": "all"},
        "immutable": True,
    }
    shares.api.post(path, earlier)
    shares.ask("half", ["replaced"])
    shares.live.phase("half", "Succeeded")
    devices = {names.VISIBLE_DEVICES: shares.device("replaced")}
    assert shares.maps()["earlier-0"] == {"GPU_PORTION": "0.50", "RUNAI_NUM_OF_GPUS": "0.50", **devices}
    for name in ("earlier-0", "earlier-0-evar"):
        assert shares.api.get(f"{path}/{name}")["immutable"] is True
    result = shares.live.kubectl(
        "patch", "configmap", "earlier-0", "--patch", '{"data": {"NVIDIA_VISIBLE_DEVICES": "all"}}', check=False
    )
    assert "field is immutable when `immutable` is set" in result.stderr


def test_changes_without_a_leader_are_found_at_start(shares: Shares) -> None:
    shares.share("ends", "while-down")
    shares.share("double", "while-1", "while-2")
    shares.share("pair", "held-1", "held-2")
    shares.share("remains", "still-used")
    shares.share("bare", "unheld")
    for name in ("ends", "double", "pair", "remains", "bare"):
        shares.live.phase(name, "Succeeded")
    shares.make("waits", tolerations=SILENT)
    shares.ask("waits", ["still-wanted"])
    shares.live.until("its device is reserved", lambda: len(shares.reservations("still-wanted")) == 1)
    (reconciler,) = shares.live.pair.reconcilers
    reconciler.stop()
    shares.delete("ends")
    shares.complete("double")
    end_reservation(shares, "while-2")  # the node is short of memory
    (reservation,) = shares.reservations("unheld")
    shares.api.request("DELETE", f"{RESERVATIONS}/{reservation['metadata']['name']}", {"gracePeriodSeconds": 0})
    # A pod that another binder has bound: without our label no watch would deliver it.
    shares.api.patch(f"{shares.pods}/remains", {"metadata": {"labels": {names.LABEL_GPU_SHARING: None}}})
    # Labelled as by KAI's binder: its scheduler would not count these devices as used.
    labels = {"runai-gpu-group": None, "runai-gpu-group/held-1": "held-1", "runai-gpu-group/held-2": "held-2"}
    labels[names.LABEL_GPU_SHARING] = None
    shares.api.patch(f"{shares.pods}/pair", {"metadata": {"labels": labels}})
    shares.live.pair.launch_reconciler().wait_ready()
    shares.await_release("while-down", "while-1", "while-2")
    # No action that would end another user's pod; the operator gets a report.
    assert "the GPU of group unheld is no longer reserved" in shares.live.event("bare", "SharedGPUUnreserved")
    assert len(shares.reservations("still-wanted", "still-used")) == 2
    shares.live.until("the pod is labelled", lambda: shares.labels("remains").get(names.LABEL_GPU_SHARING) == "true")
    expectation = {"runai-gpu-group": "held-1", "runai-gpu-group/held-2": "held-2", names.LABEL_GPU_SHARING: "true"}
    shares.live.until("the pod is labelled", lambda: shares.labels("pair") == expectation)
    shares.delete("remains")
    shares.delete("pair")
    shares.await_release("still-used", "held-1", "held-2")
    shares.delete("waits")
    shares.await_release("still-wanted")


HOLD = "example.com/hold"


@contextmanager
def held(shares: Shares, *groups: str) -> Iterator[list[str]]:
    """A finalizer keeps the groups' reservation pods; yields their paths."""
    paths = [f"{RESERVATIONS}/{reservation['metadata']['name']}" for reservation in shares.reservations(*groups)]
    for path in paths:
        shares.api.patch(path, {"metadata": {"finalizers": [HOLD]}})
    try:
        yield paths
    finally:
        for path in paths:
            shares.api.patch(path, {"metadata": {"finalizers": None}})


def test_a_reservation_that_a_finalizer_keeps_is_named_with_it(shares: Shares) -> None:
    """By the requests that need its device or its name, and by the pods that it leaves without a device."""
    shares.share("first", "held")
    shares.share("runs", "lost")
    for name in ("first", "runs"):
        shares.live.phase(name, "Succeeded")
    with held(shares, "held", "lost") as paths:
        lose_reservation(shares, "lost")
        shares.delete("first")
        shares.live.until("it is being deleted", lambda: "deletionTimestamp" in shares.api.get(paths[0])["metadata"])
        # In this order: while a request needs the reservation, others do not wait for its release.
        for name, groups in (("runs", ()), ("other", ("other",)), ("same", ("held",))):
            if groups:
                shares.share(name, *groups)
            shares.live.until(
                f"an event of {name} names the finalizer",
                lambda name=name: any(f"keep it: {HOLD}" in note for _, note in shares.live.events(name)),  # type: ignore[misc]
            )
    shares.live.phase("other", "Succeeded")


@contextmanager
def denying(shares: Shares, policy: str) -> Iterator[None]:
    """One of the release's own policies denies every write, as one of another version may."""
    path = f"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/bowline-{policy}"
    validations = shares.api.get(path)["spec"]["validations"]
    denial = {"expression": "false", "message": "of another version", "reason": "Forbidden"}
    shares.api.patch(path, {"spec": {"validations": [denial]}})
    try:
        yield
    finally:
        shares.api.patch(path, {"spec": {"validations": validations}})


def first_delayed(shares: Shares) -> str:
    """Create shares until one is not bound, because the policy is in force; returns its name."""
    for number in count():
        name = f"delayed-{number}"
        shares.share(name, name, backoffLimit=0)
        shares.live.until(
            f"{name} is bound or delayed",
            lambda name=name: shares.live.events(name) or shares.live.pod(name)["spec"].get("nodeName"),  # type: ignore[misc]
        )
        if not shares.live.pod(name)["spec"].get("nodeName"):
            return name
    raise AssertionError


def test_a_denial_by_an_own_policy_delays_a_share_and_never_fails_it(shares: Shares) -> None:
    policy, series = "reconciler-configmaps", Series(shares.live)
    with denying(shares, policy):
        name = first_delayed(shares)
        shares.live.event(name, "BindingWaiting")
        assert shares.live.request(name)["status"]["phase"] == "Pending"
    status = shares.live.phase(name, "Succeeded", "Failed")["status"]
    assert status["phase"] == "Succeeded", status
    assert "failedAttempts" not in status
    assert series.increase("own_policy_denials_total", policy=policy) >= 1


def test_a_configmap_of_another_owner_is_neither_written_nor_deleted(shares: Shares) -> None:
    path = f"/api/v1/namespaces/{shares.live.namespace}/configmaps"
    foreign = {"metadata": {"name": "foreign-0"}, "data": {"precious": "yes"}}
    config_map = shares.api.post(path, foreign)
    shares.make("greedy", {names.SHARED_GPU_CONFIGMAP: "foreign"})
    shares.ask("greedy", ["greedy"])
    status = shares.live.phase("greedy", "Failed")["status"]
    assert status["failure"]["reason"] == "Rejected"
    assert status["suggestion"] == "DeletePod"
    shares.await_release()
    assert shares.api.get(f"{path}/foreign-0") == config_map
