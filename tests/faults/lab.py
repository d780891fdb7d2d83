"""The environment of the crash tests: a cluster with the chart, and reconciler processes, each behind a proxy.

No webhook runs, and its configurations are deleted: what it would prepare at creation (UID, finalizer), the
reconciler then does itself, which means more writes and so more points for crashes.
"""

import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bowline.api import names
from bowline.localcluster.checkout import CHECKOUT
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.errors import LocalApiError
from bowline.localcluster.helm import find_helm
from bowline.localcluster.kubeconfig import access_words
from bowline.localcluster.pair import Pair, PairOptions
from bowline.localcluster.spec import ClusterSpec
from bowline.localcluster.workload import LocalProcess, WorkloadOptions, start_workload
from bowline.testing.fault_proxy.server import FaultProxy
from tests.live import LiveCluster

POLL_S = 0.05
NAMESPACE = "bowline-system"
ACCOUNT = "bowline-reconciler"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{ACCOUNT}"
# Modules of the plugins: this folder's, and the examples of this checkout rather than of the installed package.
PLUGINS = f"{Path(__file__).parent / 'plugins'}:{CHECKOUT / 'examples' / 'plugins'}"
CONFIG: Mapping[str, object] = {
    "config.plugins": [{"name": "example_flaky"}, {"name": "fault_effects"}],
    "config.leaderElection": {"leaseDuration": "3s", "renewDeadline": "2s", "retryPeriod": "500ms"},
    "config.binding.backoff": {"base": "100ms", "max": "1s"},
    # Before a rollback a new leader waits as long as the API server processes a request at most, because of its
    # predecessor's Bindings. Every point would wait for it; none has a Binding in flight when its sender is killed.
    "config.binding.inFlightTimeout": "500ms",
}
# The test plugin's rights, beside those that the chart grants.
_ROLE = "fault-effects"
_RULES = [
    {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "create", "delete"]},
    {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch"]},
]


@dataclass(slots=True)
class Reconciler:
    """One reconciler behind its own proxy: started, killed and restarted under one name."""

    lab: "Lab"
    name: str
    proxy: FaultProxy
    process: LocalProcess | None = None

    @property
    def _folder(self) -> Path:
        folder = self.lab.cluster.data_dir / "faults"
        folder.mkdir(exist_ok=True)
        return folder

    def start(self) -> None:
        """Start the process without waiting for it."""
        kubeconfig = self.proxy.kubeconfig(self.lab.account, self._folder / self.name)
        self.process = start_workload(
            self.lab.cluster,
            NAMESPACE,
            ACCOUNT,
            WorkloadOptions(
                name=self.name,
                env={"PYTHONPATH": PLUGINS},
                extra_args=access_words(kubeconfig),
            ),
        )

    def kill(self) -> None:
        """Kill the process, and return when it has exited."""
        if self.process is not None:
            self.process.kill()

    def check(self) -> None:
        """Raise if the process has exited by itself."""
        if self.process is not None and self.process.returncode not in (None, -signal.SIGKILL):
            raise AssertionError(f"{self.name} has ended:\n{self.tail()}")

    def tail(self) -> str:
        """The end of its log, for a failure report."""
        return self.process.process.tail(30) if self.process is not None else "(never started)"

    def restart(self) -> None:
        """Start it again after a crash, and release the Lease of the killed process.

        That saves the three seconds per point in which the Lease would expire; the tests of the Lease and the storm
        verify that it is taken over after it expires.
        """
        self.kill()
        self.lab.free_lease()
        self.start()


@dataclass(slots=True)
class Lab:
    """A cluster and what all reconcilers on it share."""

    cluster: Cluster
    account: Path
    _namespace_count: int = field(default=0)

    @contextmanager
    def reconciler(self, name: str, seed: int = 0) -> Iterator[Reconciler]:
        """A running reconciler."""
        with FaultProxy(self.cluster.server, self.cluster.ca_pem, seed=seed) as proxy:
            reconciler = Reconciler(self, name, proxy)
            reconciler.start()
            try:
                yield reconciler
            finally:
                reconciler.kill()
                self.free_lease()

    def namespace(self, word: str) -> LiveCluster:
        """A new namespace for one run of one scenario."""
        self._namespace_count += 1
        name = f"{word}-{self._namespace_count}"
        self.cluster.make_namespace(name)
        return LiveCluster(self.cluster, name)

    def free_lease(self) -> None:
        """Delete the Lease, if it exists."""
        try:
            self.cluster.api.delete(LEASE)
        except LocalApiError as error:
            if error.status != 404:
                raise


@contextmanager
def open_lab(
    config: Mapping[str, object] = CONFIG, nodes: int = 4, apiserver_args: tuple[str, ...] = ()
) -> Iterator[Lab]:
    """Start the cluster and install the chart; no process runs yet."""
    with Cluster.start(ClusterSpec(apiserver_args=apiserver_args)) as cluster:
        cluster.make_nodes(nodes)
        Pair.install(cluster, find_helm(), PairOptions(set_values=config))
        cluster.make_runtime_class()
        for kind in ("mutating", "validating"):
            cluster.kubectl("delete", f"{kind}webhookconfigurations", "--all")
        rbac = "/apis/rbac.authorization.k8s.io/v1"
        cluster.api.post(f"{rbac}/clusterroles", {"metadata": {"name": _ROLE}, "rules": _RULES})
        cluster.api.post(f"{rbac}/clusterrolebindings", _binding())
        cluster.wait_established(f"{names.PLURAL}.{names.GROUP}")
        yield Lab(cluster, cluster.service_account_kubeconfig(NAMESPACE, ACCOUNT))


def _binding() -> dict[str, Any]:
    return {
        "metadata": {"name": _ROLE},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": _ROLE},
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}],
    }
