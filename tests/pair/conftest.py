"""The reader of ``bowline explain``: an account of a namespace's owner."""

from pathlib import Path

import pytest

from bowline.localcluster.cluster import Cluster
from bowline.localcluster.pair import Pair
from tests.live import Live

OWNER = "owner"


def own(live: Live) -> None:
    """Give the owner the role ``view`` in the namespace, and wait until the API server applies it."""
    live.kubectl("create", "rolebinding", OWNER, "--clusterrole=view", f"--serviceaccount=default:{OWNER}")
    live.until_allowed(f"system:serviceaccount:default:{OWNER}", "list", "pods")


@pytest.fixture(scope="session")
def owner(pair_cluster: tuple[Cluster, Pair]) -> Path:
    """A kubeconfig of an account without rights; tests give it the role ``view`` in their namespaces."""
    cluster, _ = pair_cluster
    cluster.kubectl("create", "serviceaccount", OWNER, "--namespace=default")
    return cluster.service_account_kubeconfig("default", OWNER)
