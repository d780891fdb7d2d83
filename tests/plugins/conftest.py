"""The pair for tests of plugins: after each test nothing of its pods may be left.

``pair`` has the default plugins, ``strict_pair`` has every plugin on that is off by default: those that reject, limit
and verify.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from bowline.localcluster.assets.versions import release_for
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.pair import Pair
from bowline.localcluster.spec import ClusterSpec
from tests.live import Live
from tests.pairs import TEST_CONFIG, installed_pair, own_namespace, running_pair
from tests.plugins.claims import publish
from tests.plugins.leftovers import clean_up
from tests.plugins.sharing import Shares
from tests.pod_groups import WITH_POD_GROUPS, serves_pod_groups

_EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "checks" / "values.yaml"
_CHECKS = [
    *yaml.safe_load(_EXAMPLE.read_text())["config"]["plugins"]["checks"]["args"]["checks"],
    {"name": "silent", "timeout": "1s", "timeoutSuggestion": "DeletePod"},
    {"name": "audit", "namespaces": ["audited"], "denialSuggestion": "DeletePod"},
]
GUARDED_CONFIG = {
    "config.plugins": [
        {"name": "device_access"},
        {"name": "hami_core"},
        {"name": "node_fit"},
        {"name": "nv_fractions"},
        {"name": "checks", "args": {"checks": _CHECKS}},
    ],
    "config.binding.inFlightTimeout": TEST_CONFIG["config.binding.inFlightTimeout"],
}


@pytest.fixture
def pair(pair: Live) -> Iterator[Live]:
    """The running pair, in a namespace for this test only; nothing is left behind."""
    yield pair
    clean_up(pair)


@pytest.fixture
def shares(pair: Live) -> Shares:
    """Sharing pods in the test's namespace."""
    return Shares(pair)


@pytest.fixture(scope="package")
def guarded_cluster() -> Iterator[tuple[Cluster, Pair]]:
    """A control plane with the chart installed so, and both processes running from its objects."""
    with running_pair(2, GUARDED_CONFIG) as cluster_and_pair:
        yield cluster_and_pair


@pytest.fixture
def strict_pair(guarded_cluster: tuple[Cluster, Pair]) -> Iterator[Live]:
    """The running pair, in a namespace for this test only; nothing is left behind."""
    with own_namespace(*guarded_cluster) as live:
        yield live
        clean_up(live)


@pytest.fixture(scope="package")
def beside_kube_scheduler() -> Iterator[tuple[Cluster, Pair]]:
    """The real kube-scheduler beside the pair, with one node with devices and, where they are served, PodGroups."""
    has_groups = serves_pod_groups(release_for(None, os.environ))
    with Cluster.start(WITH_POD_GROUPS if has_groups else ClusterSpec(scheduler=True)) as cluster:
        cluster.make_nodes(1)
        cluster.make_runtime_class()
        publish(cluster, devices=16)
        yield cluster, installed_pair(cluster, TEST_CONFIG)
