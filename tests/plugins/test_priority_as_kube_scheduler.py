"""A pod of the highest priority, on the real kube-scheduler, takes no GPU that other pods share."""

from collections.abc import Iterator

import pytest

from bowline.api import names
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.pair import Pair
from tests.live import Live
from tests.pairs import own_namespace
from tests.plugins.kube_scheduler import needs_kube_scheduler
from tests.plugins.sharing import Shares

pytestmark = needs_kube_scheduler

CLASS = "/apis/scheduling.k8s.io/v1/priorityclasses"
WHOLE = [{"name": "main", "image": "registry.example/app:1", "resources": {"limits": {names.RESOURCE_GPU: "8"}}}]


@pytest.fixture
def live(beside_kube_scheduler: tuple[Cluster, Pair]) -> Iterator[Live]:
    """The pair beside the real kube-scheduler."""
    with own_namespace(*beside_kube_scheduler) as namespace:
        yield namespace


def test_a_priority_class_preempts_no_shared_gpu(live: Live) -> None:
    """The highest value that a user's class may have; the pod waits, and nothing can be preempted for it."""
    shares = Shares(live)
    shares.share("quiet", "g")
    live.phase("quiet", "Succeeded")
    (reservation,) = shares.reservations("g")
    live.cluster.api.post(CLASS, {"metadata": {"name": "tenant"}, "value": 1_000_000_000})
    live.create_pod("greedy", schedulerName="default-scheduler", priorityClassName="tenant", containers=WHOLE)

    def is_rejected() -> bool:
        conditions = live.pod("greedy")["status"].get("conditions", ())
        return any("preemption:" in condition.get("message", "") for condition in conditions)

    live.until("kube-scheduler has looked for victims", is_rejected)
    assert [entry["metadata"]["uid"] for entry in shares.reservations("g")] == [reservation["metadata"]["uid"]]
    assert not live.pod("greedy")["spec"].get("nodeName")
    assert reservation["spec"]["priority"] == 1_000_000_000
