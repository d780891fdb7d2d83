"""The shared API server without BindRequests: the rules of the CRD are tested here."""

from collections.abc import Iterator

import pytest

from bowline.localcluster.cluster import Cluster
from tests.api.samples import ALL


@pytest.fixture
def crd_cluster(bare_cluster: Cluster) -> Iterator[Cluster]:
    """The shared API server; what a test creates is deleted after it."""
    yield bare_cluster
    bare_cluster.api.delete(ALL)
