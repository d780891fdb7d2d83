"""The account of `helm test`, and the example scheduler of its values, on a real API server: with the pair.

Only kubelets are missing: the pods of hooks, both processes and the example scheduler run as local processes. The
commands of the pages, from install to uninstall, are in `test_operations_live`; every object of every preset is
created in `test_objects_live`.
"""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from bowline.localcluster.cluster import Cluster
from bowline.localcluster.errors import LocalApiError
from bowline.localcluster.helm import Helm
from bowline.localcluster.pair import LOCAL_VALUES, Pair, PairOptions
from bowline.localcluster.podsplace import has_pods_place
from bowline.localcluster.spec import ClusterSpec
from bowline.localcluster.workload import WorkloadOptions, start_workload
from bowline.testing.builders import pod
from tests.chart.jobs import running_jobs
from tests.chart.rendering import CHART
from tests.pairs import local_chart
from tests.waiting import wait_until

pytestmark = pytest.mark.long

SCHEDULER = CHART.parents[1] / "examples" / "scheduler" / "values.yaml"
VALUES = {"hooks.check": True, "hooks.uninstall": True}
NAMESPACE = "bowline-system"
KINDS = ("deployments,services,configmaps,serviceaccounts,jobs,roles,rolebindings,poddisruptionbudgets", "pods")
CLUSTER_KINDS = "clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingwebhookconfigurations"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster.start(ClusterSpec()) as local_cluster:
        local_cluster.make_nodes(2)
        local_cluster.make_runtime_class()
        yield local_cluster


@contextmanager
def release(cluster: Cluster, helm: Helm, *files: Path, name: str = "bowline") -> Iterator[Pair]:
    """The release with its processes, until the block ends; then it is uninstalled, and nothing of it is left."""
    namespace = f"{name}-system"
    values_files = (*files, LOCAL_VALUES)
    options = PairOptions(name, namespace, local_chart(cluster), values_files, set_values=VALUES)
    with running_jobs(cluster, namespace):
        pair = Pair.install(cluster, helm, options)
        try:
            yield pair
        finally:
            pair.uninstall()
            pair.stop()
    # The garbage collector deletes the pod of a hook after its Job.
    wait_until(lambda: objects(cluster, name, namespace) == [], "nothing is left of the release")


def objects(cluster: Cluster, name: str, namespace: str) -> list[str]:
    """The release's objects, without those that stay on purpose."""
    selector = f"--selector=app.kubernetes.io/instance={name}"
    commands = [("get", ",".join(KINDS), f"--namespace={namespace}"), ("get", CLUSTER_KINDS)]
    return [line for each in commands for line in cluster.kubectl(*each, selector, "-o", "name").stdout.splitlines()]


def bound_node(cluster: Cluster, name: str) -> Any:
    return cluster.api.get(f"/api/v1/namespaces/default/pods/{name}")["spec"].get("nodeName")


@pytest.fixture(scope="module")
def release_pair(cluster: Cluster, helm_command: Helm) -> Iterator[Pair]:
    with release(cluster, helm_command, SCHEDULER) as pair:
        pair.start()
        yield pair


@pytest.mark.skipif(not has_pods_place(), reason="needs a mount namespace for the ServiceAccount's files")
def test_the_example_scheduler_of_its_values_schedules(cluster: Cluster, release_pair: Pair) -> None:
    scheduler = start_workload(cluster, NAMESPACE, "example-scheduler", WorkloadOptions(in_pod=True))
    try:
        cluster.api.post(
            "/api/v1/namespaces/default/pods", pod("example", "default", schedulerName="example-scheduler")
        )
        wait_until(lambda: bound_node(cluster, "example"), "the example scheduler decides, the pair binds")
    finally:
        scheduler.stop()


def test_a_stolen_token_of_the_test_creates_nothing(cluster: Cluster, helm_command: Helm, release_pair: Pair) -> None:
    """The account and its roles exist, as while the test runs."""
    hooks = [
        yaml.safe_load(text)
        for text in helm_command.run(["get", "hooks", "bowline", "-n", NAMESPACE], cluster.kubeconfig).split(
            "\n---\n"
        )
    ]
    account = [obj for obj in hooks if obj and obj["metadata"]["name"] == "bowline-test" and obj["kind"] != "Pod"]
    cluster.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(account))
    try:
        kubeconfig = cluster.service_account_kubeconfig(NAMESPACE, "bowline-test", cluster.layout.root / "stolen")

        def create(*arguments: str) -> "subprocess.CompletedProcess[str]":
            body = json.dumps(pod("stolen", "default", schedulerName="other"))
            return cluster.kubectl("create", "-f", "-", *arguments, input=body, check=False, kubeconfig=kubeconfig)

        wait_until(
            lambda: "forbidden" not in create("--dry-run=server").stderr, "the rights of the account are effective"
        )
        assert create("--dry-run=server").stderr == ""
        assert "the account of the test creates only dry runs" in create().stderr
        with pytest.raises(LocalApiError, match="not found"):
            bound_node(cluster, "stolen")
    finally:
        cluster.kubectl("delete", "-f", "-", input=yaml.safe_dump_all(account))
