"""A pair with every plugin switched on that is off by default: those guard, refuse and look again."""

import uuid
from collections.abc import Iterator

import pytest

from localcluster.cluster import Cluster
from localcluster.helm import find_helm
from localcluster.pair import Pair, PairOptions
from localcluster.spec import ClusterSpec
from tests.live import Live

# Who may bind beside our reconciler, for the tests of binding_guard.
ALLOWED_USER = "system:serviceaccount:elsewhere:binder"
GUARDED_CONFIG = {
    "config.plugins": [
        {"name": "device_access"},
        {"name": "node_fit"},
        {"name": "binding_guard", "args": {"allowedUsers": [ALLOWED_USER]}},
    ],
    "config.featureGates": {"BindingGuard": True},
}


@pytest.fixture(scope="session")
def guarded_cluster() -> Iterator[tuple[Cluster, Pair]]:
    """A control plane with the chart installed so, and both processes running from its objects."""
    with Cluster.start(ClusterSpec(audit="Metadata")) as started:
        started.make_nodes(2)
        started.make_runtime_class()
        pair = Pair.install(started, find_helm(), PairOptions(set_values=GUARDED_CONFIG))
        pair.start()
        yield started, pair


@pytest.fixture
def guarded(guarded_cluster: tuple[Cluster, Pair]) -> Iterator[Live]:
    """The running pair, in a namespace of this test's own."""
    started, running = guarded_cluster
    live = Live(started, f"test-{uuid.uuid4().hex[:8]}", running)
    live.cluster.make_namespace(live.namespace)
    yield live
    live.kubectl("delete", "bindrequests", "--all", "--wait=false")
    live.cluster.kubectl("delete", "namespace", live.namespace, "--wait=false")
