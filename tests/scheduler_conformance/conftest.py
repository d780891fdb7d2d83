"""A control plane with the pair as the binder, for all schedulers that are tested."""

from collections.abc import Iterator

import pytest

from bowline.localcluster.cluster import Cluster
from bowline.localcluster.pair import Pair
from tests.kai.team import SCHEDULER as KAI
from tests.pairs import running_pair
from tests.scheduler_conformance.situations import OTHER

CONFIG = {
    "config.schedulerNames": ["bowline", KAI, OTHER],
    "config.plugins": [{"name": "example_flaky"}],
    "config.gpuSharing": {"fakeGPUs": True},
    # Short, so that a decision fails soon.
    "config.binding": {"backoffLimit": 1, "backoff": {"base": "50ms"}, "inFlightTimeout": "2s"},
}


@pytest.fixture(scope="session")
def binder() -> Iterator[tuple[Cluster, Pair]]:
    """Two nodes of eight GPUs each, and the pair."""
    with running_pair(2, CONFIG) as (cluster, pair):
        yield cluster, pair
