"""The pair for tests of plugins: after each test nothing of its pods may be left.

``pair`` has the default plugins, ``strict_pair`` has every plugin on that is off by default: those that reject, limit
and verify.
"""

from collections.abc import Iterator

import pytest

from bowline.localcluster.cluster import Cluster
from bowline.localcluster.pair import Pair
from tests.live import Live
from tests.pairs import TEST_CONFIG, bare_control_plane, control_plane, own_namespace, running_pair
from tests.plugins.leftovers import clean_up

GUARDED_CONFIG = {
    "config.plugins": [
        {"name": "device_access"},
        {"name": "hami_core"},
        {"name": "node_fit"},
        {"name": "nv_fractions"},
    ],
}


@pytest.fixture(scope="package")
def cluster() -> Iterator[Cluster]:
    """A control plane with kwok and a few GPU nodes; nothing of Bowline is installed."""
    with control_plane() as started:
        yield started


@pytest.fixture(scope="package")
def bare_cluster() -> Iterator[Cluster]:
    """A control plane with three nodes and the CRD; no controller changes an object."""
    with bare_control_plane() as started:
        yield started


@pytest.fixture(scope="package")
def pair_cluster() -> Iterator[tuple[Cluster, Pair]]:
    """A control plane with the chart installed by Helm and both processes running from its objects."""
    with running_pair(4, TEST_CONFIG) as cluster_and_pair:
        yield cluster_and_pair


@pytest.fixture
def pair(pair: Live) -> Iterator[Live]:
    """The running pair, in a namespace for this test only; nothing is left behind."""
    yield pair
    clean_up(pair)


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
