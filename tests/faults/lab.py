"""The environment of the crash tests: a cluster with the chart, and reconciler processes, each behind a proxy.

No webhook runs, and its configurations are deleted: what it would prepare at creation (UID, finalizer), the
reconciler then does itself, which means more writes and so more points for crashes.
"""

import http.client
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bowline.api import names
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.errors import LocalApiError
from bowline.localcluster.helm import find_helm
from bowline.localcluster.kubeconfig import access_words
from bowline.localcluster.pair import Pair, PairOptions
from bowline.localcluster.spec import ClusterSpec
from bowline.localcluster.workload import LocalProcess, WorkloadOptions, start_workload
from bowline.testing.fault_proxy.server import FaultProxy
from tests.live import LiveCluster

NAMESPACE = "bowline-system"
ACCOUNT = "bowline-reconciler"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{ACCOUNT}"
CONFIG: Mapping[str, object] = {
    "config.leaderElection": {"leaseDuration": "3s", "renewDeadline": "2s", "retryPeriod": "500ms"},
    "config.binding.backoff": {"base": "100ms", "max": "1s"},
    # Before a rollback a new leader waits as long as the API server processes a request at most, because of its
    # predecessor's Bindings. Every point would wait for it; none has a Binding in flight when its sender is killed.
    "config.binding.inFlightTimeout": "500ms",
}


@dataclass(slots=True)
class Reconciler:
    """One reconciler behind its own proxy: started, killed and restarted under one name."""

    lab: "Lab"
    name: str
    proxy: FaultProxy
    process: LocalProcess | None = None

    def start(self) -> None:
        """Start the process without waiting for it."""
        folder = self.lab.cluster.data_dir / "faults"
        folder.mkdir(exist_ok=True)
        words = access_words(self.proxy.kubeconfig(self.lab.account, folder / self.name))
        options = WorkloadOptions(name=self.name, extra_args=words)
        self.process = start_workload(self.lab.cluster, NAMESPACE, ACCOUNT, options)

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

        That saves the three seconds per point in which the Lease would expire; the tests of the Lease verify that it
        is taken over after it expires.
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
    def reconciler(self, name: str) -> Iterator[Reconciler]:
        """A running reconciler."""
        with FaultProxy(self.cluster.server, self.cluster.ca_pem) as proxy:
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
def open_lab() -> Iterator[Lab]:
    """Start the cluster and install the chart; no process runs yet."""
    with Cluster.start(ClusterSpec(audit="Metadata")) as cluster:
        cluster.make_nodes(1)
        Pair.install(cluster, find_helm(), PairOptions(set_values=CONFIG))
        cluster.make_runtime_class()
        for kind in ("mutating", "validating"):
            cluster.kubectl("delete", f"{kind}webhookconfigurations", "--all")
        cluster.wait_established(f"{names.PLURAL}.{names.GROUP}")
        yield Lab(cluster, cluster.service_account_kubeconfig(NAMESPACE, ACCOUNT))


def is_leading(reconciler: Reconciler) -> bool:
    """Return whether the process leads."""
    if reconciler.process is None or reconciler.process.returncode is not None:
        return False
    try:
        _, page = reconciler.process.get("/metrics")
    except (OSError, http.client.HTTPException):
        return False  # the process is starting or has exited
    return "bowline_leader 1.0" in page
