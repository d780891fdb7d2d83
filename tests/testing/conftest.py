"""One API server for all conformance: that of the wheel's fixture, with the controller that binds volumes."""

from collections.abc import Iterator

import pytest

from bowline.localcluster.cluster import Cluster
from bowline.testing.servers import bare_api_server


@pytest.fixture(scope="session")
def bowline_cluster() -> Iterator[Cluster]:
    """A real API server with BindRequest's CRD and three nodes."""
    with bare_api_server(controllers=("persistentvolume-binder-controller",)) as cluster:
        yield cluster
