"""An API server of its own: these tests stop, pause and restart it."""

import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from urllib.parse import urlsplit

import pytest
from prometheus_client import CollectorRegistry

from localcluster.cluster import Cluster
from localcluster.spec import ClusterSpec
from shared.kube.client import ClientOptions, KubeClient
from shared.kube.config import ClusterAccess, load_access
from shared.kube.metrics import KubeMetrics
from shared.kube.resources import NAMESPACES
from tests.fault_proxy.server import FaultProxy
from tests.kube.wire import Wire


@pytest.fixture(scope="session")
def api_cluster() -> Iterator[Cluster]:
    """etcd and an API server, nothing that changes objects by itself."""
    with Cluster.start(ClusterSpec(kwok=False, controllers=())) as cluster:
        yield cluster


@pytest.fixture
async def access(api_cluster: Cluster) -> ClusterAccess:
    """The administrator's way in."""
    return await load_access(api_cluster.kubeconfig)


@pytest.fixture
async def client(access: ClusterAccess) -> AsyncIterator[KubeClient]:
    """A client of the administrator."""
    async with KubeClient(access, ClientOptions(name="bowline-test")) as client:
        yield client


@pytest.fixture
async def namespace(client: KubeClient) -> str:
    """A namespace of this test's own."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    await client.create(NAMESPACES, "", {"metadata": {"name": name}})
    return name


@pytest.fixture
async def wire(api_cluster: Cluster) -> AsyncIterator[Wire]:
    """A wire to the API server that can be cut."""
    server = urlsplit(api_cluster.server)
    assert server.hostname is not None
    assert server.port is not None
    async with Wire(server.hostname, server.port) as wire:
        yield wire


@pytest.fixture
async def wired(access: ClusterAccess, wire: Wire) -> AsyncIterator[KubeClient]:
    """A client at the other end of that wire."""
    async with KubeClient(replace(access, server=f"https://127.0.0.1:{wire.port}")) as client:
        yield client


@pytest.fixture
def proxy(api_cluster: Cluster) -> Iterator[FaultProxy]:
    """A fault proxy in front of the API server."""
    with FaultProxy(api_cluster.server, api_cluster.ca_pem) as proxy:
        yield proxy


@pytest.fixture
async def proxied(api_cluster: Cluster, proxy: FaultProxy, namespace: str) -> AsyncIterator[KubeClient]:
    """A client behind the proxy, with every right in the test's namespace; its metrics are of its own."""
    api_cluster.kubectl("create", "serviceaccount", "proxied", f"--namespace={namespace}")
    rights = ("--clusterrole=cluster-admin", f"--serviceaccount={namespace}:proxied", f"--namespace={namespace}")
    api_cluster.kubectl("create", "rolebinding", "proxied", *rights)
    account = api_cluster.service_account_kubeconfig(namespace, "proxied")
    access = await load_access(proxy.kubeconfig(account, account.with_suffix(".proxied")))
    async with KubeClient(access, ClientOptions(metrics=KubeMetrics(CollectorRegistry()))) as client:
        yield client


@pytest.fixture
async def nobody(api_cluster: Cluster, namespace: str) -> AsyncIterator[KubeClient]:
    """A client of the ServiceAccount ``nobody`` of the test's namespace, which has no rights."""
    api_cluster.kubectl("create", "serviceaccount", "nobody", "-n", namespace)
    path = api_cluster.service_account_kubeconfig(namespace, "nobody")
    async with KubeClient(await load_access(path)) as client:
        yield client
