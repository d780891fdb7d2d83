"""Clients of the shared API server, which some of these tests pause and restart."""

import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from bowline.kube.client import ClientOptions, KubeClient
from bowline.kube.config import ClusterAccess, load_access
from bowline.kube.metrics import KubeMetrics
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.kubeconfig import api_server
from bowline.testing.fault_proxy.server import FaultProxy


@pytest.fixture
async def access(bare_cluster: Cluster) -> ClusterAccess:
    """The administrator's kubeconfig."""
    return load_access(api_server(bare_cluster.kubeconfig))


@pytest.fixture
async def client(access: ClusterAccess) -> AsyncIterator[KubeClient]:
    """A client with the administrator's rights."""
    async with KubeClient(access, ClientOptions(name="bowline-test")) as client:
        yield client


@pytest.fixture
def namespace(bare_cluster: Cluster) -> str:
    """A namespace for this test only."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    bare_cluster.make_namespace(name)
    return name


@pytest.fixture
def proxy(bare_cluster: Cluster) -> Iterator[FaultProxy]:
    """A fault proxy in front of the API server."""
    with FaultProxy(bare_cluster.server, bare_cluster.ca_pem) as proxy:
        yield proxy


@pytest.fixture
async def proxied(proxy: FaultProxy, administrator: Path, tmp_path: Path) -> ClusterAccess:
    """The administrator's access through the proxy."""
    return load_access(api_server(proxy.kubeconfig(administrator, tmp_path / "proxied.kubeconfig")))


@pytest.fixture
async def proxy_client(proxied: ClusterAccess) -> AsyncIterator[KubeClient]:
    """A client behind the proxy with its own metrics registry."""
    async with KubeClient(proxied, ClientOptions(metrics=KubeMetrics(CollectorRegistry()))) as client:
        yield client


@pytest.fixture
async def unprivileged(bare_cluster: Cluster, namespace: str) -> AsyncIterator[KubeClient]:
    """A client of a ServiceAccount in the test's namespace without any rights."""
    account = {"metadata": {"name": "unprivileged"}}
    bare_cluster.api.post(f"/api/v1/namespaces/{namespace}/serviceaccounts", account)
    path = bare_cluster.service_account_kubeconfig(namespace, "unprivileged")
    async with KubeClient(load_access(api_server(path))) as client:
        yield client
