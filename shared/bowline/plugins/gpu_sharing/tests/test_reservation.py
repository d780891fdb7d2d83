"""Which reservation holds the device of a group, and the next step where none does."""

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from bowline.api import names
from bowline.api.meta import ObjectUID
from bowline.api.node_view import lacks_gpus, reduced_node
from bowline.api.taints import MAX_TOLERATIONS
from bowline.framework.config import GpuSharingSettings
from bowline.framework.interface.status import Fatal, Retriable, Status
from bowline.framework.reason import Suggestion
from bowline.plugins.gpu_sharing.config import GpuSharingConfig
from bowline.plugins.gpu_sharing.reservation import (
    DeviceRequest,
    Held,
    NodeFacts,
    Pending,
    Reservation,
    User,
    check_reservations,
    is_unscheduled,
    requested_node,
    reservation_name,
    unused_reservations,
    view_reservation,
)
from bowline.plugins.gpu_sharing.reservation_pod import reservation_object
from bowline.plugins.gpu_sharing.tests.pods import Json, claim, reservation, user

REPORTED = reservation(device="GPU-1")
SILENT = reservation()
BLOCKER = reservation(device="GPU-2", expected_devices=frozenset({"GPU-1"}))


def test_the_name_is_the_agreed_one() -> None:
    # sha256("gpu-node-0/group"), its first 16 hexadecimal digits.
    assert reservation_name("gpu-node-0", "group") == "gpu-reservation-b1a328c4a5387bfb"


@pytest.mark.parametrize(
    ("reservations", "verdict"),
    [
        pytest.param([], None, id="there is none"),
        pytest.param([REPORTED], Held("GPU-1"), id="it has reported its device"),
        pytest.param([SILENT], Pending(SILENT), id="it has not reported its device yet"),
        pytest.param([reservation(device="GPU-1", has_ended=True)], None,
            id="fault 14: it has ended, for example evicted, and holds nothing"),
        pytest.param([reservation(device="GPU-1", deleting=True)], None, id="fault 14: it is being deleted"),
        pytest.param([reservation(node="", key=SILENT.key)], None, id="one that is not decoded has our name"),
        pytest.param([reservation(uid=ObjectUID("x"), key=SILENT.key._replace(name="a"), device="GPU-2"), REPORTED],
            Held("GPU-1"), id="of two that hold a device the one of the agreed name"),
        pytest.param([BLOCKER], None, id="it blocks another device than the group's"),
        pytest.param([replace(BLOCKER, device="GPU-1")], Held("GPU-1"), id="it has the expected device"),
        pytest.param([SILENT, reservation(uid=ObjectUID("x"), key=SILENT.key._replace(name="a"), device="GPU-2")],
            Held("GPU-2"), id="one that has reported precedes one that has not"),
    ],
)  # fmt: skip
def test_a_first_claim(reservations: list[Reservation], verdict: Held | Pending | None) -> None:
    assert check_reservations(claim(), reservations) == verdict


def test_no_device_is_reserved_where_none_is_offered() -> None:
    dra_only = replace(claim(), node_facts=NodeFacts(lacks_gpus=True))
    verdict = check_reservations(dra_only, [])
    assert isinstance(verdict, Status)
    assert "offers no nvidia.com/gpu" in verdict.message
    assert check_reservations(dra_only, [reservation(device="GPU-1")]) == Held("GPU-1")


@pytest.mark.parametrize("device", ["GPU-1", ""])
def test_a_group_has_its_device_on_one_node(device: str) -> None:
    """Of two the loss of one would not be noticed while the other is held."""
    elsewhere = reservation("n2", device=device)
    verdict = check_reservations(claim(), [elsewhere])
    assert isinstance(verdict, Fatal)
    assert "group g1 has a device on node n2" in verdict.message
    assert verdict.suggestion is Suggestion.RESCHEDULE_ELSEWHERE
    assert check_reservations(claim(), [elsewhere, REPORTED]) == Held("GPU-1"), "as an earlier version allowed it"


