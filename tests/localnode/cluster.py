"""A cluster with one real node, used like any other local cluster.

    with start_node_cluster() as node:
        node.cluster.kubectl("apply", "-f", "-", input=text)

The API server listens inside the node's network namespace; a forwarder makes it reachable on the host's loopback
address, so kubeconfigs work on both sides.
"""

import json
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bowline.localcluster.api import ApiClient
from bowline.localcluster.assets.cache import cache_root
from bowline.localcluster.assets.progress import Progress
from bowline.localcluster.assets.recipes import CLUSTER_TOOLS, NODE_TOOLS, Tool
from bowline.localcluster.assets.supply import Assets, ensure_assets
from bowline.localcluster.certs import Identity, write_pair
from bowline.localcluster.checkout import CHECKOUT
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.controlplane import ADMIN, ControlPlane
from bowline.localcluster.errors import LocalApiError, LocalClusterError, StartError
from bowline.localcluster.flags import Layout, apiserver_args, controller_manager_args, etcd_args, scheduler_args
from bowline.localcluster.helm import ChartRelease, find_helm
from bowline.localcluster.pair import CHART
from bowline.localcluster.process import Launch, Process, ProcessWatchdog
from bowline.localcluster.spec import ClusterSpec
from tests.localnode.host import CNI_PLUGINS, cni_folder, missing_part
from tests.localnode.images import Images
from tests.localnode.programs import Programs, build_programs
from tests.localnode.settings import (
    NODE_ADDRESS,
    NODE_NAME,
    NodeLayout,
    apiserver_additions,
    cni_text,
    containerd_text,
    kubelet_args,
    kubelet_text,
    nvidia_runtime_text,
    proxy_text,
)

TOOLS = (*(tool for tool in CLUSTER_TOOLS if tool is not Tool.KWOK), Tool.SCHEDULER, *NODE_TOOLS)
RELEASE = "bowline"
NAMESPACE = "bowline-system"
IMAGE_VALUES = {"image.registry": "localhost", "image.repository": "bowline", "image.tag": "node"}
_NODE_PROCESS = "node"
_START_S = 180.0
# Kubernetes' own names of kubelets and their group, required by the Node authorizer.
_IDENTITIES = {
    "kubelet": Identity(f"system:node:{NODE_NAME}", ("system:nodes",)),
    "kube-proxy": Identity("system:kube-proxy"),
}


@dataclass(frozen=True, slots=True)
class NodeCluster:
    """A running cluster with one node. Ending the process `boundary` ends everything."""

    cluster: Cluster
    layout: NodeLayout
    boundary: Process

    def control(self, command: str) -> None:
        """Send a command of `boot`, such as `kill kubelet` or `start kubelet`, and wait for its result.

        Raises LocalClusterError if it fails.
        """
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(60)
            connection.connect(str(self.layout.control_socket))
            connection.sendall(f"{command}\n".encode())
            answer = connection.makefile().readline().strip()
        if answer != "done":
            raise LocalClusterError(f"node command {command!r}: {answer or 'no answer'}")


@contextmanager
def start_node_cluster(spec: ClusterSpec | None = None, gpus: int = 4) -> Iterator[NodeCluster]:
    """Start a cluster with one node of `gpus` fake GPUs; it ends with the block."""
    node = launch_node_cluster(spec or node_spec(), gpus)
    try:
        yield node
    finally:
        node.cluster.stop()


def node_spec(kubernetes: str | None = None, data_dir: Path | None = None) -> ClusterSpec:
    """Return the control plane that a node needs: all controllers, kube-scheduler, no kwok."""
    return ClusterSpec(
        kubernetes=kubernetes,
        data_dir=data_dir,
        controllers=("*",),
        kwok=False,
        scheduler=True,
        service_account_admission=True,
    )


def launch_node_cluster(spec: ClusterSpec, gpus: int) -> NodeCluster:
    """Start everything and wait until the node is Ready with its GPUs. Raises StartError with the end of the logs."""
    reason = missing_part()
    if reason is not None:
        raise StartError(reason)
    assets, programs, archives = supply(spec.kubernetes, Progress())
    root = Path(tempfile.mkdtemp(prefix="bowline-node-")) if spec.data_dir is None else spec.data_dir.absolute()
    watchdog = ProcessWatchdog()
    if spec.data_dir is None:
        watchdog.remove_at_end(root)
    plane = ControlPlane(spec, Layout(root), assets, watchdog)
    began = time.monotonic()
    try:
        _prepare(plane, assets, programs, archives, gpus)
        watchdog.remove_cgroups(Layout(root).cgroups)
        argv = [sys.executable, "-m", "tests.localnode.enter", str(root), str(plane.ports.apiserver)]
        boundary = plane.adopt(Launch(_NODE_PROCESS, argv, plane.layout.logs / "node.log", cwd=CHECKOUT))
        _wait_ready(plane, boundary, gpus)
    except BaseException:
        plane.stop()
        watchdog.close()
        if spec.data_dir is None:
            shutil.rmtree(root, ignore_errors=True)
        raise
    cluster = Cluster(spec, assets, plane, watchdog, time.monotonic() - began)
    return NodeCluster(cluster, NodeLayout(root), boundary)


def supply(kubernetes: str | None, progress: Progress) -> tuple[Assets, Programs, list[Path]]:
    """Return binaries, programs and image archives, built if not cached. Raises AssetsError."""
    assets = ensure_assets(TOOLS, kubernetes, progress=progress)
    cache = cache_root(os.environ)
    programs = build_programs(cache, progress)
    return assets, programs, Images(cache, programs.pause, progress).archives()


