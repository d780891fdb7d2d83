"""A control plane with the CRD and nothing else of Bowline; a namespace of its own for each test."""

import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from localcluster.cluster import Cluster
from localcluster.spec import ClusterSpec
from shared.api import names
from shared.kube.client import ClientOptions, KubeClient
from shared.kube.config import ClusterAccess, load_access
from shared.kube.resources import NAMESPACES, Resource
from tests.fault_proxy.server import FaultProxy
from tests.reconciler.stage import Stage

CRD = Path(__file__).resolve().parents[2] / "charts" / "bowline" / "files" / "bindrequests.yaml"
SERVICEACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")


@pytest.fixture(scope="session")
def crd_cluster() -> Iterator[Cluster]:
    """etcd and an API server with nodes and the CRD; nobody else changes anything."""
    with Cluster.start(ClusterSpec(kwok=False, controllers=())) as cluster:
        cluster.make_nodes(3)
        cluster.kubectl("apply", "-f", str(CRD))
        cluster.wait_established(f"{names.PLURAL}.{names.GROUP}")
        yield cluster


async def stage_on(cluster: Cluster) -> AsyncIterator[Stage]:
    """A namespace of a test's own on the cluster."""
    access = await load_access(cluster.kubeconfig)
    async with KubeClient(access, ClientOptions(name="bowline-test")) as client:
        namespace = f"test-{uuid.uuid4().hex[:8]}"
        await client.create(NAMESPACES, "", {"metadata": {"name": namespace}})
        stage = Stage(client, access, namespace)
        yield stage
        await stage.clear()


@pytest.fixture
async def stage(crd_cluster: Cluster) -> AsyncIterator[Stage]:
    """The test's stage."""
    async for made in stage_on(crd_cluster):
        yield made


@pytest.fixture
async def proxied(
    crd_cluster: Cluster, stage: Stage, tmp_path: Path
) -> AsyncIterator[tuple[FaultProxy, ClusterAccess]]:
    """A proxy that can disturb single requests, and the access of a reconciler behind it."""
    account = tmp_path / "account.kubeconfig"
    name = f"reconciler-{stage.namespace}"
    await stage.client.create(SERVICEACCOUNTS, "default", {"metadata": {"name": name}})
    crd_cluster.kubectl(
        "create", "clusterrolebinding", name, "--clusterrole=cluster-admin", f"--serviceaccount=default:{name}"
    )
    crd_cluster.service_account_kubeconfig("default", name, path=account)
    with FaultProxy(crd_cluster.server, crd_cluster.ca_pem) as proxy:
        yield proxy, await load_access(proxy.kubeconfig(account, tmp_path / "proxied.kubeconfig"))
