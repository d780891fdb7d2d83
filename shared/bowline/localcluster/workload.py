"""Runs one of the chart's Deployments as a local process, as its ServiceAccount.

The Deployment is read from the API server, where the chart was installed with no replicas: its command, arguments,
environment and ConfigMaps are used (see `render`), with a token from a TokenRequest, so that the chart's permissions
and flags are tested. Not covered: the image, probes by a kubelet, resource limits and security contexts.
"""

import base64
import http.client
import os
import re
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bowline.localcluster.checkout import CHECKOUT
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.errors import LocalApiError, RenderError, StartError
from bowline.localcluster.flags import LOOPBACK
from bowline.localcluster.kubeconfig import access_flags
from bowline.localcluster.podsplace import pods_place
from bowline.localcluster.ports import free_port
from bowline.localcluster.process import STOP_TIMEOUT_S, Launch, Process
from bowline.localcluster.render import (
    Contents,
    Source,
    Surroundings,
    container_of,
    flag_value,
    plan_process,
    sources_of,
    wants_token,
)

LISTEN, METRICS_LISTEN, DEBUG_LISTEN = "--listen", "--metrics-listen", "--debug-listen"
# Only a failing start takes so long: a busy machine is slow.
_READY_TIMEOUT_S = 120.0
_ANSWER_TIMEOUT_S = 60.0
_POLL_S = 0.03
# What a process needs of this machine to run at all. Everything else must be in its object, so that a variable of the
# developer's shell has no effect.
_INHERITED = ("PATH", "LANG", "LC_ALL", "TMPDIR", "TZ", "LD_LIBRARY_PATH")


@dataclass(frozen=True, slots=True)
class WorkloadOptions:
    """What a caller adds to the rendered object.

    - `name`: of the process and its pod; required if one Deployment runs several times.
    - `listen`, `metrics_listen`: `host:port` in place of the rendered ones; a free port if empty.
    - `container`: required only if the pod has several.
    - `in_pod`: the ServiceAccount's files where a kubelet mounts them, instead of a kubeconfig; see `pods_place`.
    - `token_of`: the existing pod that the token is bound to, if the process represents one.
    """

    name: str = ""
    listen: str = ""
    metrics_listen: str = ""
    container: str | None = None
    extra_args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    in_pod: bool = False
    token_of: str = ""

    def with_listen(self, address: str) -> "WorkloadOptions":
        """Return the same options with this listening address."""
        return replace(self, listen=address)


class LocalProcess:
    """A running process of a workload, and its listening addresses (`host:port`, empty if none)."""

    def __init__(self, process: Process, listen: str, metrics: str, kubeconfig: Path | None, debug: str = "") -> None:
        self.process = process
        self.listen = listen
        self.metrics = metrics
        self.debug = debug
        self.kubeconfig = kubeconfig

    @property
    def name(self) -> str:
        """The name of process and pod."""
        return self.process.name

    @property
    def pid(self) -> int:
        """The id of the process itself, for measurements and signals."""
        return self.process.pid

    @property
    def log(self) -> Path:
        """Its output."""
        return self.process.log

    @property
    def returncode(self) -> int | None:
        """The exit status; None while it runs."""
        return self.process.returncode

    def stop(self, timeout: float = STOP_TIMEOUT_S) -> bool:
        """Stop it as a kubelet would; True if it ended within the timeout."""
        return self.process.stop(timeout)

    def kill(self) -> None:
        """Kill it without warning, as in a crash."""
        self.process.kill()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for its end; False after the timeout."""
        return self.process.wait(timeout)

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of a page on the metrics address."""
        return self._get(self.metrics, path)

    def get_debug(self) -> tuple[int, str]:
        """Status and body of the debug page."""
        return self._get(self.debug, "/debug")

    def wait_ready(self, timeout: float = _READY_TIMEOUT_S) -> None:
        """Return when /readyz answers 200. Raises StartError with the end of the log if it ends or takes too long."""
        deadline = time.monotonic() + timeout
        last = "no answer"
        while time.monotonic() < deadline:
            if not self.process.alive:
                raise StartError(f"{self.name} ended with {self.returncode}:\n{self.process.tail()}")
            try:
                status, body = self.get("/readyz")
            except (OSError, http.client.HTTPException) as error:
                last = type(error).__name__
            else:
                if status == 200:
                    return
                last = f"{status} {body.strip()}"
            time.sleep(_POLL_S)
        raise StartError(f"{self.name} is not ready after {timeout:.0f} s ({last}):\n{self.process.tail()}")

    def _get(self, address: str, path: str) -> tuple[int, str]:
        host, _, port = address.rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=_ANSWER_TIMEOUT_S)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode("utf-8", "replace")
        finally:
            connection.close()