def install_chart(node: NodeCluster, values: Mapping[str, object] | None = None) -> str:
    """Install the chart with the node's image and wait until its Deployments are available. Returns Helm's notes."""
    cluster = node.cluster
    cluster.make_runtime_class()
    release = ChartRelease(RELEASE, CHART, NAMESPACE, set_values={**IMAGE_VALUES, **(values or {})})
    notes = find_helm().upgrade_install(release, cluster.kubeconfig)
    for component in ("webhook", "reconciler"):
        deployment = f"deployment/{RELEASE}-{component}"
        cluster.kubectl("rollout", "status", deployment, f"--namespace={NAMESPACE}", "--timeout=180s")
    return notes


def _prepare(plane: ControlPlane, assets: Assets, programs: Programs, archives: list[Path], gpus: int) -> None:
    """Write all files that `boot` reads."""
    layout, node = plane.layout, NodeLayout(plane.layout.root)
    authority = plane.prepare((NODE_ADDRESS,), _IDENTITIES)
    write_pair(layout.pki, "kubelet-serving", authority.server((NODE_NAME,), (NODE_ADDRESS,)))
    (node.folder / "cni").mkdir(parents=True)
    (node.folder / "cni" / "10-pods.conflist").write_text(cni_text(node))
    plugins = cni_folder()
    if plugins is None:
        raise StartError(f"not installed: {', '.join(CNI_PLUGINS)}; install the package containernetworking-plugins")
    (node.folder / "containerd.toml").write_text(containerd_text(node, plugins))
    node.cdi_specs.mkdir()
    node.nvidia_runtime.write_text(nvidia_runtime_text(node))
    node.nvidia_runtime.chmod(0o755)
    (node.folder / "kubelet.json").write_text(kubelet_text(node, layout))
    (node.folder / "kube-proxy.json").write_text(proxy_text(layout))
    node.plan.write_text(json.dumps(_plan(plane, assets, programs, archives, gpus)))


def _plan(
    plane: ControlPlane, assets: Assets, programs: Programs, archives: list[Path], gpus: int
) -> dict[str, object]:
    """Return the command lines of all processes, in the order of their start."""
    spec, layout, ports = plane.spec, plane.layout, plane.ports
    node = NodeLayout(layout.root)
    kubelet = [str(assets.path(Tool.KUBELET)), *kubelet_args(node, layout)]
    fake_gpu = [str(programs.fake_gpu), f"-devices={gpus}", f"-nvml={programs.nvml}", f"-by-cdi={node.by_cdi}"]
    kubeconfig = layout.kubeconfig(ADMIN)
    claims = [str(programs.fake_gpu), "-dra", f"-devices={gpus}", f"-kubeconfig={kubeconfig}", f"-node={NODE_NAME}"]
    server = [*apiserver_args(spec, layout, ports), *apiserver_additions(layout)]
    # containerd starts the first shim in PATH.
    path = f"PATH={assets.path(Tool.CONTAINERD_SHIM).parent}:{os.environ['PATH']}"
    containerd = ["env", path, str(assets.path(Tool.CONTAINERD)), "--config", str(node.folder / "containerd.toml")]
    return {
        "ctr": [str(assets.path(Tool.CTR)), "--address", str(node.containerd_socket)],
        "kubectl": [str(assets.path(Tool.KUBECTL)), f"--kubeconfig={kubeconfig}"],
        "images": [str(archive) for archive in archives],
        "processes": {
            "etcd": [str(assets.path(Tool.ETCD)), *etcd_args(layout)],
            "kube-apiserver": [str(assets.path(Tool.APISERVER)), *server],
            "containerd": containerd,
            "kube-controller-manager": [
                str(assets.path(Tool.CONTROLLER_MANAGER)),
                *controller_manager_args(spec, layout),
                f"--service-account-private-key-file={layout.pki / 'service-account.key'}",
            ],
            "kube-scheduler": [str(assets.path(Tool.SCHEDULER)), *scheduler_args(spec, layout)],
            "kube-proxy": [str(assets.path(Tool.KUBE_PROXY)), f"--config={node.folder / 'kube-proxy.json'}"],
            "kubelet": kubelet,
            "fakegpu": fake_gpu,
            "fakegpu-dra": claims,
        },
    }


def _wait_ready(plane: ControlPlane, boundary: Process, gpus: int) -> None:
    """Wait until the node is Ready and its device plugin has registered."""
    node = NodeLayout(plane.layout.root)
    client = plane.client()
    deadline = time.monotonic() + _START_S
    last = "no answer yet"
    try:
        while time.monotonic() < deadline:
            if node.failure_report.exists():
                raise StartError(f"the node could not be started:\n{node.failure_report.read_text()}")
            if not boundary.alive:
                raise StartError(f"the node ended; end of {boundary.log}:\n{boundary.tail()}")
            if node.ready.exists():
                last = _not_ready(client, gpus)
                if not last:
                    return
            time.sleep(0.1)
    finally:
        client.close()
    raise StartError(f"the node is not ready after {_START_S:g} s ({last}):\n{boundary.tail()}")


def _not_ready(client: ApiClient, gpus: int) -> str:
    """Return the node's not-ready reason; empty if it is ready."""
    try:
        status = client.get(f"/api/v1/nodes/{NODE_NAME}")["status"]
    except (LocalApiError, OSError) as error:
        return str(error)
    ready = next((c for c in status.get("conditions", ()) if c["type"] == "Ready"), {"status": "Unknown"})
    if ready["status"] != "True":
        return f"Ready={ready['status']}: {ready.get('message', '')}"
    registered_gpus = status.get("allocatable", {}).get("nvidia.com/gpu", "0")
    return "" if registered_gpus == str(gpus) else f"{registered_gpus} of {gpus} GPUs are registered"
