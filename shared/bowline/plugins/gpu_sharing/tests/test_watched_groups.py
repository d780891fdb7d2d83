"""Which devices are unused, change by change."""

from typing import Any, cast

import pytest

from bowline.api.meta import Object
from bowline.kube.client import KubeClient
from bowline.kube.resources import ENDED, UNENDED
from bowline.plugin import Settings
from bowline.plugins.gpu_sharing.config import GpuSharingConfig
from bowline.plugins.gpu_sharing.plugin import GpuSharing
from bowline.plugins.gpu_sharing.reservation import may_be_on, reservation_name
from bowline.plugins.gpu_sharing.watched_groups import (
    WatchedGroups,
    is_same_reservation,
    transform_reservation,
    transform_user,
)
from bowline.testing.handles import handle_for

NODE = "node-0"


def meta(name: str, **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "1", "labels": labels}}


def reservation(group: str, node: str = NODE, name: str = "", **metadata: Any) -> Object:
    pod = meta(name or reservation_name(node, group), **{"runai-gpu-group": group})
    device = {"annotations": {"run.ai/reserve_for_gpu_index": "GPU-1"}}
    cached = transform_reservation({"metadata": pod["metadata"] | device | metadata})
    assert cached is not None
    return cached


def user(name: str, *groups: str) -> Object:
    return transform_user(meta(name, **{f"runai-gpu-group/{group}": group for group in groups}))


def test_a_device_is_idle_from_its_last_user_until_its_reservation_ends() -> None:
    idle = WatchedGroups()
    idle.reservation_changed(None, reservation("g"))
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
    idle = WatchedGroups()
    idle.user_changed(None, user("a", "g", "h"))
    idle.reservation_changed(None, reservation("g"))
    idle.reservation_changed(None, reservation("h"))
    assert idle.on_node(NODE) == set()
    idle.user_changed(user("a", "g", "h"), None)
    assert idle.on_node(NODE) == {"g", "h"}
    idle.user_changed(None, user("b", "h"))
    assert idle.on_node(NODE) == {"g"}


def test_groups_without_users_or_without_a_reservation_are_looked_at() -> None:
    """A reservation that has lost its label counts; a pod without group and name of a reservation is none."""
    watched, deleting = WatchedGroups(), reservation("g", deletionTimestamp="2026-01-01T00:00:00Z")
    watched.user_changed(None, user("a", "g"))
    assert (set(watched.to_look_at), watched.unreserved) == ({"g"}, 1)
    watched.reservation_changed(None, reservation("g"))
    assert (set(watched.to_look_at), watched.unreserved) == (set(), 0)
    watched.reservation_changed(reservation("g"), deleting)
    assert (set(watched.to_look_at), watched.unreserved) == ({"g"}, 1)
    watched.reservation_changed(deleting, transform_reservation(meta(reservation_name(NODE, "g"))))
    assert watched.to_look_at == {"g", ""}
    assert transform_reservation(meta("other")) is None
    watched.user_changed(user("a", "g"), None)
    assert (set(watched.to_look_at), watched.unreserved) == ({""}, 0)


def test_a_reservation_that_has_ended_is_looked_at_once_its_group_has_no_users() -> None:
    """It holds nothing: it reserves no device, and no other pod of its node waits for its release."""
    watched, ended = WatchedGroups(), reservation("g")
    watched.user_changed(None, user("a", "g"))
    watched.reservation_changed(None, reservation("g", name="again"))
    watched.ended_changed(None, ended)
    assert watched.to_look_at == set()
    watched.reservation_changed(reservation("g", name="again"), None)
    assert (set(watched.to_look_at), watched.unreserved) == ({"g"}, 1)
    watched.user_changed(user("a", "g"), None)
    assert (set(watched.to_look_at), watched.unreserved) == ({"g"}, 0)
    assert watched.on_node(NODE) == set()
    watched.ended_changed(ended, transform_reservation(meta(reservation_name(NODE, "g"))))
    assert watched.to_look_at == {""}, "it has lost its label"
    watched.ended_changed(transform_reservation(meta(reservation_name(NODE, "g"))), None)
    assert watched.to_look_at == set()


