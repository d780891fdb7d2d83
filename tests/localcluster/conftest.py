"""One real cluster for the local cluster's own tests.

It is not the cluster that other tests share: these tests pause its kwok.
"""

from collections.abc import Iterator

import pytest

from bowline.localcluster.cluster import Cluster
from bowline.localcluster.spec import ClusterSpec


@pytest.fixture(scope="package")
def own_cluster() -> Iterator[Cluster]:
    """A real control plane with kwok and two nodes, for this folder's tests only."""
    with Cluster.start(ClusterSpec()) as cluster:
        cluster.make_nodes(2)
        yield cluster
