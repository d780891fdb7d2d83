"""The inventory that the webhook reads from a real cluster, with and without the rights."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from bowline.api import names
from bowline.framework.config import Settings
from bowline.framework.plugin import Inventory
from bowline.kube.metrics import KubeMetrics
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.kubeconfig import api_server
from bowline.localcluster.nodes import node_object
from bowline.runtime.tasks import ShutdownSignal
from bowline_webhook.inventory import InventoryWatcher
from tests.waiting import until

NAMESPACE, ACCOUNT = "default", "fact-finder"
NODE = "facts-many-gpus"


@pytest.fixture
def account(bare_cluster: Cluster, tmp_path: Path) -> Iterator[Path]:
    """A kubeconfig of a ServiceAccount without rights."""
    bare_cluster.kubectl("create", "serviceaccount", ACCOUNT, f"--namespace={NAMESPACE}")
    yield bare_cluster.service_account_kubeconfig(NAMESPACE, ACCOUNT, tmp_path / "kubeconfig")
    for kind in ("clusterrolebinding", "clusterrole"):
        bare_cluster.kubectl("delete", kind, ACCOUNT, "--ignore-not-found")
    bare_cluster.kubectl("delete", "serviceaccount", ACCOUNT, f"--namespace={NAMESPACE}")
    bare_cluster.kubectl("delete", "node", NODE, "--ignore-not-found")


def grant(cluster: Cluster) -> None:
    verbs, subject = "--verb=list,watch", f"--serviceaccount={NAMESPACE}:{ACCOUNT}"
    cluster.kubectl("create", "clusterrole", ACCOUNT, verbs, "--resource=nodes")
    cluster.kubectl("create", "clusterrolebinding", ACCOUNT, f"--clusterrole={ACCOUNT}", subject)


@asynccontextmanager
async def watching(kubeconfig: Path, registry: CollectorRegistry | None = None) -> AsyncIterator[InventoryWatcher]:
    watcher = InventoryWatcher(api_server(kubeconfig), Settings(), KubeMetrics(registry or CollectorRegistry()))
    task = asyncio.create_task(watcher.run(ShutdownSignal()))
    try:
        yield watcher
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_the_inventory_follows_the_nodes(bare_cluster: Cluster, account: Path) -> None:
    grant(bare_cluster)
    async with watching(account) as watcher:
        await until(lambda: watcher.current() is not None)
        before = watcher.current()
        assert before is not None
        assert before.max_gpus_per_node >= 8
        bare_cluster.api.post("/api/v1/nodes", node_object(NODE, gpus=64))
        await until(lambda: watcher.current() == Inventory(64, before.nodes_with_memory_label + 1))
        labels = {"metadata": {"labels": {names.NODE_GPU_MEMORY: None}}}
        bare_cluster.api.patch(f"/api/v1/nodes/{NODE}", labels)
        await until(lambda: watcher.current() == Inventory(64, before.nodes_with_memory_label))
        bare_cluster.api.delete(f"/api/v1/nodes/{NODE}")
        await until(lambda: watcher.current() == before)
