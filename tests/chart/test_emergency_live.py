"""Three steps in the life of a release: shares switched off, docs/emergency.md, an uninstall while requests wait.

Real Helm and pair; the pods of Jobs are local processes.
"""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bowline.api import names
from bowline.localcluster.assets.recipes import Tool
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.errors import CommandError, LocalApiError
from bowline.localcluster.helm import Helm
from bowline.localcluster.pair import Pair
from bowline.localcluster.spec import ClusterSpec
from bowline_reconciler.term.uninstall import LIMIT
from tests.chart.jobs import running_jobs
from tests.chart.policies import RECONCILER
from tests.chart.rendering import CHART
from tests.documents import Command, commands, run
from tests.live import Live
from tests.pairs import installed_pair, own_namespace
from tests.plugins.sharing import RESERVATIONS, Shares, group_of

KINDS = ("validatingwebhookconfigurations", "mutatingwebhookconfigurations", "validatingadmissionpolicybindings")
WRONG = {names.GPU_FRACTION: "1.5"}


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


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster.start(ClusterSpec()) as local_cluster:
        local_cluster.make_nodes(1)
        local_cluster.make_runtime_class()
        local_cluster.api.post("/api/v1/nodes", SILENT)
        yield local_cluster


@pytest.fixture(scope="module")
def pair(cluster: Cluster) -> Iterator[Pair]:
    """The release, which the last test uninstalls, with its processes."""
    pair = installed_pair(cluster, VALUES)
    yield pair
    pair.stop()


@pytest.fixture
def live(cluster: Cluster, pair: Pair) -> Iterator[Live]:
    """The release as it was installed, with admission enforced."""
    pair.stop()
    pair.upgrade({"config.gpuSharing.enabled": True})
    pair.start()
    with own_namespace(cluster, pair) as live:
        yield live


def test_the_end_of_a_share_releases_its_device_though_no_more_are_admitted(cluster: Cluster, pair: Pair) -> None:
    cluster.make_namespace("before")
    shares = Shares(Live(cluster, "before", pair))
    shares.share("running", "used")
    shares.live.phase("running", "Succeeded")
    pair.stop()
    pair.upgrade({"config.gpuSharing.enabled": False})
    pair.start()
    shares.delete("running")
    shares.await_release("used")


def restart(live: Live) -> None:
    """Restart the processes from the release's objects, as a rollout does."""
    live.pair.stop()
    live.pair.start()


def present(live: Live) -> list[str]:
    """The release's objects that can deny."""
    return live.kubectl("get", ",".join(KINDS), "-l", "app.kubernetes.io/name=bowline", "-o", "name").stdout.split()


def create(live: Live, name: str, annotations: dict[str, str]) -> tuple[bool, str]:
    """Create a pod with kubectl; returns whether it was created, and kubectl's output."""
    spec = {"schedulerName": "example-scheduler", "containers": [{"name": "main", "image": "registry.example/app:1"}]}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": annotations}, "spec": spec}
    completion = live.kubectl("create", "-f", "-", objects=body, check=False)
    return completion.returncode == 0, completion.stderr


def until_created(live: Live, name: str, *, created: bool, output: str = "") -> None:
    """Wait until such a pod is created, or denied: the API server watches configurations and policies."""
    numbers = iter(range(1000))

    def found() -> bool:
        was_created, text = create(live, f"{name}-{next(numbers)}", WRONG)
        return was_created is created and output in text

    live.until(f"a wrong pod is {'created' if created else 'denied'}", found)


def until_own_account(live: Live, *, denied: bool) -> None:
    """Wait until the reconciler's account is denied another label of a pod by its policy, or is not."""
    client = live.cluster.api_as(RECONCILER)
    path = f"/api/v1/namespaces/{live.namespace}/pods/own-account?dryRun=All"
    if live.not_found(path):
        live.create_pod("own-account")

    def matches() -> bool:
        try:
            client.patch(path, {"metadata": {"labels": {"app": "x"}}})
        except LocalApiError as error:
            return denied and "bowline-reconciler-pods" in str(error)
        return not denied

    live.until(f"the reconciler's account is {'limited' if denied else 'not limited'}", matches)
    client.close()


def test_the_commands_of_the_page_disable_and_enable_admission_and_stop_the_reconciler(
    live: Live, helm_command: Helm
) -> None:
    folders = (helm_command.binary.parent, live.cluster.assets.path(Tool.KUBECTL).parent)

    def execute(command: Command) -> None:
        run(command.text.replace("CHART", str(CHART)), live.cluster.kubeconfig, *folders)

    delete, off, warn, wait, enforce, renew, stop = commands("docs/emergency.md")[:7]
    until_created(live, "before", created=False)
    until_own_account(live, denied=True)
    notes_command = re.search(r"kubectl delete validatingwebhookconfigurations,\S+ -l \S+", live.pair.upgrade())
    assert notes_command, "Helm's notes contain the command"
    assert " ".join(delete.text.split()).startswith(notes_command[0])
    execute(delete)
    assert present(live) == []
    until_created(live, "without", created=True)
    until_own_account(live, denied=False)
    # Every other pod is bound as before; a sharing pod was not prepared, and its request reports that.
    live.create_pod("plain")
    live.request_bind("plain")
    live.phase("plain", "Succeeded")
    shares = Shares(live)
    shares.make("unprepared")
    shares.ask("unprepared", ["g"])
    status = live.phase("unprepared", "Failed")["status"]
    assert status["suggestion"] == "DeletePod"
    execute(off)
    assert present(live) == []
    # Back through Warn, so that nothing is denied while no webhook is ready.
    execute(warn)
    restart(live)
    execute(wait)
    until_created(live, "warned", created=True, output="Warning: ")
    until_own_account(live, denied=True)
    execute(enforce)
    restart(live)
    until_created(live, "denied", created=False)
    shares.share("prepared", "g")
    live.phase("prepared", "Succeeded")
    execute(renew)
    execute(stop)
    assert live.cluster.api.get(DEPLOYMENT)["spec"]["replicas"] == 0
    shares.delete("prepared")
    shares.await_release("g")


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
    live: Live, helm_command: Helm
) -> None:
    """Reservation pods stay only where a pod runs."""
    cluster, pair = live.cluster, live.pair
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
            assert status["reason"].startswith("RolledBack: Bowline is being uninstalled")
