"""The shared API server without BindRequests: the rules of the CRD are tested here."""

from collections.abc import Iterator

import pytest

from tests.api.samples import ALL
from tests.localcluster.cluster import Cluster


@pytest.fixture
def crd_cluster(bare_cluster: Cluster) -> Iterator[Cluster]:
    """The shared API server; what a test creates is deleted after it."""
    yield bare_cluster
    bare_cluster.api.delete(ALL)
