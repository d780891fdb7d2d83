"""A control plane with the pair as the binder, for all schedulers that are tested."""

import os
from collections.abc import Iterator

import pytest

from bowline.conformance.scheduler import SchedulerCluster
from bowline.localcluster.pair import CHART
from tests.kai.team import SCHEDULER as KAI
from tests.pairs import patient_chart
from tests.scheduler_conformance.programs import chosen_program


@pytest.fixture(scope="package")
def binder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SchedulerCluster]:
    """Two nodes of eight GPUs each, and the pair."""
    chart = patient_chart(CHART, tmp_path_factory.mktemp("binder") / "chart")
    with SchedulerCluster.start(["example-scheduler", KAI, chosen_program(os.environ).name], chart=chart) as cluster:
        yield cluster
