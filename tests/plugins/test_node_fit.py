"""Nodes with and without free capacity at the time of the bind."""

import uuid
from collections import Counter
from typing import Any

import pytest

from bowline.api import names
from bowline.localcluster.nodes import node_object
from bowline.testing.builders import bind_request, pod
from tests.audit import audit_events, once_logged
from tests.live import Live
from tests.plugins.series import Series
from tests.plugins.sharing import Shares
from tests.waiting import wait_until


def container(**requests: str) -> dict[str, Any]:
    """A container; ``gpu`` is limited, too, as GPUs must be."""
    resource_names = {"gpu": names.RESOURCE_GPU}
    resources: dict[str, Any] = {"requests": {resource_names.get(key, key): value for key, value in requests.items()}}
    if "gpu" in requests:
        resources["limits"] = {names.RESOURCE_GPU: requests["gpu"]}
    return {"name": "main", "image": "registry.example/app:1", "resources": resources}


@pytest.fixture
def node(strict_pair: Live) -> str:
    """A node for this test only: 4 cpu, 8Gi, 2 GPUs, 4 pods."""
    body = node_object(f"small-{uuid.uuid4().hex[:8]}", gpus=2)
    room = {"cpu": "4", "memory": "8Gi", "pods": "4", names.RESOURCE_GPU: "2"}
    body["status"] |= {"capacity": room, "allocatable": room}
    nodes = "/api/v1/nodes"
    strict_pair.cluster.api.post(nodes, body)
    # One that is not in the reconciler's cache would be read live.
    Series(strict_pair).until(len(strict_pair.cluster.api.get(nodes)["items"]), "reflector_objects", resource="nodes")
    return str(body["metadata"]["name"])


def bind(live: Live, name: str, node: str, *phases: str, **requests: str) -> dict[str, Any]:
    live.create_pod(name, containers=[container(**requests)])
    live.request_bind(name, node)
    status: dict[str, Any] = live.phase(name, *(phases or ("Succeeded", "Failed")))["status"]
    return status


def test_a_pod_that_fits_exactly_is_bound(strict_pair: Live, node: str) -> None:
    bind(strict_pair, "first", node, "Succeeded", cpu="1500m", memory="8Gi", gpu="2")
    bind(strict_pair, "second", node, "Succeeded", cpu="2500m")


@pytest.mark.parametrize(
    ("first", "second", "named"),
    [
        pytest.param({"cpu": "3"}, {"cpu": "1001m"}, "cpu", id="cpu"),
        pytest.param({"memory": "8Gi"}, {"memory": "1"}, "memory", id="memory"),
        pytest.param({"gpu": "1"}, {"gpu": "2"}, "gpu", id="GPUs"),
    ],
)
def test_a_pod_that_does_not_fit_is_reported_and_not_bound(
    strict_pair: Live, node: str, first: dict[str, str], second: dict[str, str], named: str
) -> None:
    bind(strict_pair, "first", node, "Succeeded", **first)
    status = bind(strict_pair, "second", node, "Failed", **second)
    assert status["failure"]["reason"] == "Rejected"
    assert status["suggestion"] == "RescheduleElsewhere"
    strict_pair.event("second", "BindingFailed")
    assert "nodeName" not in strict_pair.pod("second")["spec"]


def test_ended_pods_free_their_resources(strict_pair: Live, node: str) -> None:
    bind(strict_pair, "first", node, "Succeeded", cpu="3")
    bind(strict_pair, "second", node, "Failed", cpu="2")
    strict_pair.kubectl("delete", "pod", "first", "--grace-period=0", "--force")
    strict_pair.kubectl("delete", "bindrequest", "second")
    again = bind_request("second", node, strict_pair.namespace, strict_pair.pod("second")["metadata"]["uid"])
    # Denied for some seconds: only time ends the backoff of a failure for lack of free resources.
    wait_until(
        lambda: strict_pair.kubectl("create", "-f", "-", objects=again, check=False).returncode == 0,
        "the end of the backoff of the failed decision",
    )
    strict_pair.phase("second", "Succeeded")


def bind_together(live: Live, node: str, count: int, **requests: str) -> list[dict[str, Any]]:
    """Create as many pods and then their requests together; returns how each ended."""
    pods = [f"pod-{index}" for index in range(count)]
    live.create(*[pod(name, containers=[container(**requests)]) for name in pods])
    # One retry each, so that those that conflict with others end soon.
    live.create(*[bind_request(n, node, uid=live.pod(n)["metadata"]["uid"], backoffLimit=1) for n in pods])
    return [live.phase(name, "Succeeded", "Failed")["status"] for name in pods]


@pytest.mark.parametrize(
    ("requests", "room"),
    [pytest.param({"gpu": "1"}, 2, id="two GPUs"), pytest.param({}, 4, id="four places")],
)
def test_pods_bound_concurrently_never_exceed_a_nodes_capacity(
    strict_pair: Live, node: str, requests: dict[str, str], room: int
) -> None:
    ends = bind_together(strict_pair, node, 10, **requests)
    assert Counter(end["phase"] for end in ends) == {"Succeeded": room, "Failed": 10 - room}
    assert {end["suggestion"] for end in ends if end["phase"] == "Failed"} == {"RescheduleElsewhere"}
    pods = strict_pair.cluster.api.get(f"/api/v1/pods?fieldSelector=spec.nodeName%3D{node}")["items"]
    assert len(pods) == room


def test_of_two_schedulers_that_overcommit_a_node_one_is_told_to_decide_again(strict_pair: Live, node: str) -> None:
    for name, scheduler in (("ours", "bowline"), ("theirs", "kai-scheduler")):
        strict_pair.create_pod(name, schedulerName=scheduler, containers=[container(gpu="2")])
    for name in ("ours", "theirs"):
        strict_pair.request_bind(name, node)
    ends = {name: strict_pair.phase(name, "Succeeded", "Failed")["status"] for name in ("ours", "theirs")}
    assert sorted(end["phase"] for end in ends.values()) == ["Failed", "Succeeded"]
    (loser,) = (name for name, end in ends.items() if end["phase"] == "Failed")
    assert ends[loser]["suggestion"] == "RescheduleElsewhere"
    assert "nodeName" not in strict_pair.pod(loser)["spec"]
    # Its scheduler follows the suggestion; another node is no repetition, so it is not denied.
    strict_pair.kubectl("delete", "bindrequest", loser)
    strict_pair.request_bind(loser, "gpu-node-1")
    strict_pair.phase(loser, "Succeeded")


def test_a_check_costs_one_read_of_the_node_and_one_list_of_its_pods(strict_pair: Live, node: str) -> None:
    bind(strict_pair, "pod", node, "Succeeded")

    def reads() -> list[str]:
        return [
            event["requestURI"].partition("&limit")[0]
            for event in audit_events(strict_pair, "bowline-reconciler")
            if event["verb"] in ("get", "list") and node in event["requestURI"]
        ]

    assert once_logged(strict_pair, 2, reads) == [
        f"/api/v1/nodes/{node}",
        f"/api/v1/pods?fieldSelector=spec.nodeName%3D{node}",
    ]


def test_a_reservation_pod_uses_the_nodes_resources(strict_pair: Live, node: str) -> None:
    shares = Shares(strict_pair)
    for name in ("half", "other-half"):
        shares.share(name, "room", node=node)
        strict_pair.phase(name, "Succeeded")
    bind(strict_pair, "whole", node, "Failed", gpu="2")
