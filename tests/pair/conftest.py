"""The reader of ``bowline explain``: an account of a namespace's owner. And reconcilers without the chart."""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bowline.framework.workload_kinds import READY
from bowline.localcluster.checkout import CHECKOUT
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.kubeconfig import access_words
from bowline.localcluster.pair import Pair
from bowline.localcluster.ports import free_port
from bowline.localcluster.process import Launch
from bowline.localcluster.workload import LocalProcess
from tests.foreign_kinds import OWN, install, remove
from tests.live import Live

OWNER = "owner"
PLUGINS = Path(__file__).parent / "plugins"


@dataclass(slots=True)
class BareReconcilers:
    """Reconcilers from the checkout, as in development, on a cluster that has only the CRD."""

    cluster: Cluster
    folder: Path
    processes: list[LocalProcess] = field(default_factory=list)

    def start(self, name: str, config: str = "", *args: str, is_awaited: bool = True) -> LocalProcess:
        """Start one, with a configuration; ``is_awaited``: until it is ready."""
        metrics, debug = (f"127.0.0.1:{free_port()}" for _ in range(2))
        words = [sys.executable, "-m", "bowline_reconciler", *access_words(self.cluster.kubeconfig)]
        words += [f"--metrics-listen={metrics}", f"--debug-listen={debug}", *args]
        if config:
            path = self.folder / f"{name}.yaml"
            path.write_text(config)
            words.append(f"--config={path}")
        environment = {**os.environ, "PYTHONPATH": str(PLUGINS)}
        launch = Launch(name, words, self.cluster.layout.logs / f"{name}.log", CHECKOUT, environment)
        process = LocalProcess(self.cluster.run_process(launch), "", metrics, self.cluster.kubeconfig, debug)
        self.processes.append(process)
        if is_awaited:
            process.wait_ready()
        return process


@pytest.fixture(scope="module")
def bare_reconcilers(bare_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BareReconcilers]:
    """They end with the module: others use the cluster then."""
    reconcilers = BareReconcilers(bare_cluster, tmp_path_factory.mktemp("bare"))
    yield reconcilers
    for process in reconcilers.processes:
        process.kill()


@pytest.fixture(scope="package")
def kinds(pair_cluster: tuple[Cluster, Pair]) -> Iterator[None]:
    """The CRDs of every known kind and an own one are installed; their controllers are not."""
    names = [workload.kind for workload in (*READY, OWN)]
    install(pair_cluster[0], *names)
    yield
    remove(pair_cluster[0], *names)


def own(live: Live) -> None:
    """Give the owner the role ``view`` in the namespace, and wait until the API server applies it."""
    live.kubectl("create", "rolebinding", OWNER, "--clusterrole=view", f"--serviceaccount=default:{OWNER}")
    live.until_allowed(f"system:serviceaccount:default:{OWNER}", "list", "pods")


@pytest.fixture(scope="module")
def owner(pair_cluster: tuple[Cluster, Pair]) -> Path:
    """A kubeconfig of an account without rights; tests give it the role ``view`` in their namespaces."""
    cluster, _ = pair_cluster
    cluster.kubectl("create", "serviceaccount", OWNER, "--namespace=default")
    return cluster.service_account_kubeconfig("default", OWNER)
