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


def test_a_pod_that_does_not_fit_is_reported_and_not_bound(strict_pair: Live, node: str) -> None:
    bind(strict_pair, "first", node, "Succeeded", cpu="3")
    status = bind(strict_pair, "second", node, "Failed", cpu="1001m")
    assert status["failure"]["reason"] == "Rejected"
    assert status["suggestion"] == "RescheduleElsewhere"
    strict_pair.event("second", "BindingFailed")
    assert "nodeName" not in strict_pair.pod("second")["spec"]


def bind_together(live: Live, node: str, count: int, **requests: str) -> list[dict[str, Any]]:
    """Create as many pods and then their requests together; returns how each ended."""
    pods = [f"pod-{index}" for index in range(count)]
    live.create(*[pod(name, containers=[container(**requests)]) for name in pods])
    # One retry each, so that those that conflict with others end soon.
    live.create(*[bind_request(n, node, uid=live.pod(n)["metadata"]["uid"], backoffLimit=1) for n in pods])
    return [live.phase(name, "Succeeded", "Failed")["status"] for name in pods]


@pytest.mark.parametrize(
    ("requests", "room"), [pytest.param({"gpu": "1"}, 2, id="two GPUs"), pytest.param({}, 4, id="four places")]
)
def test_pods_bound_concurrently_never_exceed_a_nodes_capacity(
    strict_pair: Live, node: str, requests: dict[str, str], room: int
) -> None:
    ends = bind_together(strict_pair, node, 10, **requests)
    assert Counter(end["phase"] for end in ends) == {"Succeeded": room, "Failed": 10 - room}
    assert {end["suggestion"] for end in ends if end["phase"] == "Failed"} == {"RescheduleElsewhere"}
    pods = strict_pair.cluster.api.get(f"/api/v1/pods?fieldSelector=spec.nodeName%3D{node}")["items"]
    assert len(pods) == room


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
