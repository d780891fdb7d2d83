"""One cluster with a real node and the chart installed, for all tests of this folder.

At the end of a run a matrix is printed: each scenario, its result and its time, and the versions that were run.
"""

import json
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from bowline.localcluster.assets.supply import at_hand
from tests.localnode.cluster import NAMESPACE, TOOLS, NodeCluster, install_chart, start_node_cluster
from tests.localnode.host import missing_part
from tests.localnode.images import has_image
from tests.localnode.settings import NODE_NAME
from tests.node.steps import NodeLive

HERE = Path(__file__).parent
_VERSIONS = pytest.StashKey[dict[str, str]]()


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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the matrix of scenarios, results and seconds."""
    rows = {}
    for result in ("passed", "failed", "error", "skipped"):
        for report in terminalreporter.getreports(result):
            file, _, scenario = report.nodeid.partition("::")
            if file.startswith("tests/node/"):
                rows[scenario.removeprefix("test_").replace("_", " ")] = (result, report.duration)
    if not rows:
        return
    terminalreporter.section("scenarios on a real node")
    for part, version in config.stash.get(_VERSIONS, {}).items():
        terminalreporter.line(f"{part}: {version}")
    for scenario, (result, seconds) in rows.items():
        terminalreporter.line(f"{result:7} {seconds:7.1f} s  {scenario}")


@pytest.fixture(scope="session")
def node(request: pytest.FixtureRequest) -> Iterator[NodeCluster]:
    """A node with four fake GPUs and the unmodified chart, all of its pods Ready."""
    with start_node_cluster() as node:
        node.cluster.make_namespace(NAMESPACE)
        node.cluster.kubectl("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=restricted")
        install_chart(node)
        request.config.stash[_VERSIONS] = versions(node)
        yield node


def versions(node: NodeCluster) -> dict[str, str]:
    """What runs on the node, as its parts report it."""
    info = node.cluster.api.get(f"/api/v1/nodes/{NODE_NAME}")["status"]["nodeInfo"]
    runc = subprocess.run(["runc", "--version"], capture_output=True, text=True, check=True).stdout
    return {
        "API server": node.cluster.api.get("/version")["gitVersion"],
        "kubelet": info["kubeletVersion"],
        "container runtime": info["containerRuntimeVersion"],
        "runc": runc.split()[2],
        "kernel": info["kernelVersion"],
        "node ready in": f"{node.cluster.started_in_s:.0f} s",
    }


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
