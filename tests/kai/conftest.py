"""KAI-Scheduler and the pair on one cluster, for all tests of this folder."""

from collections.abc import Iterator

import pytest

from bowline.localcluster.cluster import Cluster
from bowline.localcluster.pair import Pair
from tests.kai.team import Team, running_kai
from tests.pairs import own_namespace, running_pair
from tests.plugins.leftovers import clean_up

CONFIG = {
    "config.plugins": [{"name": "example_flaky"}],
    # Short, for the test in which a decision fails terminally.
    "config.binding": {"backoffLimit": 1, "backoff": {"base": "50ms"}, "inFlightTimeout": "2s"},
}


@pytest.fixture(scope="session")
def kai_cluster() -> Iterator[tuple[Cluster, Pair]]:
    """A control plane with two nodes of eight GPUs, the pair, and KAI-Scheduler."""
    with running_pair(2, CONFIG) as (cluster, pair), running_kai(cluster):
        yield cluster, pair


@pytest.fixture
def team(kai_cluster: tuple[Cluster, Pair]) -> Iterator[Team]:
    """The team, in a namespace for this test only; nothing is left behind."""
    with own_namespace(*kai_cluster) as live:
        yield Team(live)
        clean_up(live)
