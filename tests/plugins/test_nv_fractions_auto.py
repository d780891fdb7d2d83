"""GPU fractioning on the nodes whose agents report that they work, and ConfigMaps on the others."""

import json
from collections.abc import Iterator

import pytest

from bowline.api import names
from tests.live import Live
from tests.pairs import own_namespace, running_pair
from tests.plugins.leftovers import clean_up
from tests.plugins.sharing import Shares
from tests.plugins.test_nv_fractions import DEVICES, REQUEST, fractions

# A control plane of its own, for a mode of a plugin that is off by default.
pytestmark = pytest.mark.long

READY_NODE, OTHER_NODE = "gpu-node-0", "gpu-node-1"
CONFIG = {"config.gpuSharing": {"nvFractions": "Auto"}}


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    """The pair with ``nvFractions: Auto``; the agents of one node work."""
    with running_pair(2, CONFIG) as (cluster, pair), own_namespace(cluster, pair) as live:
        report(live, READY_NODE, "True")
        yield live


@pytest.fixture
def shares(live: Live) -> Iterator[Shares]:
    """Sharing pods in the test's namespace."""
    yield Shares(live)
    clean_up(live)


def report(live: Live, node: str, status: str) -> None:
    """Set the node's condition, as the operator of GPU fractioning does, and wait until the reconciler knows it."""
    condition = {"type": names.NODE_FRACTIONING_READY, "status": status, "reason": "Test", "message": ""}
    path = f"/api/v1/nodes/{node}/status"
    kind = "application/strategic-merge-patch+json"
    stored_node = live.cluster.api.request("PATCH", path, {"status": {"conditions": [condition]}}, kind)

    def is_cached() -> bool:
        _, page = live.pair.reconcilers[0].get_debug()
        version = json.loads(page)["watches"]["nodes"]["resourceVersion"]
        return int(version or 0) >= int(stored_node["metadata"]["resourceVersion"])

    live.until("the reconciler has read the condition", is_cached)


def test_a_fraction_runs_on_every_node(shares: Shares) -> None:
    shares.share("by-agents", "auto-a", node=READY_NODE)
    shares.share("by-configmaps", "auto-b", node=OTHER_NODE)
    for name in ("by-agents", "by-configmaps"):
        shares.live.phase(name, "Succeeded")
    assert fractions(shares, "by-agents")[DEVICES] == shares.device("auto-a")
    assert fractions(shares, "by-configmaps") == {}


def test_a_pod_that_needs_agents_is_bound_where_they_work_and_follows_their_condition(shares: Shares) -> None:
    sized = {names.GPU_FRACTION: None, REQUEST: "8Gi"}
    shares.make("needs", sized)
    shares.ask("needs", ["auto-c"], node=OTHER_NODE)
    status = shares.live.phase("needs", "Failed")["status"]
    assert status["suggestion"] == "RescheduleElsewhere"
    assert status["failure"]["reason"] == "Rejected"
    # The same pod on the node that reports them.
    shares.live.cluster.api.delete(shares.live.request_path("needs"))
    shares.ask("needs", ["auto-d"], node=READY_NODE)
    shares.live.phase("needs", "Succeeded")
    assert fractions(shares, "needs")[DEVICES] == shares.device("auto-d")
    # A node whose agents stop is no longer used for such pods, and is again when they work.
    report(shares.live, READY_NODE, "False")
    shares.make("stopped", sized)
    shares.ask("stopped", ["auto-e"], node=READY_NODE)
    shares.live.phase("stopped", "Failed")
    report(shares.live, READY_NODE, "True")
