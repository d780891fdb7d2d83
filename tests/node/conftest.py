"""One cluster with a real node and the chart installed, for all tests of this folder."""

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from localcluster.assets.supply import at_hand
from localcluster.node.cluster import NAMESPACE, TOOLS, NodeCluster, install_chart, start_node_cluster
from localcluster.node.host import missing_part
from tests.node.steps import NodeLive

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip this folder's tests with the reason where no node can be started."""
    reason = missing_part()
    if reason is None and not at_hand(TOOLS):
        reason = "kubelet, kube-proxy or containerd is not cached; `make test-node` builds them"
    for item in items:
        if HERE in item.path.parents:
            # The first test waits for the image, which is built when its sources have changed.
            item.add_marker(pytest.mark.timeout(900))
            if reason is not None:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def node() -> Iterator[NodeCluster]:
    """A node with four fake GPUs and the unmodified chart, every pod of it Ready."""
    with start_node_cluster() as started:
        started.cluster.make_namespace(NAMESPACE)
        started.cluster.kubectl("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=restricted")
        install_chart(started)
        yield started


@pytest.fixture
def live(node: NodeCluster) -> Iterator[NodeLive]:
    """The node's cluster in a namespace of the test's own; its pods are gone when the test ends."""
    found = NodeLive(node.cluster, f"test-{uuid.uuid4().hex[:8]}")
    node.cluster.make_namespace(found.namespace)
    account = f"/api/v1/namespaces/{found.namespace}/serviceaccounts/default"
    found.until("the namespace has its ServiceAccount", lambda: not found.gone(account))
    yield found
    found.kubectl("delete", "pods,bindrequests", "--all", "--grace-period=1", "--timeout=60s")
    found.until("no device is reserved", lambda: not json.loads(found.reservations()))
    node.cluster.kubectl("delete", "namespace", found.namespace, "--wait=false")
