"""Releases of the chart on a real node: an agent whose image is missing, an uninstall and a new installation."""

from collections.abc import Iterator

import pytest

from bowline.localcluster.helm import find_helm
from tests.localnode.cluster import NAMESPACE, RELEASE, NodeCluster, install_chart
from tests.localnode.settings import PAUSE_IMAGE
from tests.node.steps import NodeLive

# A webhook's termination grace period is 75 s.
_STOPPED_S = 120.0
_ABSENT = "localhost/absent:1"
_PAUSE = {"image": PAUSE_IMAGE, "command": ["/pause"]}
_LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{RELEASE}-reconciler"


@pytest.fixture
def absent_agent(node: NodeCluster) -> Iterator[None]:
    """Reservation pods have an image that no registry has; the release's own again afterwards."""
    install_chart(node, {"config.gpuSharing.agentImage": _ABSENT, "config.gpuSharing.agentTimeout": "5s"})
    yield
    install_chart(node)


@pytest.mark.usefixtures("absent_agent")
def test_missing_agent_image_is_named_by_the_failed_request(live: NodeLive) -> None:
    live.run_pod("pod", {"gpu-fraction": "0.5"}, container=_PAUSE)
    live.bind_share("pod", "0.50", "group-i")
    status = live.phase("pod", "Failed", "Succeeded")["status"]
    assert status["phase"] == "Failed"
    assert _ABSENT in status["reason"]
    assert "nodeName" not in live.pod("pod")["spec"]


def test_lease_is_deleted_with_its_release_and_another_installation_leads(node: NodeCluster, live: NodeLive) -> None:
    """Helm deletes the right to release the Lease together with the pods; the garbage collector deletes the Lease."""
    (owner,) = live.cluster.api.get(_LEASE)["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("ServiceAccount", f"{RELEASE}-reconciler")
    find_helm().uninstall(RELEASE, NAMESPACE, node.cluster.kubeconfig)
    try:
        pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
        live.until("every pod of the release is deleted", lambda: not live.cluster.api.get(pods)["items"], _STOPPED_S)
        live.until("the Lease is deleted", lambda: live.not_found(_LEASE))
    finally:
        install_chart(node)
    live.run_pod("pod", container=_PAUSE)
    live.bind("pod")
    live.running("pod")
