"""The place where reconcilers are broken: a cluster with the chart, and reconciler processes each behind a proxy.

Unless a lab is asked for with it, no webhook runs and its configurations are taken away: what it would prepare at
creation (UID, finalizer) the reconciler then does itself, which are more writes and so more places to crash.
"""

import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localcluster.cluster import Cluster
from localcluster.errors import ApiError
from localcluster.helm import find_helm
from localcluster.pair import Pair, PairOptions
from localcluster.spec import ClusterSpec
from localcluster.workload import CHECKOUT, LocalProcess, WorkloadOptions, start_workload
from shared.api import names
from tests.fault_proxy.server import FaultProxy
from tests.faults.plugins.fault_effects import CLOCK
from tests.live import DEADLINE_S, POLL_S, LiveCluster

NAMESPACE = "bowline-system"
ACCOUNT = "bowline-reconciler"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{ACCOUNT}"
# Modules of the plugins: this folder's, and the examples of this checkout rather than of the one that is installed.
PLUGINS = f"{Path(__file__).parent / 'plugins'}:{CHECKOUT / 'examples' / 'plugins'}"
CONFIG: Mapping[str, object] = {
    "config.plugins": [{"name": "example_flaky"}, {"name": "fault_effects"}],
    "config.leaderElection": {"leaseDuration": "3s", "renewDeadline": "2s", "retryPeriod": "500ms"},
    "config.binding.backoff": {"base": "100ms", "max": "1s"},
    # As long as the API server takes for a request at most, a new leader waits before it undoes what its predecessor
    # may have bound. Every point would wait for it; none has a Binding under way when its sender is killed.
    "config.binding.inFlightTimeout": "500ms",
}
# With the plugins that are off by default and take part in a bind. The storm does without: they cost it reads.
PLUGINS_CONFIG: Mapping[str, object] = {
    **CONFIG,
    "config.plugins": [
        {"name": "hami_core"},
        {"name": "node_fit"},
        {"name": "example_flaky"},
        {"name": "fault_effects"},
    ],
    "config.gpuSharing": {"fakeGPUs": True},
}
# What the test plugin may do, beside what the chart grants.
_ROLE = "fault-effects"
_RULES = [
    {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "create", "delete"]},
    {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch"]},
]


@dataclass(slots=True)
class Reconciler:
    """One reconciler behind a proxy of its own: started, killed and started again under one name."""

    lab: "Lab"
    name: str
    proxy: FaultProxy
    process: LocalProcess | None = None

    @property
    def _folder(self) -> Path:
        folder = self.lab.cluster.data_dir / "faults"
        folder.mkdir(exist_ok=True)
        return folder

    @property
    def _clock(self) -> Path:
        return self._folder / f"{self.name}.clock"

    def set_clock(self, seconds: int) -> None:
        """Let the process's wall clock be off by so much from now on, also when it is started again."""
        # Renamed, not written: the process reads it at any time.
        new = self._clock.with_suffix(".new")
        new.write_text(str(seconds))
        new.replace(self._clock)

    def start(self) -> None:
        """Start the process; it is not waited for."""
        kubeconfig = self.proxy.kubeconfig(self.lab.account, self._folder / self.name)
        if not self._clock.exists():
            self.set_clock(0)
        self.process = start_workload(
            self.lab.cluster,
            NAMESPACE,
            ACCOUNT,
            WorkloadOptions(
                name=self.name,
                env={"PYTHONPATH": PLUGINS, CLOCK: str(self._clock)},
                extra_args=(f"--kubeconfig={kubeconfig}",),
            ),
        )

    def kill(self) -> None:
        """End the process as a crash does, and return when it is gone."""
        if self.process is not None:
            self.process.kill()

    def check(self) -> None:
        """Raise if the process has ended by itself."""
        if self.process is not None and self.process.returncode not in (None, -signal.SIGKILL):
            raise AssertionError(f"{self.name} has ended:\n{self.tail()}")

    def tail(self) -> str:
        """The end of its log, for a failure report."""
        return self.process.process.tail(30) if self.process is not None else "(never started)"

    def restart(self) -> None:
        """Start it anew after a crash, and free the Lease of the dead.

        That spares each point the three seconds in which the Lease runs out, in which nothing would happen; that it
        runs out and is taken then, the tests of the Lease and the storm show.
        """
        self.kill()
        self.lab.free_lease()
        self.start()


@dataclass(slots=True)
class Lab:
    """A cluster and what is common to all reconcilers on it."""

    cluster: Cluster
    pair: Pair
    account: Path
    _made: int = field(default=0)

    @contextmanager
    def reconciler(self, name: str, seed: int = 0) -> Iterator[Reconciler]:
        """A running reconciler."""
        with FaultProxy(self.cluster.server, self.cluster.ca_pem, seed=seed) as proxy:
            made = Reconciler(self, name, proxy)
            made.start()
            try:
                yield made
            finally:
                made.kill()
                self.free_lease()

    def webhook(self) -> LocalProcess:
        """The webhook, ready; started if it is not there or has been killed."""
        running = self.pair.webhook
        if running is None or running.returncode is not None:
            running = self.pair.launch_webhook(WorkloadOptions(env={"PYTHONPATH": PLUGINS}))
            running.wait_ready()
        return running

    def namespace(self, word: str) -> LiveCluster:
        """A namespace of its own, for one run of one scenario."""
        self._made += 1
        name = f"{word}-{self._made}"
        self.cluster.make_namespace(name)
        return LiveCluster(self.cluster, name)

    def free_lease(self) -> None:
        """Delete the Lease; one that is not there will do."""
        try:
            self.cluster.api.delete(LEASE)
        except ApiError as error:
            if error.status != 404:
                raise


@contextmanager
def open_lab(
    config: Mapping[str, object] = CONFIG,
    nodes: int = 4,
    apiserver_args: tuple[str, ...] = (),
    *,
    webhook: bool = False,
) -> Iterator[Lab]:
    """Start the cluster and install the chart; no process runs yet, but the webhook if it is asked for."""
    with Cluster.start(ClusterSpec(audit="Metadata", apiserver_args=apiserver_args)) as cluster:
        cluster.make_nodes(nodes)
        pair = Pair.install(cluster, find_helm(), PairOptions(set_values=config))
        if webhook:
            cluster.make_runtime_class()
        else:
            for kind in ("mutating", "validating"):
                cluster.kubectl("delete", f"{kind}webhookconfigurations", "--all")
        rbac = "/apis/rbac.authorization.k8s.io/v1"
        cluster.api.post(f"{rbac}/clusterroles", {"metadata": {"name": _ROLE}, "rules": _RULES})
        cluster.api.post(f"{rbac}/clusterrolebindings", _binding())
        _wait_served(cluster)
        lab = Lab(cluster, pair, cluster.service_account_kubeconfig(NAMESPACE, ACCOUNT))
        if webhook:
            lab.webhook()
        yield lab


def _wait_served(cluster: Cluster) -> None:
    """For a moment after a CRD is made, the API server answers lists of its kind with 429."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            cluster.api.get(f"/apis/{names.API_VERSION}/{names.PLURAL}")
        except ApiError:
            if time.monotonic() > deadline:
                raise
            time.sleep(POLL_S)
        else:
            return


def _binding() -> dict[str, Any]:
    return {
        "metadata": {"name": _ROLE},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": _ROLE},
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}],
    }
