"""Shared GPUs on the real API server: bound, joined, ended, released. kwok acts as kubelets and agents."""

from bowline.api import names
from bowline.plugins.gpu_sharing.reservation import reservation_name
from tests import hostile
from tests.plugins.series import Series
from tests.plugins.sharing import RESERVATIONS, Shares, device_of, group_of, reservation

FRESH = [
    "create/pods",  # the reservation
    "patch/pods",  # the reservation: the pod joins
    "patch/pods",  # the group's label
    "create/configmaps",
    "create/configmaps",
    "create/pods/binding",
    "patch/bindrequests",  # the finalizer
    "patch/bindrequests/status",
]


def test_two_halves_share_one_gpu_and_the_last_one_frees_it(shares: Shares) -> None:
    series = Series(shares.live)
    shares.share("half-a", "two-halves")
    shares.share("half-b", "two-halves")
    for name in ("half-a", "half-b"):
        shares.live.phase(name, "Succeeded")
        assert shares.labels(name) == {"runai-gpu-group": "two-halves", "bowline.dev/gpu-sharing": "true"}
        assert shares.live.pod(name)["metadata"]["annotations"][names.RECEIVED_RESOURCE_TYPE] == "Fraction"
        assert shares.live.pod(name)["spec"]["runtimeClassName"] == "nvidia"
    (reservation,) = shares.reservations()
    device = device_of(reservation)
    assert len(shares.maps()) == 4
    for name, data in shares.maps().items():
        expectation = {"GPU_PORTION": "0.50", "RUNAI_NUM_OF_GPUS": "0.50", "NVIDIA_VISIBLE_DEVICES": device}
        assert data == ({} if name.endswith("-evar") else expectation)
    shares.delete("half-a")
    shares.live.until("its ConfigMaps are deleted", lambda: len(shares.maps()) == 2)
    assert shares.device("two-halves") == device
    series.until(1, "gpu_sharing_reservations", state="held")
    shares.complete("half-b")
    shares.await_release()
    assert shares.live.pod("half-b")["status"]["phase"] == "Succeeded"
    series.until(0, "gpu_sharing_reservations", state="held")


def test_a_fraction_costs_eight_writes_on_a_fresh_device_and_seven_on_a_shared_one(shares: Shares) -> None:
    shares.share("first", "counted")
    shares.live.phase("first", "Succeeded")
    writes = shares.writes("first", reservation_name("gpu-node-0", "counted"), expected=FRESH)
    assert sorted(writes) == sorted(FRESH)
    shares.share("second", "counted")
    shares.live.phase("second", "Succeeded")
    assert sorted(shares.writes("second", expected=FRESH[2:])) == sorted(FRESH[2:])
    of_reservation = [*FRESH[:2], FRESH[1]]
    assert sorted(shares.writes(reservation_name("gpu-node-0", "counted"), expected=of_reservation)) == of_reservation


def left_over(shares: Shares, group: str, node: str) -> None:
    """Create a reservation pod, as the reconciler does, that no pod and no request needs."""
    shares.api.post(RESERVATIONS, reservation(shares.live.namespace, group, node))


def test_an_unshared_device_is_freed_before_another_pod_is_bound(shares: Shares) -> None:
    live = shares.live
    # A reconciler that begins to lead looks at what is idle.
    assert live.pair.reconcilers[0].stop()
    left_over(shares, "resynced", "gpu-node-0")
    live.pair.launch_reconciler().wait_ready()
    shares.await_release("resynced")
    for group, node in (("idle", "gpu-node-0"), ("elsewhere", "gpu-node-1")):
        left_over(shares, group, node)
    # The reconciler has them in its cache, and kwok does not write to them any more.
    Series(live).until(2, "gpu_sharing_reservations", state="held")
    live.create_pod("whole")
    live.request_bind("whole", receivedGPU={"count": 1, "portion": "1.00"})
    live.phase("whole", "Succeeded")
    expectation = ["delete/pods", "create/pods/binding", "patch/bindrequests/status"]
    assert shares.writes("whole", reservation_name("gpu-node-0", "idle"), expected=expectation) == expectation
    # It is on another node, and remains for a while or until a pod is bound to that node.
    assert [group_of(reservation) for reservation in shares.reservations()] == ["elsewhere"]
    shares.share("half", "fresh", node="gpu-node-1")
    live.phase("half", "Succeeded")
    assert [group_of(reservation) for reservation in shares.reservations()] == ["fresh"]


def test_a_share_that_is_not_decoded_keeps_its_device_and_no_other(shares: Shares) -> None:
    """Its owner may write its managedFields; a reconciler that starts reads neither its node nor its spec."""
    live = shares.live
    for name, group in (("hostile", "kept"), ("other", "freed")):
        shares.share(name, group)
        live.phase(name, "Succeeded")
    patch = hostile.with_managed_fields({"apiVersion": "v1", "metadata": {}}, hostile.MANAGED_FIELDS["levels"])
    live.kubectl("patch", "pod", "hostile", "--type=merge", f"--patch={patch.decode()}")
    assert live.pair.reconcilers[0].stop()
    live.pair.launch_reconciler().wait_ready()
    shares.delete("other")
    shares.await_release("freed")
    shares.share("joins", "kept")
    live.phase("joins", "Succeeded")
    shares.delete("joins")
    shares.share("later", "next")
    live.phase("later", "Succeeded")
    shares.delete("later")
    shares.await_release("next")
    assert len(shares.reservations("kept")) == 1
    live.kubectl("delete", "pod", "hostile", "--grace-period=0", "--force")
    shares.await_release("kept")
