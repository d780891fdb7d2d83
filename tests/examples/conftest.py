"""One control plane, with the nodes of `make up`, for all tests that install a release."""

from collections.abc import Iterator

import pytest

from bowline.localcluster.cluster import Cluster
from bowline.localcluster.nodes import EXAMPLE_LABELS, EXAMPLE_RESOURCES
from bowline.localcluster.spec import ClusterSpec


@pytest.fixture(scope="package")
def example_cluster() -> Iterator[Cluster]:
    """The cluster; of the modules that use it, each installs the release with its own values."""
    with Cluster.start(ClusterSpec()) as cluster:
        cluster.make_nodes(4, labels=EXAMPLE_LABELS, resources=EXAMPLE_RESOURCES)
        cluster.make_runtime_class()
        yield cluster
