"""Recovering a device that pods use without a reservation."""

from dataclasses import replace
from datetime import timedelta

import pytest

from bowline.api import names
from bowline.api.meta import ObjectKey, ObjectUID
from bowline.plugins.gpu_sharing.configmaps import common_devices, shown_devices, shown_mode
from bowline.plugins.gpu_sharing.group import Group, Loss
from bowline.plugins.gpu_sharing.recovery import (
    MOST_BLOCKERS,
    SEARCH_INTERVAL,
    Abandon,
    Await,
    Reserve,
    Step,
    leftovers,
    next_step,
    running_users,
)
from bowline.plugins.gpu_sharing.reservation import (
    RELEASE_RETRY,
    DeviceRequest,
    NodeFacts,
    Reservation,
    reservation_name,
    view_reservation,
)
from bowline.plugins.gpu_sharing.tests.pods import claim, reservation, user

NAME = reservation_name("n1", "g1")
WANTED = frozenset({"GPU-1"})
KNOWN = replace(claim(), expected_devices=WANTED)
CORDONED, WITHOUT_GPUS = (
    replace(KNOWN, node_facts=facts) for facts in (NodeFacts(is_cordoned=True), NodeFacts(lacks_gpus=True))
)
EVICTED = reservation(device="GPU-1", has_ended=True)
AGAIN = replace(EVICTED, key=ObjectKey("res", f"{NAME}-1"), expected_devices=WANTED)
NEW = reservation(expected_devices=WANTED)
JOINED = replace(NEW, is_joined=True)
BLOCKER = replace(NEW, device="GPU-2")
REFUSED = replace(NEW, has_ended=True, status_reason="UnexpectedAdmissionError: no devices left")


def blocker(number: int) -> Reservation:
    """Return a reservation that has got another device."""
    return replace(BLOCKER, key=ObjectKey("res", f"{NAME}-{number}"), uid=ObjectUID(f"b{number}"))


@pytest.mark.parametrize(
    ("reservations", "step"),
    [
        pytest.param([], Reserve(NAME), id="its reservation was deleted"),
        pytest.param([EVICTED], Reserve(NAME), id="its reservation was evicted"),
        pytest.param([AGAIN], Reserve(NAME), id="the reservation of an earlier recovery was evicted"),
        pytest.param([NEW], Await(NEW), id="a new one has not reported its device"),
        pytest.param([BLOCKER], Reserve(f"{NAME}-1"), id="another device: kept, so that it is not given again"),
        pytest.param([blocker(1)], Reserve(NAME), id="a name is free again"),
        pytest.param([reservation(node="n2")], Reserve(NAME), id="one of another node is none"),
    ],
)
def test_a_search_continues(reservations: list[Reservation], step: Step) -> None:
    assert next_step(KNOWN, Group("g1", reservations=reservations), None, 0.0) == step


@pytest.mark.parametrize(
    ("reservations", "lost", "why", "releases"),
    [
        pytest.param([BLOCKER, NEW], CORDONED, "node n1 is cordoned", [BLOCKER, NEW],
            id="its node is being drained"),
        pytest.param([NEW], WITHOUT_GPUS, "node n1 offers no nvidia.com/gpu", [NEW],
            id="its node's device plugin is being replaced"),
        pytest.param([BLOCKER], claim(), "do not agree", [BLOCKER], id="its device is not known"),
        pytest.param([blocker(1), REFUSED], KNOWN, "no devices left", [blocker(1), REFUSED], id="the node is full"),
        pytest.param([blocker(n) for n in range(MOST_BLOCKERS)], KNOWN, "got other devices",
            [blocker(n) for n in range(MOST_BLOCKERS)], id="too many are blocked"),
    ],
)  # fmt: skip
def test_a_search_without_success_releases_what_it_blocks(
    reservations: list[Reservation], lost: DeviceRequest, why: str, releases: list[Reservation]
) -> None:
    step = next_step(lost, Group("g1", reservations=reservations), None, 0.0)
    assert isinstance(step, Abandon)
    assert why in step.why
    assert step.pause == (RELEASE_RETRY if lost is WITHOUT_GPUS else SEARCH_INTERVAL), (
        "a node may soon offer GPUs again"
    )
    all_reservations = [EVICTED, JOINED, *reservations]
    assert leftovers(Group("g1", reservations=all_reservations, loss=Loss(step.why)), 0.0) == releases
    assert leftovers(Group("g1", reservations=reservations, loss=Loss(last_uid=NEW.uid)), 0.0) == []


HOLDER = reservation(device="GPU-1", expected_devices=WANTED)


