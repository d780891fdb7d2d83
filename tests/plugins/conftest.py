"""The pair as plugins are tested on it: whatever a test does, nothing of its pods may be left when they are gone.

``pair`` is every test's, ``guarded`` has every plugin switched on that is off by default: those guard, refuse, limit
and look again.
"""

from collections.abc import Iterator

import pytest

from localcluster.cluster import Cluster
from localcluster.pair import Pair
from tests.live import Live
from tests.pairs import own_namespace, running_pair
from tests.plugins.leftovers import clean_up

# Who may bind beside our reconciler, for the tests of binding_guard.
ALLOWED_USER = "system:serviceaccount:elsewhere:binder"
GUARDED_CONFIG = {
    "config.plugins": [
        {"name": "device_access"},
        {"name": "hami_core"},
        {"name": "node_fit"},
        {"name": "binding_guard", "args": {"allowedUsers": [ALLOWED_USER]}},
    ],
    "config.gpuSharing": {"fakeGPUs": True},
    "config.featureGates": {"BindingGuard": True},
}


@pytest.fixture
def pair(pair: Live) -> Iterator[Live]:
    """The running pair, in a namespace of this test's own; nothing is left behind."""
    yield pair
    clean_up(pair)


@pytest.fixture(scope="session")
def guarded_cluster() -> Iterator[tuple[Cluster, Pair]]:
    """A control plane with the chart installed so, and both processes running from its objects."""
    with running_pair(2, GUARDED_CONFIG) as started:
        yield started


@pytest.fixture
def guarded(guarded_cluster: tuple[Cluster, Pair]) -> Iterator[Live]:
    """The running pair, in a namespace of this test's own; nothing is left behind."""
    with own_namespace(*guarded_cluster) as live:
        yield live
        clean_up(live)
