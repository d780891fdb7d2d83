"""The API of a local cluster: start, kubectl, nodes, ServiceAccounts, stop.

    with Cluster.start() as cluster:
        cluster.make_nodes(4)
        cluster.kubectl("apply", "-f", "-", input=text)

Everything is synchronous: callers are tests, the demo and commands. Until `detach` the processes end with the program
that started them, even when it is killed; a failed start leaves nothing behind.
"""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from types import TracebackType
from typing import Any

from bowline.localcluster.api import ApiClient
from bowline.localcluster.assets.recipes import CLUSTER_TOOLS, Tool
from bowline.localcluster.assets.supply import Assets, ensure_assets
from bowline.localcluster.controlplane import ADMIN, ControlPlane, PortTakenError
from bowline.localcluster.errors import CommandError, LocalApiError, StartError
from bowline.localcluster.flags import Layout
from bowline.localcluster.kubeconfig import kubeconfig_text, token_user, write_private
from bowline.localcluster.nodes import node_object, runtime_class_object
from bowline.localcluster.process import Launch, Process, ProcessWatchdog
from bowline.localcluster.spec import ClusterSpec

_START_TRIES = 3
_KUBECTL_TIMEOUT_S = 120
# A token's lifetime, longer than any test or demo; for a process that outlives it the file must be rewritten.
_DAY_S = 24 * 3600
_POLL_S = 0.1


