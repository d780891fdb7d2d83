"""Which devices are unused, change by change."""

from typing import Any

import pytest

from bowline.api.meta import Object
from bowline.plugins.gpu_sharing.group import (
    Groups,
    transform_reservation,
    transform_user,
)
from bowline.plugins.gpu_sharing.reservation import reservation_name

NODE = "node-0"
DEVICE = {"run.ai/reserve_for_gpu_index": "GPU-1"}


def meta(name: str, **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "1", "labels": labels}}


def reservation(group: str, node: str = NODE, name: str = "", phase: str = "Running", **metadata: Any) -> Object:
    pod = meta(name or reservation_name(node, group), **{"runai-gpu-group": group})["metadata"]
    spec = {"nodeName": node, "containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]}
    cached = transform_reservation(
        {"metadata": pod | {"annotations": DEVICE} | metadata, "spec": spec, "status": {"phase": phase}}
    )
    assert cached is not None
    return cached


def user(name: str, *groups: str) -> Object:
    return transform_user(meta(name, **{f"runai-gpu-group/{group}": group for group in groups}))


def test_a_device_is_idle_from_its_last_user_until_its_reservation_ends() -> None:
    idle = Groups()
    for group, node in (("g", NODE), ("elsewhere", "node-1")):
        idle.reservation_changed(None, reservation(group, node))
    idle.user_changed(None, user("a", "g"))
    idle.user_changed(None, user("b", "g"))
    assert idle.on_node(NODE) == set()
    idle.user_changed(user("a", "g"), None)
    assert idle.on_node(NODE) == set()
    idle.user_changed(user("b", "g"), user("b"))
    assert idle.on_node(NODE) == {"g"}
    idle.reservation_changed(reservation("g"), None)
    assert idle.on_node(NODE) == set()


def test_the_watches_have_no_common_order() -> None:
    idle = Groups()
    idle.user_changed(None, user("a", "g", "h"))
    idle.reservation_changed(None, reservation("g"))
    idle.reservation_changed(None, reservation("h"))
    assert idle.on_node(NODE) == set()
    idle.user_changed(user("a", "g", "h"), None)
    assert idle.on_node(NODE) == {"g", "h"}
    idle.user_changed(None, user("b", "h"))
    assert idle.on_node(NODE) == {"g"}


def test_groups_without_users_or_without_a_reservation_are_looked_at() -> None:
    """A pod without the label of a group is no reservation."""
    watched, deleting = Groups(), reservation("g", deletionTimestamp="2026-01-01T00:00:00Z")
    watched.user_changed(None, user("a", "g"))
    assert (set(watched.to_look_at), watched.unreserved) == ({"g"}, 1)
    watched.reservation_changed(None, reservation("g"))
    assert (set(watched.to_look_at), watched.unreserved) == (set(), 0)
    watched.reservation_changed(reservation("g"), deleting)
    assert (set(watched.to_look_at), watched.unreserved) == ({"g"}, 1)
    watched.reservation_changed(deleting, transform_reservation(meta("other")))
    assert (set(watched.to_look_at), watched.unreserved) == ({"g"}, 1)
    watched.user_changed(user("a", "g"), None)
    assert (set(watched.to_look_at), watched.unreserved) == (set(), 0)


def test_a_reservation_that_has_ended_is_looked_at_once_its_group_has_no_users() -> None:
    """It holds nothing: it reserves no device, and no other pod of its node waits for its release."""
    watched, ended = Groups(), reservation("g", phase="Failed")
    watched.user_changed(None, user("a", "g"))
    watched.reservation_changed(None, reservation("g", name="again"))
    watched.reservation_changed(None, ended)
    assert watched.to_look_at == set()
    watched.reservation_changed(reservation("g", name="again"), None)
    assert (set(watched.to_look_at), watched.unreserved) == ({"g"}, 1)
    watched.user_changed(user("a", "g"), None)
    assert (set(watched.to_look_at), watched.unreserved) == ({"g"}, 0)
    assert watched.on_node(NODE) == set()
    watched.reservation_changed(ended, None)
    assert watched.to_look_at == set()


def test_a_group_is_checked_when_its_last_pod_leaves_it_or_one_joins_it_without_a_reservation() -> None:
    watched = Groups()
    watched.reservation_changed(None, reservation("g"))
    assert watched.user_changed(None, user("a", "g", "lost")) == {"lost"}
    assert watched.user_changed(None, user("b", "g")) == set()
    assert watched.user_changed(user("b", "g"), None) == set()
    assert watched.user_changed(user("a", "g", "lost"), user("a", "lost")) == {"g", "lost"}
    assert watched.user_changed(user("a", "lost"), None) == {"lost"}, "the recovery of its device ends"


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param(
            {}, {"annotations": {"bowline.dev/last-joined": "1"} | DEVICE}, False, id="a request has joined"
        ),
        pytest.param({}, {}, False, id="its status"),
        pytest.param({}, {"annotations": {}}, True, id="its device"),
        pytest.param({"annotations": {}}, {}, True, id="its device again"),
        pytest.param({}, {"deletionTimestamp": "2026-01-01T00:00:00Z"}, True, id="it is being deleted"),
        pytest.param({}, {"phase": "Failed"}, True, id="it has ended"),
        pytest.param({}, None, True, id="it is deleted"),
    ],
)
def test_changes_that_decide_about_a_used_device(
    before: dict[str, Any], after: dict[str, Any] | None, expected: bool
) -> None:
    watched = Groups()
    watched.user_changed(None, user("a", "g"))
    watched.reservation_changed(None, reservation("g", **before))
    changed = watched.reservation_changed(
        reservation("g", **before), reservation("g", **after) if after is not None else None
    )
    assert changed == ({"g"} if expected else set())


def test_a_device_that_is_offered_twice_has_two_holders() -> None:
    watched = Groups()
    for group in ("g", "h"):
        watched.reservation_changed(None, reservation(group))
    assert watched.holders(NODE, "GPU-1") == {"g", "h"}
    misplaced = reservation("i", annotations={**DEVICE, "bowline.dev/expected-devices": "GPU-2"})
    watched.reservation_changed(None, misplaced)
    watched.reservation_changed(misplaced, None)
    watched.reservation_changed(reservation("h"), None)
    assert watched.holders(NODE, "GPU-1") == {"g"}
    watched.reservation_changed(reservation("g"), None)
    assert watched.holders(NODE, "GPU-1") == set()
