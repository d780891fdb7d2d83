"""Fixtures of all tests: one control plane of each kind for each worker, a namespace for each test.

The state of three clusters never mixes: ``bare_cluster`` has the CRD and no controllers; ``cluster`` has controllers,
kwok and nothing of Bowline; ``pair`` has the chart installed and webhook and reconciler running from its objects as
their ServiceAccounts.
"""

from collections.abc import Iterator

import pytest

from bowline.localcluster.cluster import Cluster
from bowline.localcluster.pair import Pair
from tests.live import Live
from tests.pairs import TEST_CONFIG, bare_control_plane, control_plane, own_namespace, running_pair


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A control plane with kwok and a few GPU nodes; nothing of Bowline is installed."""
    with control_plane() as started:
        yield started


@pytest.fixture(scope="session")
def bare_cluster() -> Iterator[Cluster]:
    """A control plane with three nodes and the CRD; no controller changes an object.

    It is shared by the folders whose tests need no more: each uses its own namespaces.
    """
    with bare_control_plane() as started:
        yield started


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
