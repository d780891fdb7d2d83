"""The commands of docs/install.md and of the pages of its operation, in order, with real Helm and API server.

The cluster has no kubelets: webhook and reconciler are started when the pages have installed them, and the pods of
Helm's hooks run beside them.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from bowline.localcluster.cluster import Cluster
from bowline.localcluster.helm import Helm
from bowline.localcluster.ports import free_port
from bowline.localcluster.spec import ClusterSpec
from bowline.localcluster.workload import LocalProcess, WorkloadOptions, start_workload
from tests.chart.jobs import running_jobs
from tests.chart.presets import LOCAL
from tests.chart.rendering import merged
from tests.chart.shell import Shell
from tests.documents import commands
from tests.waiting import wait_until

# Helm's hooks, and two rollouts.
pytestmark = pytest.mark.long

PAGES = ("docs/install.md", "docs/operations.md", "docs/alerts.md")
NAMESPACE = "bowline-system"
SECRET = f"/api/v1/namespaces/{NAMESPACE}/secrets/bowline-ca"


@pytest.fixture
def shell(helm_command: Helm, tmp_path: Path) -> Iterator[Shell]:
    address = f"127.0.0.1:{free_port()}"
    local = merged(LOCAL, {"webhook": {"url": f"https://{address}"}, "hooks": {"check": True, "uninstall": True}})
    with Cluster.start(ClusterSpec()) as cluster:
        cluster.make_nodes(1)
        cluster.make_runtime_class()
        yield Shell.at(tmp_path, cluster, helm_command, local)


def start(cluster: Cluster, address: str) -> LocalProcess:
    """Start what the pages have installed, as kubelets would; returns the webhook."""
    webhook = start_workload(cluster, NAMESPACE, "bowline-webhook", WorkloadOptions(listen=address))
    for process in (webhook, start_workload(cluster, NAMESPACE, "bowline-reconciler")):
        process.wait_ready()
    return webhook


def test_every_command_of_the_pages_succeeds_in_their_order(shell: Shell) -> None:
    lines = [command.text for page in PAGES for command in commands(page)]
    cluster, present = shell.cluster, sorted(lines, key=lambda line: line.startswith("helm uninstall"))
    assert present[-1].startswith("helm uninstall"), "the pages end with the release"
    address = yaml.safe_load((shell.folder / "values.yaml").read_text())["webhook"]["url"].removeprefix("https://")
    webhook, ca = None, {}
    with ExitStack() as hooks:
        for line in present:
            if line.startswith("helm") and webhook is None:
                hooks.enter_context(running_jobs(cluster, NAMESPACE))
            if "bowline-ca" in line:
                ca = cluster.api.get(SECRET)["data"]
            shell.run(line)
            if line.startswith("helm upgrade --install bowline"):
                webhook = start(cluster, address)
            if line.endswith("rollout restart deployment/bowline-webhook"):
                assert webhook is not None
                webhook.stop()
                options = WorkloadOptions(listen=address)
                webhook = start_workload(cluster, NAMESPACE, "bowline-webhook", options)
                webhook.wait_ready()
                wait_until(lambda ca=ca: is_replaced(cluster, ca), "another CA")  # type: ignore[misc]
    left = cluster.kubectl("get", "deployments,services,validatingwebhookconfigurations", "-A", "-o", "name").stdout
    assert [name for name in left.split() if "bowline" in name] == []


def is_replaced(cluster: Cluster, before: dict[str, str]) -> bool:
    after = cluster.api.get(SECRET).get("data") or {}
    return "tls.crt" in after and after["tls.crt"] != before["tls.crt"]
