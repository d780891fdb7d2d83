"""An uninstall with requests in progress, and shares switched off: real Helm and pair, the Job as a local process."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bowline.api import names
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.errors import CommandError
from bowline.localcluster.helm import Helm
from bowline.localcluster.pair import Pair
from bowline.localcluster.spec import ClusterSpec
from bowline_reconciler.uninstall import LIMIT
from tests.chart.jobs import running_jobs
from tests.live import Live
from tests.pairs import installed_pair
from tests.plugins.sharing import RESERVATIONS, Shares, group_of

VALUES = {
    "hooks.uninstall": True,
    # The Deployment's pod stays Pending; the reconciler beside it ends when the Deployment is scaled down.
    "reconciler.replicas": 1,
    "config.binding": {"inFlightTimeout": "2s"},
    "config.gpuSharing": {"agentTimeout": "10m"},
}
# A node without a kubelet: reservation pods on it stay Pending.
SILENT = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "silent"}}
DEPLOYMENT = "/apis/apps/v1/namespaces/bowline-system/deployments/bowline-reconciler"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster.start(ClusterSpec()) as local_cluster:
        local_cluster.make_nodes(1)
        local_cluster.make_runtime_class()
        local_cluster.api.post("/api/v1/nodes", SILENT)
        yield local_cluster


@pytest.fixture
def pair(cluster: Cluster) -> Iterator[Pair]:
    """The release, which the test uninstalls, with its processes."""
    pair = installed_pair(cluster, VALUES)
    yield pair
    pair.stop()


@contextmanager
def scaled_processes(cluster: Cluster, pair: Pair) -> Iterator[None]:
    """Stop the reconcilers when their Deployment is scaled to zero, as a kubelet would."""
    stop_event = threading.Event()

    def watch() -> None:
        while not stop_event.wait(0.2):
            if cluster.api.get(DEPLOYMENT)["spec"]["replicas"] == 0:
                for process in pair.reconcilers:
                    process.stop()
                return

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        stop_event.set()
        thread.join()


def finalizers(cluster: Cluster) -> list[str]:
    items = cluster.api.get(f"/apis/{names.API_VERSION}/bindrequests")["items"]
    return [item["metadata"]["name"] for item in items if item["metadata"].get("finalizers")]


def waiting(live: Live, shares: Shares) -> None:
    """Three shares whose device is not reserved yet."""
    for number in range(3):
        shares.make(f"waiting-{number}")
        shares.ask(f"waiting-{number}", [f"group-{number}"], node="silent")
        live.event(f"waiting-{number}", "BindingWaiting")


def test_an_uninstall_whose_job_does_not_run_changes_nothing_and_the_next_one_leaves_no_finalizer(
    cluster: Cluster, pair: Pair, helm_command: Helm
) -> None:
    """Reservation pods stay only where a pod runs."""
    cluster.make_namespace("team")
    live = Live(cluster, "team", pair)
    waiting_names = [f"waiting-{number}" for number in range(3)]
    with scaled_processes(cluster, pair):
        shares = Shares(live)
        shares.share("running", "used")
        live.phase("running", "Succeeded")
        waiting(live, shares)
        assert finalizers(cluster) == waiting_names
        uninstall = ["uninstall", "bowline", "--namespace=bowline-system", "--timeout=5s"]
        with pytest.raises(CommandError, match="bowline-uninstall"):
            helm_command.run(uninstall, cluster.kubeconfig)
        job = cluster.api.get("/apis/batch/v1/namespaces/bowline-system/jobs/bowline-uninstall")
        # The process reports what is left before the Job ends, and Helm either within two minutes.
        assert LIMIT.total_seconds() + 15 < job["spec"]["activeDeadlineSeconds"] < 120
        assert cluster.api.get(DEPLOYMENT)["spec"]["replicas"] == 1
        assert finalizers(cluster) == waiting_names
        # Helm deletes it as well, but meanwhile its pod would be run here.
        cluster.kubectl("--namespace=bowline-system", "delete", "job", "bowline-uninstall", "--cascade=foreground")
        with running_jobs(cluster, "bowline-system"):
            pair.uninstall()
        assert finalizers(cluster) == []
        assert [group_of(pod) for pod in cluster.api.get(RESERVATIONS)["items"]] == ["used"]
        assert live.pod("running")["spec"]["nodeName"] == "gpu-node-0"
        for name in waiting_names:
            assert "nodeName" not in live.pod(name)["spec"]
            assert names.LABEL_GPU_GROUP not in live.pod(name)["metadata"].get("labels", {})
            status = live.request(name)["status"]
            assert status["phase"] == "Pending"
            assert status["reason"].startswith("Released: Bowline is being uninstalled")
        cluster.kubectl("delete", "namespace", "team", "--timeout=110s")


def test_the_end_of_a_share_releases_its_device_though_no_more_are_admitted(cluster: Cluster, pair: Pair) -> None:
    cluster.make_namespace("team")
    shares = Shares(Live(cluster, "team", pair))
    shares.share("running", "used")
    shares.live.phase("running", "Succeeded")
    pair.stop()
    pair.upgrade({"config.gpuSharing.enabled": False})
    pair.start()
    shares.delete("running")
    shares.await_release("used")