@pytest.mark.parametrize(
    ("reservations", "releases"),
    [
        pytest.param([HOLDER, NEW], [NEW], id="a silent one beside the one that holds the device"),
        pytest.param([reservation()], [], id="a silent one alone may have the device that pods use"),
        pytest.param([HOLDER, REFUSED], [REFUSED],
            id="what the kubelet rejected: the next search would take it for its answer"),
        pytest.param([REFUSED], [], id="not before a request has read why it was rejected"),
    ],
)  # fmt: skip
def test_what_serves_nobody(reservations: list[Reservation], releases: list[Reservation]) -> None:
    silent = {entry.uid: 0.0 for entry in reservations}
    assert leftovers(Group("g1", reservations=reservations, unreported=silent), 0.0) == releases


@pytest.mark.parametrize(
    ("reservations", "why", "pause"),
    [
        pytest.param([blocker(1)], "the last reservation pod of the search was", SEARCH_INTERVAL, id="deleted"),
        pytest.param([blocker(1), NEW], "has not reported its device", SEARCH_INTERVAL, id="silent"),
        pytest.param([NEW], "has not reported its device", RELEASE_RETRY, id="silent, perhaps with the device"),
    ],
)
def test_a_search_ends_with_its_last_reservation(reservations: list[Reservation], why: str, pause: timedelta) -> None:
    searching = Group("g1", reservations=reservations, unreported={NEW.uid: 0.0})
    step = next_step(KNOWN, searching, NEW.uid, 0.0)
    assert isinstance(step, Abandon)
    assert why in step.why
    assert step.pause == pause
    assert NEW not in reservations or next_step(KNOWN, searching, NEW.uid, -0.1) == Await(NEW)


@pytest.mark.parametrize(
    ("groups", "visible", "devices"),
    [
        pytest.param("g1", "GPU-1", {"GPU-1"}, id="one device"),
        pytest.param("g2,g1", "GPU-2,GPU-1", {"GPU-1"}, id="in the order of the groups"),
        pytest.param("", "GPU-2,GPU-1", {"GPU-1", "GPU-2"}, id="of an earlier version: any of them"),
        pytest.param("g1", "k8s.device-plugin.nvidia.com/gpu=GPU-1", {"GPU-1"}, id="a CDI name"),
    ],
)
def test_devices_that_a_configmap_shows(groups: str, visible: str, devices: set[str]) -> None:
    annotations = {"bowline.dev/gpu-groups": groups} if groups else {}
    assert shown_devices("g1", annotations, {"NVIDIA_VISIBLE_DEVICES": visible}) == devices


@pytest.mark.parametrize(
    ("groups", "modes", "mode"),
    [
        pytest.param("g2,g1", "time-slicing,sm-sharing", "sm-sharing", id="in the order of the groups"),
        pytest.param("g1", "time-slicing", "", id="the default"),
        pytest.param("g2", "sm-sharing", "", id="another group"),
    ],
)
def test_the_mode_that_a_configmap_shows(groups: str, modes: str, mode: str) -> None:
    assert shown_mode("g1", {"bowline.dev/gpu-groups": groups, names.ANNOTATION_COMPUTE_MODES: modes}) == mode


@pytest.mark.parametrize(
    ("device_sets", "devices"),
    [
        pytest.param([{"a"}, {"a"}], {"a"}, id="they agree"),
        pytest.param([{"a", "b"}, {"a"}], {"a"}, id="one knows better"),
        pytest.param([{"a"}, set()], {"a"}, id="one shows none"),
        pytest.param([{"a"}, {"b"}], set(), id="contradiction"),
        pytest.param([], set(), id="nothing"),
    ],
)
def test_the_common_device_of_a_groups_pods(device_sets: list[set[str]], devices: set[str]) -> None:
    assert common_devices([frozenset(device_set) for device_set in device_sets]) == devices


def test_ended_and_unbound_pods_need_no_recovery() -> None:
    users = [user("a"), user("b", has_ended=True), user("c", deleting=True), user("d", node="")]
    assert [entry.key.name for entry in running_users(users)] == ["a"]


@pytest.mark.parametrize("joined", [{}, {"bowline.dev/last-joined": "2026-01-01T00:00:00.000000Z"}])
def test_a_blocker_and_one_that_was_joined_are_recognised_by_their_annotations(joined: dict[str, str]) -> None:
    annotations = {"bowline.dev/expected-devices": "GPU-1", "run.ai/reserve_for_gpu_index": "GPU-2", **joined}
    metadata = {"namespace": "res", "name": NAME, "uid": "u", "resourceVersion": "1", "annotations": annotations}
    limits = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    view = view_reservation({"metadata": metadata, "spec": {"containers": [limits]}})
    assert (view.is_misplaced, view.holds, view.lives, view.is_joined) == (True, False, True, bool(joined))