def test_the_watches_of_one_that_ends_have_no_common_order() -> None:
    watched = WatchedGroups()
    watched.reservation_changed(None, reservation("g"))
    watched.ended_changed(None, reservation("g"))
    watched.reservation_changed(reservation("g"), None)
    assert watched.to_look_at == {"g"}


def test_a_group_is_checked_when_its_last_pod_leaves_it_or_one_joins_it_without_a_reservation() -> None:
    watched = WatchedGroups()
    watched.reservation_changed(None, reservation("g"))
    assert watched.user_changed(None, user("a", "g", "lost")) == {"lost"}
    assert watched.user_changed(None, user("b", "g")) == set()
    assert watched.user_changed(user("b", "g"), None) == set()
    assert watched.user_changed(user("a", "g", "lost"), user("a", "lost")) == {"g", "lost"}
    assert watched.user_changed(user("a", "lost"), None) == {"lost"}, "the recovery of its device ends"


@pytest.mark.parametrize(
    ("name", "may_be"),
    [
        pytest.param(reservation_name(NODE, "g"), True, id="the node's"),
        pytest.param(reservation_name("node-1", "g"), False, id="another node's"),
        pytest.param(f"{reservation_name(NODE, 'g')}-2", True, id="a second one of the node"),
        pytest.param("gpu-reservation-node-0-abcde", True, id="the node's, by a generated name"),
        pytest.param("gpu-reservation-node-1-abcde", False, id="another node's, by a generated name"),
        pytest.param("gpu-reservation-node-0-1-abcde", False, id="a node's whose name begins with this one"),
        pytest.param("mine", True, id="named by hand, for any node"),
    ],
)
def test_the_node_of_a_reservation_by_its_name(name: str, may_be: bool) -> None:
    assert may_be_on(NODE, "g", name) is may_be


@pytest.mark.parametrize(
    ("node", "name"),
    [
        pytest.param("gpu-node-0", "gpu-reservation-gpu-node-0-abcde", id="as long as our own names"),
        pytest.param("n" * 60, f"gpu-reservation-{'n' * 42}abcde", id="a long name is cut by the API server"),
    ],
)
def test_generated_names_are_matched_with_their_node(node: str, name: str) -> None:
    assert may_be_on(node, "g", name)
    assert not may_be_on("worker-001", "g", name)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param({}, {"annotations": {"bowline.dev/last-joined": "1"}}, True, id="a request has joined"),
        pytest.param({}, {}, True, id="its status"),
        pytest.param({}, {"annotations": {"run.ai/reserve_for_gpu_index": "GPU-1"}}, False, id="its device"),
        pytest.param({}, {"deletionTimestamp": "2026-01-01T00:00:00Z"}, False, id="it is being deleted"),
        pytest.param({}, {"uid": "other"}, False, id="another pod of its name"),
        pytest.param(None, {}, False, id="it is new"),
        pytest.param({}, None, False, id="it is deleted, or has ended"),
    ],
)
def test_changes_that_decide_nothing_about_a_reserved_device(
    before: dict[str, Any] | None, after: dict[str, Any] | None, expected: bool
) -> None:
    def cached(metadata: dict[str, Any] | None, version: str) -> Object | None:
        if metadata is None:
            return None
        identity = {"name": reservation_name(NODE, "g"), "namespace": "ns", "uid": "u", "resourceVersion": version}
        return transform_reservation({"metadata": {**identity, **metadata}})

    assert is_same_reservation(cached(before, "1"), cached(after, "2")) is expected


async def test_a_reservation_that_ends_leaves_the_watch_of_those_that_hold_a_device() -> None:
    """A change of its status changes nothing that the cache keeps, so only its deletion from the watch is noticed."""
    plugin = GpuSharing(GpuSharingConfig(), Settings())
    await plugin.setup(handle_for(plugin.name, cast(KubeClient, None)))
    reserved, ended, *_ = [source.field_selector for source in plugin.event_sources()]
    namespace = f"metadata.namespace={Settings().gpu_sharing.reservation_namespace}"
    assert (reserved, ended) == (f"{namespace},{UNENDED}", f"{namespace},{ENDED}")