def start_workload(
    cluster: Cluster, namespace: str, deployment: str, options: WorkloadOptions | None = None
) -> LocalProcess:
    """Start the process of a Deployment, without waiting for it; it ends with the cluster."""
    stored = cluster.api.get(f"/apis/apps/v1/namespaces/{namespace}/deployments/{deployment}")
    workload_options = options or WorkloadOptions()
    if not workload_options.name:
        # A Deployment's pods have a suffix; this one marks a process without a kubelet.
        workload_options = replace(workload_options, name=f"{deployment}-local")
    return start_pod(cluster, namespace, stored["spec"]["template"]["spec"], workload_options)


def start_pod(cluster: Cluster, namespace: str, spec: Mapping[str, Any], options: WorkloadOptions) -> LocalProcess:
    """Start the process of any pod spec, such as a chart's test hook. The options must give a name."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", options.name):
        raise RenderError(f"a process needs a name such as a pod's, not {options.name!r}")
    folder = cluster.layout.workloads / options.name
    # Files of an earlier process of this name may belong to another version of the object.
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o700)
    container = container_of(spec, options.container)
    flags = _addresses(container, options)
    listen, metrics = flags.get(LISTEN, ""), flags.get(METRICS_LISTEN, "")
    kubeconfig = None
    account = spec.get("serviceAccountName", "default")
    prefix, pod_env = pods_place(cluster, namespace, account, folder) if options.in_pod else ((), {})
    if wants_token(spec) and not prefix:
        kubeconfig = cluster.service_account_kubeconfig(
            namespace, account, folder / "kubeconfig", pod=options.token_of
        )
        flags |= access_flags(kubeconfig)
    surroundings = Surroundings(namespace, options.name, folder, sys.executable, flags, options.extra_args)
    plan = plan_process(spec, container, _contents(cluster, namespace, spec, container), surroundings)
    for path in plan.folders:
        path.mkdir(parents=True, exist_ok=True)
    for path, data in plan.files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_bytes(data)
    base = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    # A separate home excludes the developer's ~/.kube/config; unbuffered, so that a log is complete after a crash.
    base |= {"HOME": str(folder), "PYTHONUNBUFFERED": "1"}
    log = cluster.layout.logs / f"{options.name}.log"
    argv = (*prefix, *plan.argv)
    env = {**base, **pod_env, **plan.env, **options.env}
    launch = Launch(options.name, argv, log, CHECKOUT, env)
    return LocalProcess(cluster.run_process(launch), listen, metrics, kubeconfig, flags.get(DEBUG_LISTEN, ""))


def _addresses(container: Mapping[str, Any], options: WorkloadOptions) -> dict[str, str]:
    """Listening flags on loopback: the caller's, and a free port for those in the object."""
    words = [*(container.get("command") or []), *(container.get("args") or [])]
    flags: dict[str, str] = {}
    for flag, address in ((LISTEN, options.listen), (METRICS_LISTEN, options.metrics_listen), (DEBUG_LISTEN, "")):
        if address:
            flags[flag] = address
        elif flag_value(words, flag) is not None:
            flags[flag] = f"{LOOPBACK}:{free_port()}"
    return flags


def _contents(cluster: Cluster, namespace: str, spec: Mapping[str, Any], container: Mapping[str, Any]) -> Contents:
    return {source: _read(cluster, namespace, source) for source in sources_of(spec, container)}


def _read(cluster: Cluster, namespace: str, source: Source) -> dict[str, bytes] | None:
    """The data of a ConfigMap or Secret; None if it does not exist."""
    try:
        stored = cluster.api.get(f"/api/v1/namespaces/{namespace}/{source.kind}s/{source.name}")
    except LocalApiError as error:
        if error.status == 404:
            return None
        raise
    if source.kind == "secret":
        return {key: base64.b64decode(value) for key, value in (stored.get("data") or {}).items()}
    return {key: str(value).encode() for key, value in (stored.get("data") or {}).items()}
