"""The chart installed on a local cluster, and webhook and reconciler running from its objects.

The chart is installed first, because the processes are started from its objects. Until the webhook runs, the webhook
configurations refer to an address without a listener, so no object that they cover may be created.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bowline.localcluster.checkout import CHECKOUT
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.flags import LOOPBACK
from bowline.localcluster.helm import ChartRelease, Helm
from bowline.localcluster.ports import free_port
from bowline.localcluster.workload import LocalProcess, WorkloadOptions, start_workload

# The wheel has it in the package.
_PACKAGED = Path(__file__).resolve().parents[1] / "chart"
CHART = _PACKAGED if _PACKAGED.is_dir() else CHECKOUT / "charts" / "bowline"
# For a cluster without kubelets: the chart's processes are started beside it.
LOCAL_VALUES = Path(__file__).with_name("values.yaml")


@dataclass(frozen=True, slots=True)
class PairOptions:
    """How the chart is installed. `set_values` are added to the local values, by dotted name."""

    release: str = "bowline"
    namespace: str = "bowline-system"
    chart: Path = CHART
    values_files: Sequence[Path] = (LOCAL_VALUES,)
    set_values: Mapping[str, object] = field(default_factory=dict)


class Pair:
    """The installed chart and the processes started from it."""

    def __init__(self, cluster: Cluster, helm: Helm, options: PairOptions) -> None:
        self.options = options
        self.webhook: LocalProcess | None = None
        self.reconcilers: list[LocalProcess] = []
        self._cluster = cluster
        self._helm = helm
        # Chosen once: the webhook configurations contain it, also while the webhook is stopped.
        self._webhook_address = f"{LOOPBACK}:{free_port()}"

    @classmethod
    def install(cls, cluster: Cluster, helm: Helm, options: PairOptions | None = None) -> "Pair":
        """Install the chart; no process is started yet."""
        pair = cls(cluster, helm, options or PairOptions())
        pair.upgrade()
        return pair

    def upgrade(self, set_values: Mapping[str, object] | None = None) -> str:
        """Install the chart, or upgrade it with further values; return Helm's notes.

        Running processes keep their original configuration, as pods would until they are replaced.
        """
        if set_values:
            self.options = replace(self.options, set_values={**self.options.set_values, **set_values})
        values = {"webhook.url": f"https://{self._webhook_address}", **self.options.set_values}
        release = ChartRelease(
            self.options.release, self.options.chart, self.options.namespace, self.options.values_files, values
        )
        return self._helm.upgrade_install(release, self._cluster.kubeconfig)

    def start(self, options: WorkloadOptions | None = None) -> None:
        """Start webhook and reconciler, both with these options, and wait until both are ready."""
        webhook, reconciler = self.launch_webhook(options), self.launch_reconciler(options)
        webhook.wait_ready()
        reconciler.wait_ready()

    def launch_webhook(self, options: WorkloadOptions | None = None) -> LocalProcess:
        """Start the webhook at the address in the webhook configurations, without waiting for it."""
        workload_options = options or WorkloadOptions()
        self.webhook = self._launch("webhook", workload_options.with_listen(self._webhook_address))
        return self.webhook

    def launch_reconciler(self, options: WorkloadOptions | None = None) -> LocalProcess:
        """Start a reconciler, without waiting for it; a second one needs a name of its own."""
        process = self._launch("reconciler", options or WorkloadOptions())
        self.reconcilers = [reconciler for reconciler in self.reconcilers if reconciler.name != process.name] + [
            process
        ]
        return process

    def stop(self) -> None:
        """End the processes; the chart stays installed."""
        for process in reversed([*([self.webhook] if self.webhook else []), *self.reconcilers]):
            process.stop()

    def uninstall(self) -> str:
        """Remove the chart from the cluster; return Helm's output."""
        return self._helm.uninstall(self.options.release, self.options.namespace, self._cluster.kubeconfig)

    def _launch(self, component: str, options: WorkloadOptions) -> LocalProcess:
        deployment = f"{self.options.release}-{component}"
        return start_workload(self._cluster, self.options.namespace, deployment, options)
