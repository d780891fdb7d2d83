"""What docs/alerts.md needs a kubelet for: `helm test`, and commands that read pods."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from bowline.localcluster.assets.recipes import Tool
from bowline.localcluster.errors import CommandError
from bowline.localcluster.helm import Helm, find_helm
from tests.documents import NOT_EXECUTED, ROOT, blocks, run
from tests.localnode.cluster import NAMESPACE, RELEASE, NodeCluster
from tests.node.steps import NodeLive

PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
WEBHOOK = f"deployment/{RELEASE}-webhook"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{RELEASE}-reconciler"
# `helm test` ends with its result within a minute; the kubelet ends the pod after 55 s.
LIMIT_S = 60
COMMANDS = [
    command
    for block in blocks(ROOT / "docs" / "alerts.md")
    if block.info == NOT_EXECUTED
    for command in block.text.splitlines()
    if "pods" in command or "logs" in command
]


@pytest.fixture
def helm() -> Helm:
    return find_helm()


@pytest.fixture
def stopped_webhook(node: NodeCluster, live: NodeLive) -> Iterator[None]:
    """The Deployment has no pods; as many as the chart's afterwards."""
    replicas = node.cluster.kubectl("get", WEBHOOK, f"-n={NAMESPACE}", "-o=jsonpath={.spec.replicas}").stdout
    node.cluster.kubectl("scale", WEBHOOK, f"-n={NAMESPACE}", "--replicas=0")
    live.until("no webhook runs", lambda: not webhooks(node), 120)
    yield
    # The pod of a failed test is no part of the release: an uninstall leaves it.
    node.cluster.kubectl("delete", "pod", f"{RELEASE}-test", f"-n={NAMESPACE}", "--ignore-not-found")
    node.cluster.kubectl("scale", WEBHOOK, f"-n={NAMESPACE}", f"--replicas={replicas}")
    node.cluster.kubectl("rollout", "status", WEBHOOK, f"-n={NAMESPACE}", "--timeout=180s")


def webhooks(node: NodeCluster) -> list[dict[str, Any]]:
    pods: list[dict[str, Any]] = node.cluster.api.get(PODS)["items"]
    return [pod for pod in pods if pod["metadata"]["name"].startswith(f"{RELEASE}-webhook")]


def test_helm_test_succeeds(node: NodeCluster, live: NodeLive, helm: Helm) -> None:
    assert "all is well" in helm.run(["test", RELEASE, f"--namespace={NAMESPACE}", "--logs"], node.cluster.kubeconfig)


@pytest.mark.usefixtures("stopped_webhook")
def test_helm_test_fails_within_a_minute_while_the_webhook_is_stopped(node: NodeCluster, helm: Helm) -> None:
    with pytest.raises(CommandError):
        helm.run(["test", RELEASE, f"--namespace={NAMESPACE}"], node.cluster.kubeconfig)
    (pod,) = (
        pod for pod in node.cluster.api.get(PODS)["items"] if pod["metadata"]["name"].startswith(f"{RELEASE}-test")
    )
    assert pod["status"]["phase"] == "Failed"
    (status,) = pod["status"]["containerStatuses"]
    # As the kubelet reports them.
    end, began = status["state"]["terminated"]["finishedAt"], pod["status"]["startTime"]
    assert (datetime.fromisoformat(end) - datetime.fromisoformat(began)).total_seconds() <= LIMIT_S
    log = node.cluster.kubectl("logs", pod["metadata"]["name"], f"-n={NAMESPACE}").stdout
    assert "missing: an answer of the webhook" in log


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_reads_pods_prints_something(node: NodeCluster, live: NodeLive, command: str) -> None:
    """Without what filters the output: nothing has failed here."""

    def leader() -> str | None:
        holder: str = node.cluster.api.get(LEASE)["spec"].get("holderIdentity") or ""
        pods = [pod["metadata"]["name"] for pod in node.cluster.api.get(PODS)["items"]]
        return next((name for name in pods if holder.startswith(name)), None)

    words = {"LEADER": live.until("a leader", leader), "POD": webhooks(node)[0]["metadata"]["name"]}
    text = command.partition(" | ")[0]
    for word, name in words.items():
        text = text.replace(word, name)
    assert run(text, node.cluster.kubeconfig, node.cluster.assets.path(Tool.KUBECTL).parent).strip()
