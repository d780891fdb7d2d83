"""The inventory that the webhook reads from a real cluster, with and without the rights."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from localcluster.cluster import Cluster
from localcluster.nodes import node_object
from shared.api import names
from shared.framework.plugin import Inventory
from shared.kube.metrics import KubeMetrics
from shared.runtime.tasks import ShutdownSignal
from tests.waiting import until
from webhook.cluster_info import ClusterInfoWatcher, EnabledSources
from webhook.review import NO_FACTS, ClusterInfo

NAMESPACE, ACCOUNT = "default", "fact-finder"
NODE = "facts-many-gpus"


@pytest.fixture
def account(cluster: Cluster, tmp_path: Path) -> Iterator[Path]:
    """A kubeconfig of a ServiceAccount without rights."""
    cluster.kubectl("create", "serviceaccount", ACCOUNT, f"--namespace={NAMESPACE}")
    yield cluster.service_account_kubeconfig(NAMESPACE, ACCOUNT, tmp_path / "kubeconfig")
    for kind in ("clusterrolebinding", "clusterrole"):
        cluster.kubectl("delete", kind, ACCOUNT, "--ignore-not-found")
    cluster.kubectl("delete", "serviceaccount", ACCOUNT, f"--namespace={NAMESPACE}")
    cluster.kubectl("delete", "node", NODE, "--ignore-not-found")


def grant(cluster: Cluster) -> None:
    verbs, subject = "--verb=list,watch", f"--serviceaccount={NAMESPACE}:{ACCOUNT}"
    cluster.kubectl("create", "clusterrole", ACCOUNT, verbs, "--resource=nodes")
    cluster.kubectl("create", "clusterrolebinding", ACCOUNT, f"--clusterrole={ACCOUNT}", subject)


@asynccontextmanager
async def finding(
    kubeconfig: Path, wanted: EnabledSources, registry: CollectorRegistry | None = None
) -> AsyncIterator[ClusterInfoWatcher]:
    finder = ClusterInfoWatcher(wanted, kubeconfig, KubeMetrics(registry or CollectorRegistry()))
    task = asyncio.create_task(finder.run(ShutdownSignal()))
    try:
        yield finder
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until_known(finder: ClusterInfoWatcher, holds: Callable[[ClusterInfo], bool]) -> ClusterInfo:
    """Wait for a state of the cluster information."""
    await until(lambda: holds(finder.current()))
    return finder.current()


def inventory(facts: ClusterInfo) -> Any:
    return facts.inventory


async def test_the_inventory_follows_the_nodes(cluster: Cluster, account: Path) -> None:
    grant(cluster)
    async with finding(account, EnabledSources(inventory=True, requested=False)) as finder:
        before = inventory(await until_known(finder, lambda facts: facts.inventory is not None))
        assert before.max_gpus_per_node >= 8
        cluster.api.post("/api/v1/nodes", node_object(NODE, gpus=64))
        wanted = Inventory(64, before.nodes_with_memory_label + 1)
        await until_known(finder, lambda facts: facts.inventory == wanted)
        labels = {"metadata": {"labels": {names.NODE_GPU_MEMORY: None}}}
        cluster.api.patch(f"/api/v1/nodes/{NODE}", labels)
        await until_known(finder, lambda facts: facts.inventory == Inventory(64, before.nodes_with_memory_label))
        cluster.api.delete(f"/api/v1/nodes/{NODE}")
        await until_known(finder, lambda facts: facts.inventory == before)


async def test_without_the_right_nothing_is_known_until_it_is_given(cluster: Cluster, account: Path) -> None:
    registry = CollectorRegistry()

    def was_refused() -> bool:
        asked = {"verb": "list", "resource": "nodes", "code": "403"}
        return bool(registry.get_sample_value("bowline_kube_requests_total", asked))

    async with finding(account, EnabledSources(inventory=True, requested=False), registry) as finder:
        await until(was_refused)
        assert finder.current() == NO_FACTS
        grant(cluster)
        await until_known(finder, lambda facts: facts.inventory is not None)
