"""One cluster with a real node and the chart installed, for all tests of this folder."""

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from bowline.localcluster.assets.supply import at_hand
from tests.localnode.cluster import NAMESPACE, TOOLS, NodeCluster, install_chart, start_node_cluster
from tests.localnode.host import missing_part
from tests.localnode.images import has_image
from tests.node.steps import NodeLive

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip this folder's tests with the reason where no node can be started."""
    reason = missing_part()
    if reason is None and not (at_hand(TOOLS) and has_image()):
        reason = "kubelet, kube-proxy, containerd or an image is not cached; `make test-node` builds them"
    for item in items:
        if HERE in item.path.parents:
            # The first test waits for the image, which is built when its sources have changed.
            item.add_marker(pytest.mark.timeout(900))
            if reason is not None:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def node() -> Iterator[NodeCluster]:
    """A node with four fake GPUs and the unmodified chart, all of its pods Ready."""
    with start_node_cluster() as node:
        node.cluster.make_namespace(NAMESPACE)
        node.cluster.kubectl("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=restricted")
        install_chart(node)
        yield node


@pytest.fixture
def live(node: NodeCluster) -> Iterator[NodeLive]:
    """The node's cluster in a namespace for this test only; its pods are deleted at the end."""
    live = NodeLive(node.cluster, f"test-{uuid.uuid4().hex[:8]}")
    node.cluster.make_namespace(live.namespace)
    account = f"/api/v1/namespaces/{live.namespace}/serviceaccounts/default"
    live.until("the namespace has its ServiceAccount", lambda: not live.not_found(account))
    yield live
    live.kubectl("delete", "pods,bindrequests", "--all", "--grace-period=1", "--timeout=60s")
    live.until("no device is reserved", lambda: not json.loads(live.reservations()))
    node.cluster.kubectl("delete", "namespace", live.namespace, "--wait=false")
