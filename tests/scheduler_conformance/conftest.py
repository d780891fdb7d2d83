"""A control plane with the pair as the binder, for all schedulers that are tested."""

import os
from collections.abc import Iterator

import pytest

from bowline.conformance.scheduler import SchedulerCluster
from tests.kai.team import SCHEDULER as KAI
from tests.scheduler_conformance.programs import chosen_program


@pytest.fixture(scope="session")
def binder() -> Iterator[SchedulerCluster]:
    """Two nodes of eight GPUs each, and the pair."""
    with SchedulerCluster.start(["bowline", KAI, chosen_program(os.environ).name]) as cluster:
        yield cluster
