"""The reader of ``bowline explain``: an account of a namespace's owner."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bowline.localcluster.cluster import Cluster
from bowline.localcluster.pair import Pair
from tests.live import Live
from tests.pairs import TEST_CONFIG, running_pair

OWNER = "owner"


def own(live: Live) -> None:
    """Give the owner the role ``view`` in the namespace, and wait until the API server applies it."""
    live.kubectl("create", "rolebinding", OWNER, "--clusterrole=view", f"--serviceaccount=default:{OWNER}")
    live.until_allowed(f"system:serviceaccount:default:{OWNER}", "list", "pods")


@pytest.fixture(scope="package")
def pair_cluster() -> Iterator[tuple[Cluster, Pair]]:
    """A control plane with the chart installed by Helm and both processes running from its objects."""
    with running_pair(4, TEST_CONFIG) as cluster_and_pair:
        yield cluster_and_pair


@pytest.fixture(scope="package")
def owner(pair_cluster: tuple[Cluster, Pair]) -> Path:
    """A kubeconfig of an account without rights; tests give it the role ``view`` in their namespaces."""
    cluster, _ = pair_cluster
    cluster.kubectl("create", "serviceaccount", OWNER, "--namespace=default")
    return cluster.service_account_kubeconfig("default", OWNER)
