"""In-place resize beside shares: CPU and memory change, a GPU does not, and resized requests count on the node."""

import os
from typing import Any

import pytest

from bowline.localcluster.assets.versions import release_for
from tests.live import Live
from tests.plugins.sharing import Shares

pytestmark = pytest.mark.skipif(
    int(release_for(None, os.environ).minor.partition(".")[2]) < 33,
    reason="pods/resize is served from Kubernetes 1.33 on",
)

SMALL = {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": "1", "memory": "128Mi"}}


@pytest.fixture
def shares(strict_pair: Live) -> Shares:
    """Sharing pods in the test's namespace; node_fit is on."""
    return Shares(strict_pair)


def resize(shares: Shares, name: str, resources: dict[str, Any]) -> dict[str, Any]:
    """Resize the pod's container by the subresource."""
    body = {"spec": {"containers": [{"name": "main", "resources": resources}]}}
    path = f"{shares.pods}/{name}/resize"
    kind = "application/strategic-merge-patch+json"
    resized_pod: dict[str, Any] = shares.live.cluster.api.request("PATCH", path, body, kind)
    return resized_pod


def bound_share(shares: Shares, name: str) -> None:
    """Bind a share on a device of its own."""
    shares.make(name, containers=[{"name": "main", "image": "i", "resources": SMALL}])
    shares.ask(name, [name])
    shares.live.phase(name, "Succeeded")
    live = shares.live
    live.until("kwok has started the pod", lambda: live.pod(name)["status"].get("containerStatuses"))
    # As a kubelet that supports a resize reports it.
    (status,) = live.pod(name)["status"]["containerStatuses"]
    live.cluster.api.patch(
        f"{shares.pods}/{name}/status", {"status": {"containerStatuses": [status | {"resources": SMALL}]}}
    )


def test_resized_requests_count_on_the_node(shares: Shares) -> None:
    bound_share(shares, "grown")
    node = shares.live.cluster.api.get("/api/v1/nodes/gpu-node-0")
    cpu = int(node["status"]["allocatable"]["cpu"])
    resize(shares, "grown", {"requests": {"cpu": str(cpu - 1)}, "limits": {"cpu": str(cpu)}})
    two = {"requests": {"cpu": "2"}}
    shares.make("second", containers=[{"name": "main", "image": "i", "resources": two}])
    shares.ask("second", ["grown"])
    shares.live.phase("second", "Failed")
