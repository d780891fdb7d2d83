"""Fixtures of all tests: a real control plane per session, a namespace for each test.

The state of three clusters never mixes: ``bare_cluster`` has the CRD and no controllers; ``cluster`` has controllers,
kwok and nothing of Bowline; ``pair`` has the chart installed and webhook and reconciler running from its objects as
their ServiceAccounts.
"""

from collections.abc import Iterator

import pytest

from bowline.framework.workload_kinds import READY
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.pair import Pair
from bowline.localcluster.spec import ClusterSpec
from tests.live import Live
from tests.pairs import bare_control_plane, own_namespace, running_pair

# The configuration for the tests' plugins; everything else is the chart's default.
TEST_CONFIG = {
    "config.plugins": [{"name": "example_flaky"}],
    # Long for an agent that starts on a loaded machine, and short for a test with a silent one.
    "config.gpuSharing": {"agentTimeout": "30s", "fakeGPUs": True},
    # Kinds of other projects, whose CRDs tests install; a hook for a kind that does not exist costs nothing.
    "config.workloads": [
        *(
            {"kind": ready.kind, "group": ready.group, "action": "Warn" if ready.kind == "RayCluster" else "Deny"}
            for ready in READY
        ),
        {
            **{"kind": "Own", "group": "example.com", "resource": "owns", "templates": ["spec.pod"]},
            "podSpecs": [{"path": "spec.podSpec", "metadata": "spec"}],
        },
    ],
    # A reconciler waits this long after its start before the first rollback, because of its predecessor's Bindings.
    "config.binding.inFlightTimeout": "2s",
}


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A control plane with kwok and a few GPU nodes; nothing of Bowline is installed."""
    with Cluster.start(ClusterSpec()) as cluster:
        cluster.make_nodes(3)
        yield cluster


@pytest.fixture(scope="session")
def bare_cluster() -> Iterator[Cluster]:
    """A control plane with three nodes and the CRD; no controller changes an object.

    It is shared by the folders whose tests need no more: each uses its own namespaces.
    """
    with bare_control_plane() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def pair_cluster() -> Iterator[tuple[Cluster, Pair]]:
    """A control plane with the chart installed by Helm and both processes running from its objects."""
    with running_pair(4, TEST_CONFIG) as cluster_and_pair:
        yield cluster_and_pair


@pytest.fixture
def pair(pair_cluster: tuple[Cluster, Pair]) -> Iterator[Live]:
    """The running pair, in a namespace for this test only."""
    with own_namespace(*pair_cluster) as live:
        yield live
