"""A namespace per test. Reconcilers cache pods of all namespaces, so what other tests have left is deleted before."""

import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bowline.kube.client import ClientOptions, KubeClient
from bowline.kube.config import ClusterAccess, load_access
from bowline.kube.resources import BINDREQUESTS, NAMESPACES
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.kubeconfig import api_server
from bowline.testing.fault_proxy.server import FaultProxy
from bowline_reconciler.watch import bound_pods
from tests.reconciler.stage import Stage


@pytest.fixture
def no_late_bind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bind is read from the watch, however late its event is: the limit is only for a watch that has stopped."""
    monkeypatch.setattr(bound_pods, "LIMIT", bound_pods.LIMIT * 60)


async def stage_on(cluster: Cluster) -> AsyncIterator[Stage]:
    """A namespace for this test only."""
    access = load_access(api_server(cluster.kubeconfig))
    async with KubeClient(access, ClientOptions(name="bowline-test")) as client:
        for namespace in {request["metadata"]["namespace"] for request in await client.list_all(BINDREQUESTS, "")}:
            await Stage(client, access, namespace).clear()
        namespace = f"test-{uuid.uuid4().hex[:8]}"
        await client.create(NAMESPACES, "", {"metadata": {"name": namespace}})
        stage = Stage(client, access, namespace)
        yield stage
        await stage.clear()


@pytest.fixture
async def stage(bare_cluster: Cluster) -> AsyncIterator[Stage]:
    """The test's stage."""
    async for made in stage_on(bare_cluster):
        yield made


@pytest.fixture
async def proxy_route(
    bare_cluster: Cluster, administrator: Path, tmp_path: Path
) -> AsyncIterator[tuple[FaultProxy, ClusterAccess]]:
    """A proxy that can disturb single requests, and the access of a reconciler behind it."""
    with FaultProxy(bare_cluster.server, bare_cluster.ca_pem) as proxy:
        yield proxy, load_access(api_server(proxy.kubeconfig(administrator, tmp_path / "proxied.kubeconfig")))
