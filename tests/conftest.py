"""Fixtures of all tests: one control plane of each kind for each worker, a namespace for each test.

The state of two clusters never mixes: ``bare_cluster`` has the CRD and no controllers; ``pair_cluster`` has
controllers, kwok, the chart installed, and webhook and reconciler running from its objects as their ServiceAccounts.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from bowline.localcluster.assets.recipes import Tool
from bowline.localcluster.assets.supply import ensure_assets
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.pair import Pair
from tests.live import Live, LiveCluster
from tests.pairs import TEST_CONFIG, bare_control_plane, own_namespace, running_pair


@pytest.fixture(scope="session")
def bare_cluster() -> Iterator[Cluster]:
    """A control plane with three nodes and the CRD; no controller changes an object.

    It is shared by the folders whose tests need no more: each uses its own namespaces.
    """
    with bare_control_plane() as started:
        yield started


@pytest.fixture(scope="session")
def kubectl_in_path() -> Iterator[None]:
    """The kubectl of local clusters is the first one in PATH: the command `bowline` reaches a cluster by it."""
    kubectl = ensure_assets((Tool.KUBECTL,), None).path(Tool.KUBECTL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(kubectl.parent), prepend=os.pathsep)
        yield


@pytest.fixture(scope="session")
def administrator(bare_cluster: Cluster) -> Path:
    """The kubeconfig of an account with every right, which authenticates with a token: a proxy passes it on."""
    rbac = "rbac.authorization.k8s.io"
    body = {
        "metadata": {"name": "administrator"},
        "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "namespace": "default", "name": "administrator"}],
    }
    bare_cluster.api.post("/api/v1/namespaces/default/serviceaccounts", {"metadata": body["metadata"]})
    bare_cluster.api.post(f"/apis/{rbac}/v1/clusterrolebindings", body)
    user = "system:serviceaccount:default:administrator"
    LiveCluster(bare_cluster, "default").until_allowed(user, "*", "*", group="*")
    return bare_cluster.service_account_kubeconfig("default", "administrator")


@pytest.fixture(scope="session")
def pair_cluster() -> Iterator[tuple[Cluster, Pair]]:
    """A control plane with the chart installed by Helm and both processes running from its objects."""
    with running_pair(4, TEST_CONFIG) as cluster_and_pair:
        yield cluster_and_pair


@pytest.fixture
def pair(pair_cluster: tuple[Cluster, Pair]) -> Iterator[Live]:
    """The running pair, in a namespace for this test only."""
    with own_namespace(*pair_cluster) as live:
        yield live
