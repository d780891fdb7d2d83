"""The cache of node labels against a real API server: what is read, cached and evicted."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from bowline.framework.binding.node_labels import NodeLabels
from bowline.kube.client import KubeClient
from bowline.kube.config import load_access
from bowline.kube.resources import NODES, Resource
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.kubeconfig import api_server


class Counting(KubeClient):
    """Records which nodes are read."""

    read: list[str]

    async def get(self, resource: Resource, namespace: str, name: str, **kwargs: Any) -> dict[str, Any]:
        self.read.append(name)
        return await super().get(resource, namespace, name, **kwargs)


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[Counting]:
    client = Counting(await load_access(api_server(cluster.kubeconfig)))
    client.read = []
    async with client:
        yield client


def cached_node(name: str, version: str = "1") -> dict[str, Any]:
    """A node as the reconciler caches it."""
    return {"metadata": {"name": name, "resourceVersion": version}}


async def test_a_node_is_read_once_for_each_version(client: Counting) -> None:
    labels = NodeLabels(client)
    stored_node = await client.get(NODES, "", "gpu-node-0")
    client.read.clear()
    for version in ("1", "1", "2", "2"):
        node = await labels.get(cached_node("gpu-node-0", version))
        assert node is not None
        assert node.labels == stored_node["metadata"]["labels"]
    assert client.read == ["gpu-node-0", "gpu-node-0"]