class Cluster:
    """A running control plane. Created by `start`; ended by `stop` or by leaving the `with` block."""

    def __init__(
        self, spec: ClusterSpec, assets: Assets, plane: ControlPlane, watchdog: ProcessWatchdog, ready_s: float
    ) -> None:
        self.spec = spec
        self.assets = assets
        self.started_in_s = ready_s
        self.api: ApiClient = plane.client()
        self._plane = plane
        self._watchdog = watchdog

    @classmethod
    def start(cls, spec: ClusterSpec | None = None, *, assets: Assets | None = None) -> "Cluster":
        """Start the processes and return when all of them are ready."""
        cluster_spec = spec or ClusterSpec()
        tools = (*CLUSTER_TOOLS, Tool.SCHEDULER) if cluster_spec.scheduler else CLUSTER_TOOLS
        tool_paths = assets or ensure_assets(tools, cluster_spec.kubernetes)
        began = time.monotonic()
        for attempt in range(1, _START_TRIES + 1):
            try:
                plane, watchdog = _start_once(cluster_spec, tool_paths)
            except PortTakenError:
                if attempt == _START_TRIES:
                    raise
            else:
                return cls(cluster_spec, tool_paths, plane, watchdog, time.monotonic() - began)
        raise AssertionError("the loop above returns or raises")

    @property
    def data_dir(self) -> Path:
        """The folder with all of the cluster's files."""
        return self._plane.layout.root

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig (system:masters: for set-up and inspection, never for the pair)."""
        return self._plane.layout.kubeconfig(ADMIN)

    @property
    def server(self) -> str:
        """The API server's URL."""
        return self._plane.server

    @property
    def ca_pem(self) -> bytes:
        """The CA certificate of the API server."""
        return self._plane.ca_pem

    def audit_lines(self) -> Iterator[str]:
        """The audit log so far, one JSON event per line; only with `audit` in the spec.

        Without a last line that the API server is writing.
        """
        with self._plane.layout.audit_log.open(encoding="utf-8") as lines:
            # Ends there: read on, the rest of that line would look complete.
            yield from takewhile(lambda line: line.endswith("\n"), lines)

    @property
    def layout(self) -> Layout:
        """The paths in the cluster's folder."""
        return self._plane.layout

    def process(self, name: str) -> Process:
        """A process by its name, such as `etcd`, `kube-apiserver` or a workload's."""
        return self._plane.processes[name]

    def api_as(self, user: str, **extra: str) -> ApiClient:
        """Return a client that impersonates another user: that user's permissions and policies apply.

        `extra` are further attributes of a token, by key (`pod_uid` for authentication.kubernetes.io/pod-uid).
        """
        headers = {"Impersonate-User": user}
        for key, value in extra.items():
            # A slash is not allowed in a header's name, so the key is percent-encoded.
            headers[f"Impersonate-Extra-authentication.kubernetes.io%2F{key.replace('_', '-')}"] = value
        return self._plane.client(headers=headers)

    def log_tails(self, lines: int = 20) -> str:
        """The end of every process's log, for a failure report."""
        parts = [f"--- {name} ({p.log})\n{p.tail(lines)}" for name, p in self._plane.processes.items()]
        return "\n".join(parts)

    def kubectl(
        self,
        *args: str,
        input: str | None = None,  # noqa: A002 - the name subprocess.run uses
        check: bool = True,
        kubeconfig: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run the cluster's kubectl, as the administrator unless another kubeconfig is given."""
        command = [str(self.assets.path(Tool.KUBECTL)), f"--kubeconfig={kubeconfig or self.kubeconfig}", *args]
        # A separate discovery cache: the user's may be of another cluster on the same port.
        environ = {**os.environ, "KUBECACHEDIR": str(self.data_dir / "kubectl-cache")}
        environ.pop("KUBECONFIG", None)
        result = subprocess.run(
            command,
            input=input,
            env=environ,
            capture_output=True,
            text=True,
            timeout=_KUBECTL_TIMEOUT_S,
            check=False,
        )
        if check and result.returncode != 0:
            raise CommandError(f"kubectl {' '.join(args)} ended with {result.returncode}: {result.stderr.strip()}")
        return result

    def make_nodes(
        self,
        count: int,
        gpus: int = 8,
        prefix: str = "gpu-node",
        labels: Mapping[str, str] | None = None,
        resources: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Create fake nodes `<prefix>-0` and up; existing ones are left unchanged."""
        names = [f"{prefix}-{index}" for index in range(count)]
        for name in names:
            self.create_missing("/api/v1/nodes", node_object(name, gpus, labels, resources))
        return names

    def make_runtime_class(self, name: str = "nvidia") -> None:
        """Create a RuntimeClass unless it exists."""
        self.create_missing("/apis/node.k8s.io/v1/runtimeclasses", runtime_class_object(name))

    def make_namespace(self, name: str) -> None:
        """Create a namespace unless it exists."""
        self.create_missing("/api/v1/namespaces", {"metadata": {"name": name}})

    def create_missing(self, path: str, body: Mapping[str, object]) -> None:
        """Create an object in the collection ``path``, unless it exists. Raises LocalApiError."""
        try:
            self.api.post(path, dict(body))
        except LocalApiError as error:
            if error.status != 409:
                raise

    def wait_established(self, crd: str, timeout: float = 120.0) -> None:
        """Return when the API server serves a CRD; `kubectl wait` fails while it has no conditions yet."""
        deadline = time.monotonic() + timeout
        while True:
            definition = self.api.get(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd}")
            conditions = (definition.get("status") or {}).get("conditions") or ()
            is_established = any(
                condition["type"] == "Established" and condition["status"] == "True" for condition in conditions
            )
            if is_established and self._serves(definition["spec"]):
                return
            if time.monotonic() > deadline:
                raise StartError(f"CRD {crd} is not served after {timeout:.0f} s: {conditions}")
            time.sleep(_POLL_S)

    def service_account_kubeconfig(self, namespace: str, name: str, path: Path | None = None, pod: str = "") -> Path:
        """Return a kubeconfig for a ServiceAccount, with a token from a TokenRequest in a file beside it.

        With `pod` the token is bound to the pod of that name, like one that a kubelet mounts: the API server derives
        the pod from it. Calling it again for the same path renews the token, which clients that re-read `tokenFile`
        then use.
        """
        target = path or self.data_dir / "tokens" / f"{namespace}.{name}.kubeconfig"
        spec: dict[str, Any] = {"expirationSeconds": _DAY_S}
        if pod:
            uid = self.api.get(f"/api/v1/namespaces/{namespace}/pods/{pod}")["metadata"]["uid"]
            spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid}
        reply = self.api.post(f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token", {"spec": spec})
        token_file = write_private(target.with_name(f"{target.name}.token"), reply["status"]["token"])
        return write_private(
            target, kubeconfig_text(self.server, self.layout.ca_file, token_user(token_file), namespace)
        )

    def while_stopped(self, work: Callable[[Path], object]) -> None:
        """Stop the API server and etcd, call ``work`` with etcd's data folder, and start them again.

        To copy the data, or to restore a copy.
        """
        self._plane.while_stopped(work)

    def stop_apiserver(self) -> None:
        """Stop the API server; everything else keeps running, and etcd keeps the data."""
        self._plane.stop_apiserver()

    def start_apiserver(self) -> None:
        """Start the API server again on the same port and wait until it is ready."""
        self._plane.start_apiserver()

    def run_process(self, launch: Launch) -> Process:
        """Start any process that must end with this cluster."""
        return self._plane.adopt(launch)

    def detach(self) -> None:
        """Keep everything running when this program ends; `python -m bowline.localcluster down` stops it."""
        self.api.close()
        self._watchdog.release()

    def stop(self) -> None:
        """End every process, the newest first, and remove a temporary data folder. Idempotent."""
        self.api.close()
        self._plane.stop()
        self._watchdog.close()
        if self.spec.data_dir is None:
            shutil.rmtree(self.data_dir, ignore_errors=True)

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _serves(self, crd: Mapping[str, Any]) -> bool:
        """Whether the objects of every served version can be found and listed: shortly after the CRD's condition.

        Without a limit the list is read from the API server's cache, as those of watches are, which replies 429 until
        it is filled. A list with a limit is read from etcd, earlier.
        """
        versions = [version["name"] for version in crd["versions"] if version["served"]]
        plural = crd["names"]["plural"]
        try:
            for version in versions:
                path = f"/apis/{crd['group']}/{version}"
                resources = [resource["name"] for resource in self.api.get(path)["resources"]]
                if plural not in resources:
                    return False
                self.api.get(f"{path}/{plural}")
        except LocalApiError as error:
            if error.status not in (404, 429):
                raise
            return False
        return True


def _start_once(spec: ClusterSpec, assets: Assets) -> tuple[ControlPlane, ProcessWatchdog]:
    """One attempt with one set of ports; leaves nothing behind when it fails."""
    root = Path(tempfile.mkdtemp(prefix="bowline-")) if spec.data_dir is None else spec.data_dir.absolute()
    layout = Layout(root)
    _refuse_used(layout)
    watchdog = ProcessWatchdog()
    if spec.data_dir is None:
        watchdog.remove_at_end(root)
    plane = ControlPlane(spec, layout, assets, watchdog)
    try:
        plane.prepare()
        plane.start()
    except BaseException:
        # Also on Ctrl-C: a partially started cluster is unusable.
        plane.stop()
        watchdog.close()
        if spec.data_dir is None:
            shutil.rmtree(root, ignore_errors=True)
        raise
    return plane, watchdog


def _refuse_used(layout: Layout) -> None:
    """Two control planes on one folder would destroy each other's data; old data belongs to other keys."""
    if layout.state.exists():
        raise StartError(
            f"{layout.root} already holds a cluster; `python -m bowline.localcluster down` ends and removes it"
        )
    shutil.rmtree(layout.etcd, ignore_errors=True)