@pytest.mark.parametrize("device", ["GPU-1", ""])
def test_a_group_has_one_mode(device: str) -> None:
    sm_sharing = reservation(device=device, compute_mode="sm-sharing")
    assert not isinstance(check_reservations(replace(claim(), compute_mode="sm-sharing"), [sm_sharing]), Status)
    verdict = check_reservations(claim(), [sm_sharing])
    assert isinstance(verdict, Fatal)
    assert "g1 on node n1 is in mode sm-sharing, not time-slicing" in verdict.message
    assert verdict.suggestion is Suggestion.RESCHEDULE_ELSEWHERE
    # KAI-Scheduler 0.18 reads it there.
    assert reservation_pod(compute_mode="sm-sharing")["metadata"]["annotations"][names.COMPUTE_MODE] == "sm-sharing"


@pytest.mark.parametrize(
    ("allocatable", "expected"),
    [
        pytest.param({"cpu": "8"}, True, id="no device plugin"),
        pytest.param({"nvidia.com/gpu": "0"}, True, id="no healthy GPU"),
        pytest.param({"nvidia.com/gpu": "8"}, False, id="GPUs"),
        pytest.param({}, False, id="a node that has reported nothing"),
    ],
)
def test_what_a_cached_node_offers(allocatable: Json, expected: bool) -> None:
    node = {"metadata": {"name": "n", "uid": "u", "resourceVersion": "1"}, "status": {"allocatable": allocatable}}
    assert lacks_gpus(reduced_node(node)) is lacks_gpus(node) is expected


AWAITING = replace(claim(), answer=Pending(SILENT))
REFUSED = reservation(has_ended=True, status_reason="UnexpectedAdmissionError: no GPU left")


@pytest.mark.parametrize(
    ("reservations", "why"),
    [
        pytest.param([], "was deleted before it had reported its device", id="it was deleted"),
        pytest.param([reservation(deleting=True)], "was deleted before", id="it is being deleted"),
        pytest.param([REFUSED], "(UnexpectedAdmissionError: no GPU left)", id="the kubelet refused it"),
        pytest.param([reservation(uid=ObjectUID("r2"))], "was deleted before", id="another has replaced it"),
    ],
)
def test_a_claim_whose_reservation_failed_fails(reservations: list[Reservation], why: str) -> None:
    status = check_reservations(AWAITING, reservations)
    assert isinstance(status, Retriable)
    assert why in status.message
    assert status.suggestion is Suggestion.RESCHEDULE_ELSEWHERE


@pytest.mark.parametrize(
    ("reservations", "verdict"),
    [
        pytest.param([SILENT], Pending(SILENT), id="still silent"),
        pytest.param([REPORTED], Held("GPU-1"), id="reported"),
        pytest.param([reservation(uid=ObjectUID("r2"), device="GPU-2")], Held("GPU-2"),
            id="another one has reported"),
    ],
)  # fmt: skip
def test_a_claim_that_waits(reservations: list[Reservation], verdict: Held | Pending | None) -> None:
    assert check_reservations(AWAITING, reservations) == verdict


@pytest.mark.parametrize(
    ("users", "awaited_nodes", "is_released", "is_undecoded_released"),
    [
        pytest.param([], set(), True, True, id="no user"),
        pytest.param([user()], set(), False, False, id="a pod runs on it"),
        pytest.param([user(has_ended=True)], set(), True, True, id="fault 37: its pod has ended"),
        pytest.param([user(deleting=True)], set(), False, False, id="its pod is being deleted and still runs"),
        pytest.param([user(node="")], set(), True, False, id="a labelled pod that is not bound, or not decoded"),
        pytest.param([user(node="n2")], set(), True, False, id="its pod runs on another node"),
        pytest.param([user(has_ended=True), user("b")], set(), False, False, id="one of two has ended"),
        pytest.param([], {"n1"}, False, False, id="fault 34: an unfinished request asks for it"),
        pytest.param([], {"n2"}, True, False, id="a request has claimed the group on another node"),
    ],
)
def test_an_unused_reservation_is_released(
    users: list[User], awaited_nodes: set[str], is_released: bool, is_undecoded_released: bool
) -> None:
    """One that is not decoded may be on any node."""
    for candidate in (REPORTED, SILENT, reservation(has_ended=True)):
        assert unused_reservations([candidate], users, awaited_nodes) == ([candidate] if is_released else [])
    undecoded = unused_reservations([replace(SILENT, node="")], users, awaited_nodes)
    assert bool(undecoded) is is_undecoded_released


DELETED = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
HELD = {"finalizers": ["bowline.dev/rollback"]}


