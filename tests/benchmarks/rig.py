"""The environment of a benchmark of binding: a control plane without kubelets or controllers, and the reconciler.

Fair to both sides: the bare client has the reconciler's ServiceAccount, client code and request bodies; there are no
other writes. The chart's webhook configurations are removed, because admission is not measured here.
"""

import asyncio
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from io import BytesIO
from pathlib import Path

from bowline.kube.client import ClientOptions, KubeClient
from bowline.kube.config import load_access
from bowline.localcluster.checkout import CHECKOUT
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.helm import Helm, find_helm
from bowline.localcluster.kubeconfig import api_server
from bowline.localcluster.pair import Pair, PairOptions
from bowline.localcluster.scheduler import SCHEDULER
from bowline.localcluster.spec import ClusterSpec
from bowline.localcluster.workload import LocalProcess, WorkloadOptions

NAMESPACE = "bench"
READY_S = 120.0
# Of which of two versions a figure is.
HERE, OTHER = "this checkout", "other checkout"
# Of both checkouts, whose default schedulers may differ.
VALUES = {"log.level": "warning", "config.schedulerNames": [SCHEDULER]}
POLL_S = 0.1
FINISHED, SUCCEEDED = "bowline_requests_finished_total", 'reason="Succeeded"}'


class Rig:
    """A control plane with the chart installed; reconcilers are started and stopped by the benchmark."""

    def __init__(self, cluster: Cluster, helm: Helm, pair: Pair, account: Path) -> None:
        self.cluster = cluster
        self._helm = helm
        self._pair = pair
        self._account = account

    @property
    def servers(self) -> dict[str, int]:
        """The processes that everything else depends on, by name."""
        return {name: self.cluster.process(name).pid for name in ("kube-apiserver", "etcd")}

    async def client(self) -> KubeClient:
        """The administrator's client, for preparations."""
        return KubeClient(load_access(api_server(self.cluster.kubeconfig)), ClientOptions(name="bench"))

    async def bare(self) -> KubeClient:
        """A bare client with the reconciler's rights: the ceiling is measured with it."""
        return KubeClient(load_access(api_server(self._account)), ClientOptions(name="bench"))

    @contextmanager
    def reconciler(
        self, *, name: str = "", in_pod: bool = False, checkout: Path | None = None
    ) -> Iterator[LocalProcess]:
        """Run the chart's reconciler until the block ends.

        ``name``: of one beside another; ``in_pod``: as in a pod; ``checkout``: another checkout's code, from the
        objects of its own chart.
        """
        pair, options = self._pair, WorkloadOptions(name, in_pod=in_pod)
        if checkout is not None:
            pair, options = self._of_checkout(checkout, options)
        pair.upgrade({})
        _without_admission(self.cluster)
        process = pair.launch_reconciler(options)
        try:
            yield process
        finally:
            process.stop(60)

    def _of_checkout(self, checkout: Path, options: WorkloadOptions) -> tuple[Pair, WorkloadOptions]:
        """Return the release with another checkout's chart, and the options with its code."""
        roots = source_roots(checkout)
        chart = PairOptions(
            chart=checkout / "charts" / "bowline",
            values_files=(roots[0] / "bowline/localcluster/values.yaml",),
            set_values=self._pair.options.set_values,
        )
        env = {"PYTHONPATH": os.pathsep.join(map(str, roots)), "PYTHONSAFEPATH": "1"}
        return Pair(self.cluster, self._helm, chart), replace(options, env=env)


def source_roots(checkout: Path) -> Sequence[Path]:
    """Return the folders of a checkout's code. Raises FileNotFoundError before the present layout."""
    roots = [checkout / root for root in ("shared", "webhook", "reconciler", "cli")]
    if not (roots[0] / "bowline").is_dir():
        raise FileNotFoundError(f"{checkout} has no shared/bowline: its packages have other names")
    return roots


@contextmanager
def checkout_of(commit: str) -> Iterator[Path]:
    """Make a folder with the files of a commit until the block ends. Raises CalledProcessError for an unknown one."""
    archive = subprocess.run(["git", "archive", commit], cwd=CHECKOUT, stdout=subprocess.PIPE, check=True).stdout
    with tempfile.TemporaryDirectory(prefix="bowline-base-") as folder:
        with tarfile.open(fileobj=BytesIO(archive)) as files:
            files.extractall(folder, filter="data")
        # As this checkout's code is: otherwise its first start would compile it.
        subprocess.run([sys.executable, "-m", "compileall", "-q", *source_roots(Path(folder))], check=True)
        yield Path(folder)


@contextmanager
def rig(nodes: int, spec: ClusterSpec | None = None) -> Iterator[Rig]:
    """Start everything; stopped at the end of the block."""
    with Cluster.start(spec or ClusterSpec(kwok=False, controllers=())) as cluster:
        cluster.make_nodes(nodes)
        helm = find_helm()
        pair = Pair.install(cluster, helm, PairOptions(set_values=VALUES))
        _without_admission(cluster)
        cluster.make_namespace(NAMESPACE)
        account = cluster.service_account_kubeconfig(pair.options.namespace, f"{pair.options.release}-reconciler")
        yield Rig(cluster, helm, pair, account)


def _without_admission(cluster: Cluster) -> None:
    for kind in ("mutatingwebhookconfiguration", "validatingwebhookconfiguration"):
        cluster.kubectl("delete", kind, "--all")


async def succeeded(process: LocalProcess) -> int:
    """The number of requests that the reconciler reports as Succeeded since it started."""
    status, text = await asyncio.to_thread(process.get, f"/metrics?name[]={FINISHED}")
    if status != 200:
        raise RuntimeError(f"/metrics answered {status}")
    # Whatever labels another version has before it.
    line = next(line for line in text.splitlines() if line.startswith(FINISHED) and SUCCEEDED in line)
    return int(float(line.rsplit(" ", 1)[1]))


def resident_mb(pid: int, field: str = "VmRSS") -> float:
    """Resident memory of a process, in MB of 10^6 bytes; of field ``VmHWM`` its peak."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError(f"the process has no {field}")
