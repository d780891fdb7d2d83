"""One API server for all conformance: that of the wheel's fixture, with the controller that binds volumes."""

from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from bowline.localcluster.cluster import Cluster
from bowline.testing.servers import bare_api_server
from bowline_cli import plugin_check


@pytest.fixture(scope="session")
def bowline_cluster() -> Iterator[Cluster]:
    """A real API server with BindRequest's CRD and three nodes."""
    with bare_api_server(controllers=("persistentvolume-binder-controller",)) as cluster:
        yield cluster


@pytest.fixture
def command_on_the_cluster(bowline_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """``bowline plugin check`` uses this API server instead of one of its own."""
    monkeypatch.setattr(plugin_check, "bare_api_server", lambda: nullcontext(bowline_cluster))