def asking(metadata: Json | None = None, phase: str = "") -> Json:
    return {
        "metadata": {"name": "a", "uid": "uid-a", **(metadata or {})},
        "spec": {"selectedNode": "n1", "selectedGPUGroups": ["g1"]},
        "status": {"phase": phase},
    }


@pytest.mark.parametrize(
    ("request_", "withdrawn", "node"),
    [
        pytest.param(asking(), set(), "n1", id="fresh"),
        pytest.param(asking(phase="Succeeded"), set(), None, id="done"),
        pytest.param(asking(DELETED), set(), None, id="deleted"),
        pytest.param(asking(DELETED | HELD), set(), "n1", id="deleted and not rolled back: it may still be bound"),
        pytest.param(asking(DELETED | HELD), {"uid-a"}, None, id="deleted and rolled back"),
        pytest.param(asking(), {"uid-a"}, None, id="fault 38: released by us, before its object shows it"),
        pytest.param({"metadata": {"name": "a", "uid": "u"}}, set(), None, id="without a spec"),
    ],
)
def test_requests_that_still_need_a_group(request_: Json, withdrawn: set[ObjectUID], node: str | None) -> None:
    assert requested_node(request_, "g1", withdrawn) == node


def test_reservation_pods_of_another_binder_are_recognised_by_their_container() -> None:
    own, foreign = reservation_pod(), reservation_pod()
    del foreign["spec"]["containers"][0]["command"]
    views = [view_reservation({**pod, "metadata": {**pod["metadata"], "uid": "u"}}) for pod in (own, foreign)]
    assert [view.is_foreign for view in views] == [False, True]


UNSCHEDULED = {"conditions": [{"type": "PodScheduled", "status": "False"}]}


@pytest.mark.parametrize(
    ("pod", "blocks"),
    [
        pytest.param({"status": {}}, False, id="no scheduler has tried it yet"),
        pytest.param({"status": UNSCHEDULED}, True, id="it does not fit"),
        pytest.param({"status": {"conditions": [{"type": "PodScheduled", "status": "True"}]}}, False, id="placed"),
        pytest.param({"metadata": {"deletionTimestamp": "t"}, "status": UNSCHEDULED}, False, id="being deleted"),
        pytest.param({"status": {**UNSCHEDULED, "phase": "Failed"}}, False, id="it has ended"),
    ],
)
def test_scaling_pods_that_may_need_a_free_device(pod: Json, blocks: bool) -> None:
    assert is_unscheduled({"metadata": {}, **pod}) is blocks


# --- objects ---


NAME = reservation_name("n1", "g1")


def reservation_pod(args: GpuSharingConfig | None = None, **fields: Any) -> Json:
    device_request = DeviceRequest(**{**{name: getattr(claim(), name) for name in DeviceRequest.__slots__}, **fields})
    sharing = GpuSharingSettings(reservation_namespace="res", agent_image="image")
    return reservation_object(device_request, sharing, args or GpuSharingConfig(), NAME)


def test_the_tolerations_of_a_reservation_pod_are_bounded() -> None:
    many = tuple({"key": f"k{number}", "operator": "Exists"} for number in range(MAX_TOLERATIONS + 1))
    assert len(reservation_pod(tolerations=many[1:])["spec"]["tolerations"]) == MAX_TOLERATIONS
    assert reservation_pod(tolerations=many)["spec"]["tolerations"] == [{"operator": "Exists"}]


