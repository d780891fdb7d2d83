"""The gate GangBinding with the real KAI-Scheduler: the pods of its PodGroup are bound together, or none is."""

from collections.abc import Iterator
from typing import Any

import pytest

from bowline.api import names
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.pair import Pair
from tests.audit import calls_about
from tests.foreign_kinds import install, remove
from tests.kai.conftest import CONFIG
from tests.kai.team import Team, needs_kai, running_kai
from tests.kai.test_kai_scheduler import training_job, worker_labels
from tests.live import FLAKY
from tests.pairs import own_namespace, running_pair
from tests.plugins.leftovers import clean_up

pytestmark = needs_kai

HALF = {names.GPU_FRACTION: "0.5"}
SIZE = 8
# An unprepared pod is retried until the test repairs it.
LIMITS = {"backoffLimit": 1000, "backoff": {"base": "500ms", "max": "1s"}, "inFlightTimeout": "2s"}


@pytest.fixture(scope="module")
def gang_cluster() -> Iterator[tuple[Cluster, Pair]]:
    """Two nodes of eight GPUs, KAI-Scheduler, and the pair with the gate."""
    config = {**CONFIG, "config.binding": LIMITS, "config.featureGates": {"GangBinding": True}}
    with running_pair(2, config) as (cluster, pair), running_kai(cluster):
        install(cluster, "PyTorchJob")
        yield cluster, pair
        remove(cluster, "PyTorchJob")


@pytest.fixture
def team(gang_cluster: tuple[Cluster, Pair]) -> Iterator[Team]:
    """The team, in a namespace for this test only; nothing is left behind."""
    with own_namespace(*gang_cluster) as live:
        yield Team(live)
        clean_up(live)


def submit_gang(team: Team) -> list[str]:
    """Submit eight pods with a share of a GPU each; the first one cannot be prepared. Returns their names."""
    owner = training_job(team, "job", SIZE)
    pods = [f"worker-{number}" for number in range(SIZE)]
    for number, name in enumerate(pods):
        annotations = {**HALF, FLAKY: "100000"} if number == 0 else HALF
        team.submit(name, annotations=annotations, owner=owner, labels=worker_labels(number))
    return pods


def bindings(team: Team) -> list[dict[str, Any]]:
    """The Bindings that the reconciler has posted in the namespace."""
    return [
        event
        for event in calls_about(team.live, "bowline-reconciler")
        if event["objectRef"].get("subresource") == "binding"
    ]


def test_a_gang_is_bound_when_its_last_pod_is_prepared(team: Team) -> None:
    pods = submit_gang(team)
    for name in pods:
        team.request_of(name)
    team.live.event(pods[0], "BindingRetry")
    assert bindings(team) == []
    team.live.kubectl("annotate", "pod", pods[0], f"{FLAKY}=0", "--overwrite")
    for name in pods:
        team.runs(name)
    assert len(bindings(team)) == SIZE
    # A pod that is replaced is bound beside those that run.
    team.delete(pods[3])
    owner = team.live.pod(pods[0])["metadata"]["ownerReferences"][0]
    team.submit("replacement", annotations=HALF, owner=owner, labels=worker_labels(3))
    team.runs("replacement")
