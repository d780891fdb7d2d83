"""An API server of its own with nothing but the CRD: its rules are what is tested here."""

from collections.abc import Iterator

import pytest

from charts.generate import crd
from localcluster.cluster import Cluster
from localcluster.spec import ClusterSpec
from tests.api.samples import ALL


@pytest.fixture(scope="session")
def bare_cluster() -> Iterator[Cluster]:
    """A control plane without controllers, on which the generated CRD is installed."""
    with Cluster.start(ClusterSpec(kwok=False, controllers=())) as cluster:
        # As a chart install does it: server-side, unknown fields refused.
        cluster.kubectl("apply", "--server-side", "--validate=strict", "-f", "-", input=crd.as_yaml())
        name = crd.custom_resource_definition()["metadata"]["name"]
        cluster.wait_established(name)
        yield cluster


@pytest.fixture
def crd_cluster(bare_cluster: Cluster) -> Iterator[Cluster]:
    """The same, without any BindRequest at the start of each test."""
    yield bare_cluster
    bare_cluster.api.delete(ALL)