def test_the_reservation_pod_has_the_form_that_schedulers_expect() -> None:
    pod = reservation_pod(tolerations=({"key": "gpu"},))
    assert pod["metadata"] == {
        "name": NAME,
        "namespace": "res",
        "labels": {"app": "kai-resource-reservation", "runai-gpu-group": "g1"},
        "annotations": {"karpenter.sh/do-not-disrupt": "true"},
    }
    assert pod["spec"]["nodeName"] == "n1"
    assert pod["spec"]["serviceAccountName"] == "bowline-gpu-agent"
    assert pod["spec"]["tolerations"] == [{"key": "gpu"}]
    assert "runtimeClassName" not in pod["spec"]
    (container,) = pod["spec"]["containers"]
    assert (container["name"], container["image"]) == ("resource-reservation", "image")
    assert container["imagePullPolicy"] == "IfNotPresent"
    # Without requests it would be evicted first, and the device lost.
    small = {"cpu": "10m", "memory": "64Mi"}
    assert container["resources"] == {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1", **small}}
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert pod["spec"]["securityContext"]["runAsUser"] == 10000
    assert "priorityClassName" not in pod["spec"]
    paths = {entry["name"]: entry["valueFrom"]["fieldRef"]["fieldPath"] for entry in container["env"]}
    assert paths == {"POD_NAME": "metadata.name", "POD_NAMESPACE": "metadata.namespace"}
    # All addresses: a pod may have only one of IPv6.
    assert container["args"] == ["--listen=:8080"]


def test_settings_of_reservation_pods_reach_them() -> None:
    settings = GpuSharingConfig.model_validate(
        {
            "reservationRuntimeClassName": "nvidia",
            "reservationRequests": {"memory": "32Mi", "nvidia.com/gpu": "4"},
            "reservationLimits": {"memory": "64Mi"},
            "reservationPriorityClassName": "high",
            "reservationPodSecurityContext": {},
            "reservationContainerSecurityContext": {"runAsUser": 1},
            "reservationAppLabel": "reserved",
        }
    )
    pod = reservation_pod(settings, node_facts=NodeFacts(has_fake_gpus=True))
    (container,) = pod["spec"]["containers"]
    assert container["resources"] == {
        "limits": {"memory": "64Mi", "nvidia.com/gpu": "1"},
        "requests": {"memory": "32Mi", "nvidia.com/gpu": "1"},
    }
    assert container["securityContext"] == {"runAsUser": 1}
    assert "securityContext" not in pod["spec"]
    assert pod["metadata"]["labels"]["app"] == "reserved"
    assert (pod["spec"]["runtimeClassName"], pod["spec"]["priorityClassName"]) == ("nvidia", "high")
    assert "--fake" in container["args"]


@pytest.mark.parametrize("amount", ["128MB", "", "-1", "a lot"])
def test_values_invalid_in_every_reservation_pod_are_rejected_at_start(amount: str) -> None:
    with pytest.raises(ValidationError) as rejection:
        GpuSharingConfig.model_validate({"reservationRequests": {"memory": amount}})
    (fault,) = rejection.value.errors()
    assert fault["loc"] == ("reservationRequests", "memory")
    assert "must be a quantity" in fault["msg"]


@pytest.mark.parametrize(
    ("status", "status_reason"),
    [
        pytest.param({}, "", id="no values"),
        pytest.param({"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no\ndevices"},
            "UnexpectedAdmissionError: no devices", id="the kubelet speaks"),
        pytest.param({"containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff",
            "message": "no such image"}}}]}, "ImagePullBackOff: no such image", id="the container waits"),
        pytest.param({"containerStatuses": [{"state": {"waiting": {"reason": "CrashLoopBackOff",
            "message": "back-off 10s"}}, "lastState": {"terminated": {"reason": "Error",
            "message": "NVML cannot be used"}}}]}, "CrashLoopBackOff: NVML cannot be used",
            id="the agent's last words go before the kubelet's"),
        pytest.param({"message": "x" * 5000}, "x" * 300, id="a long story is cut"),
    ],
)  # fmt: skip
def test_the_reason_why_a_reservation_does_not_run(status: Json, status_reason: str) -> None:
    pod = {**reservation_pod(), "status": status}
    assert view_reservation(pod).status_reason == status_reason


@pytest.mark.parametrize(
    ("text", "device"),
    [
        pytest.param("GPU-2f6a1c52-9d0f-3c7e-8a4b-0123456789ab", True, id="a GPU"),
        pytest.param("MIG-2f6a1c52-9d0f-5c7e-8a4b-0123456789ab", True, id="a MIG instance"),
        pytest.param("3", True, id="an index"),
        *(
            pytest.param(text, False, id=repr(text)[:20])
            for text in (
                "",
                "all",
                "ALL",
                "None",
                "void",
                "GPU-1,GPU-2",
                "GPU-1\n",
                "0:1",
                "-1",
                "G" * 65,
                "nvidia.com/gpu=all",
            )
        ),
    ],
)
def test_a_report_of_an_agent_names_one_device_or_counts_as_none(text: str, device: bool) -> None:
    metadata = {"name": "r", "namespace": "n", "uid": "u", "annotations": {names.RESERVED_DEVICE: text}}
    viewed = view_reservation({"metadata": metadata})
    assert viewed.device == (text if device else "")
    assert ("which is not one device" in viewed.status_reason) is (bool(text) and not device)
