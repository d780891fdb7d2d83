"""Clients of the shared API server, which some of these tests pause and restart."""

import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from prometheus_client import CollectorRegistry

from bowline.kube.client import ClientOptions, KubeClient
from bowline.kube.config import ClusterAccess, load_access
from bowline.kube.errors import InfrastructureError
from bowline.kube.metrics import KubeMetrics
from bowline.kube.resources import NAMESPACES
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.kubeconfig import api_server
from bowline.testing.fault_proxy.server import FaultProxy
from tests.kube.wire import Wire
from tests.live import LiveCluster
from tests.waiting import until_awaited

RBAC = "rbac.authorization.k8s.io"


async def connect(client: KubeClient) -> None:
    """Open the client's connection for writes: the next one has the whole timeout for itself, however short it is."""

    async def is_answered() -> bool:
        with suppress(InfrastructureError):
            await client.get(NAMESPACES, "", "default")  # a list has a connection of its own
            return True
        return False

    await until_awaited(is_answered, bool)


def administrator(cluster: Cluster, namespace: str, name: str) -> Path:
    """Create an account with every right in the namespace; returns its kubeconfig, with the right in force."""
    body = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "namespace": namespace, "name": name}],
    }
    cluster.api.post(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": body["metadata"]})
    cluster.api.post(f"/apis/{RBAC}/v1/namespaces/{namespace}/rolebindings", body)
    user = f"system:serviceaccount:{namespace}:{name}"
    LiveCluster(cluster, namespace).until_allowed(user, "create", "pods")
    return cluster.service_account_kubeconfig(namespace, name)


@pytest.fixture
async def access(bare_cluster: Cluster) -> ClusterAccess:
    """The administrator's kubeconfig."""
    return await load_access(api_server(bare_cluster.kubeconfig))


@pytest.fixture
async def client(access: ClusterAccess) -> AsyncIterator[KubeClient]:
    """A client with the administrator's rights."""
    async with KubeClient(access, ClientOptions(name="bowline-test")) as client:
        yield client


@pytest.fixture
async def namespace(client: KubeClient) -> str:
    """A namespace for this test only."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    await client.create(NAMESPACES, "", {"metadata": {"name": name}})
    return name


@pytest.fixture
async def wire(bare_cluster: Cluster) -> AsyncIterator[Wire]:
    """A TCP relay to the API server that can be cut."""
    server = urlsplit(bare_cluster.server)
    assert server.hostname is not None
    assert server.port is not None
    async with Wire(server.hostname, server.port) as wire:
        yield wire


@pytest.fixture
async def wired(access: ClusterAccess, wire: Wire) -> AsyncIterator[KubeClient]:
    """A client behind that relay."""
    async with KubeClient(replace(access, server=f"https://127.0.0.1:{wire.port}")) as client:
        yield client


@pytest.fixture
def proxy(bare_cluster: Cluster) -> Iterator[FaultProxy]:
    """A fault proxy in front of the API server."""
    with FaultProxy(bare_cluster.server, bare_cluster.ca_pem) as proxy:
        yield proxy


@pytest.fixture
async def proxy_client(bare_cluster: Cluster, proxy: FaultProxy, namespace: str) -> AsyncIterator[KubeClient]:
    """A client behind the proxy with every right in the test's namespace and its own metrics registry."""
    account = administrator(bare_cluster, namespace, "proxied")
    access = await load_access(api_server(proxy.kubeconfig(account, account.with_suffix(".proxied"))))
    async with KubeClient(access, ClientOptions(metrics=KubeMetrics(CollectorRegistry()))) as client:
        yield client


@pytest.fixture
async def unprivileged(bare_cluster: Cluster, namespace: str) -> AsyncIterator[KubeClient]:
    """A client of a ServiceAccount in the test's namespace without any rights."""
    account = {"metadata": {"name": "unprivileged"}}
    bare_cluster.api.post(f"/api/v1/namespaces/{namespace}/serviceaccounts", account)
    path = bare_cluster.service_account_kubeconfig(namespace, "unprivileged")
    async with KubeClient(await load_access(api_server(path))) as client:
        yield client
