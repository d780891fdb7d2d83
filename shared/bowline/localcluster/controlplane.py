"""The control plane's processes: prepare the folder, start in order, wait until each is ready.

Order and reason: etcd first, because the API server exits without it; then the API server, until /readyz, which
includes the RBAC roles it creates; then the controllers and kwok, which need those roles. A controller
fills the roles `view`, `edit` and `admin`; a start waits for that too.

This module covers processes and readiness; the API for users of a cluster is in `cluster`.
"""

import http.client
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from bowline.localcluster.api import ApiClient
from bowline.localcluster.assets.recipes import Tool
from bowline.localcluster.assets.supply import Assets
from bowline.localcluster.certs import SERVING_NAMES, Identity, LocalAuthority, service_account_keys, write_pair
from bowline.localcluster.errors import LocalApiError, LocalClusterError, StartError
from bowline.localcluster.flags import (
    LOOPBACK,
    Layout,
    Ports,
    apiserver_args,
    audit_policy_text,
    controller_manager_args,
    etcd_args,
    kwok_args,
    kwok_config_text,
    scheduler_args,
)
from bowline.localcluster.kubeconfig import certificate_user, kubeconfig_text, token_user, write_private
from bowline.localcluster.ports import free_ports, reports_port_taken
from bowline.localcluster.process import Launch, Process, ProcessWatchdog
from bowline.localcluster.spec import ClusterSpec
from bowline.localcluster.state import save_state, state_of

_POLL_S = 0.03
_READY_TIMEOUT_S = 120.0
# Short, because on a port taken by another program the connection may never be answered.
_PROBE_TIMEOUT_S = 3.0
# Capacity of a unix socket's address, without its terminating zero.
_LONGEST_SOCKET = 107
_RBAC = "rbac.authorization.k8s.io"
_AGGREGATION = "clusterrole-aggregation-controller"
# Each includes the one before it.
_AGGREGATED = ("view", "edit", "admin")
_STAGES = Path(__file__).with_name("kwok_stages.yaml")
# With open watches the API server takes a minute to end by itself; meanwhile it answers 503 with Retry-After. To
# clients a restart is that, then broken connections.
_APISERVER_GRACE_S = 1.0

ADMIN = "admin"
# Their data is discarded. `node` is the process around a whole node (tests.localnode).
_ABRUPT = (Tool.ETCD, Tool.APISERVER, Tool.CONTROLLER_MANAGER, Tool.SCHEDULER, Tool.KWOK, "node")
_IDENTITIES = {
    # The administrator bypasses RBAC and rate limits: for set-up and inspection, never for Bowline's pair.
    ADMIN: Identity("bowline-local-admin", ("system:masters",)),
    "kube-controller-manager": Identity("system:kube-controller-manager"),
    "kube-scheduler": Identity("system:kube-scheduler"),
    "kwok": Identity("bowline-local-kwok"),
}
_KWOK_RULES = (
    {"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["patch", "update", "delete"]},
    {"apiGroups": [""], "resources": ["nodes/status", "pods/status"], "verbs": ["patch", "update"]},
    {"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch", "update"]},
)


class PortTakenError(StartError):
    """Another program took a port between its selection and its use; retry with other ports."""


class ControlPlane:
    """The running processes of one cluster, by name, in the order in which they were started."""

    def __init__(self, spec: ClusterSpec, layout: Layout, assets: Assets, watchdog: ProcessWatchdog) -> None:
        self.spec = spec
        self.layout = layout
        self.ports = Ports(*free_ports(2))
        self.processes: dict[str, Process] = {}
        self.ca_pem = b""
        self._assets = assets
        self._watchdog = watchdog

    @property
    def server(self) -> str:
        """The API server's URL."""
        return f"https://{LOOPBACK}:{self.ports.apiserver}"

    def client(self, timeout_s: float = 30.0, headers: Mapping[str, str] | None = None) -> ApiClient:
        """A client of the administrator."""
        pki = self.layout.pki
        certificate, key = pki / f"{ADMIN}.crt", pki / f"{ADMIN}.key"
        return ApiClient(
            self.ports.apiserver, self.layout.ca_file, certificate, key, timeout_s=timeout_s, headers=headers
        )

    def prepare(
        self, addresses: Sequence[str] = (), identities: Mapping[str, Identity] | None = None
    ) -> LocalAuthority:
        """Write certificates, kubeconfigs and configuration files.

        addresses: additional IP addresses of the API server. identities: additional clients, by the name of their
        kubeconfig. Returns the CA, for certificates that only the caller needs.
        """
        for folder in (self.layout.pki, self.layout.logs, self.layout.workloads):
            folder.mkdir(parents=True, exist_ok=True)
        self.layout.root.chmod(0o700)
        longest = self.layout.etcd_socket.with_name("etcd-peer.sock")
        if len(os.fsencode(longest)) > _LONGEST_SOCKET:
            raise StartError(
                f"{longest} is too long for a socket ({_LONGEST_SOCKET} bytes); choose a shorter data folder"
            )
        authority = LocalAuthority()
        self.ca_pem = authority.pem
        self.layout.ca_file.write_bytes(authority.pem)
        write_pair(self.layout.pki, "apiserver", authority.server(SERVING_NAMES, (LOOPBACK, "10.0.0.1", *addresses)))
        write_pair(self.layout.pki, "service-account", service_account_keys())
        for name, identity in {**_IDENTITIES, **(identities or {})}.items():
            pair = authority.client(identity)
            write_pair(self.layout.pki, name, pair)
            user = token_user(self._write_token(identity)) if name == ADMIN else certificate_user(pair)
            write_private(self.layout.kubeconfig(name), kubeconfig_text(self.server, self.layout.ca_file, user))
        self.layout.kwok_config.write_text(kwok_config_text(_STAGES.read_text()))
        if self.spec.audit is not None:
            self.layout.audit_policy.write_text(audit_policy_text(self.spec.audit))
        return authority

    def _write_token(self, identity: Identity) -> Path:
        """Give an identity a static token; returns the token's file."""
        token, user, groups = secrets.token_urlsafe(32), identity.user, ",".join(identity.groups)
        write_private(self.layout.tokens, f'{token},{user},{user},"{groups}"\n')
        return write_private(self.layout.pki / f"{user}.token", token)

    def start(self) -> None:
        """Start everything in the spec and wait until it is ready."""
        self.run(Tool.ETCD, etcd_args(self.layout))
        self._until_ready(Tool.ETCD, self._etcd_answers)
        self.start_apiserver()
        if self.spec.controllers:
            self.run(Tool.CONTROLLER_MANAGER, controller_manager_args(self.spec, self.layout))
            if _AGGREGATION in self.spec.controllers:
                self._wait_for_roles()
        if self.spec.scheduler:
            self.run(Tool.SCHEDULER, scheduler_args(self.spec, self.layout))
        if self.spec.kwok:
            self._allow_kwok()
            self.run(Tool.KWOK, kwok_args(self.layout, self.ports))
            self._until_ready(Tool.KWOK, self._kwok_answers)
        for name in self.processes:
            self._check_running(name)

    def start_apiserver(self) -> None:
        """Start the API server on its port and wait for /readyz; also after it was stopped."""
        self.run(Tool.APISERVER, apiserver_args(self.spec, self.layout, self.ports))
        client = self.client(_PROBE_TIMEOUT_S)
        try:
            self._until_ready(Tool.APISERVER, lambda: client.get("/readyz") == "ok")
        finally:
            client.close()

    def stop_apiserver(self) -> None:
        """Stop the API server; etcd keeps its data."""
        process = self.processes[Tool.APISERVER]
        process.stop(_APISERVER_GRACE_S)
        self._watchdog.forget(process)

    def while_stopped(self, work: Callable[[Path], object]) -> None:
        """Stop the API server and etcd, call ``work`` with etcd's data folder, and start them again."""
        self.stop_apiserver()
        self.processes.pop(Tool.ETCD).stop()
        work(self.layout.etcd)
        self.run(Tool.ETCD, etcd_args(self.layout))
        self._until_ready(Tool.ETCD, self._etcd_answers)
        self.start_apiserver()

    def run(self, tool: Tool, args: list[str]) -> Process:
        """Start one of the supplied binaries."""
        argv = [str(self._assets.path(tool)), *args]
        # kwok always loads ~/.kwok/kwok.yaml in addition to --config; a separate home excludes it.
        env = {**os.environ, "HOME": str(self.layout.root)} if tool is Tool.KWOK else None
        return self.adopt(Launch(tool, argv, self.layout.logs / f"{tool}.log", env=env))

    def adopt(self, launch: Launch) -> Process:
        """Start any process that must end with this cluster."""
        process = Process.start(launch)
        self.processes[launch.name] = process
        self._watchdog.watch(process)
        kubectl = self._assets.path(Tool.KUBECTL)
        save_state(self.layout.state, state_of(self.server, kubectl, self.processes.values()))
        return process

    def stop(self) -> None:
        """End everything, the newest first; processes whose data is discarded are killed without a grace period."""
        abrupt = self.spec.data_dir is None
        for name, process in reversed(self.processes.items()):
            if abrupt and name in _ABRUPT:
                process.kill()
            else:
                process.stop()
            self._watchdog.forget(process)
        self.processes.clear()
        self.layout.state.unlink(missing_ok=True)

    def _allow_kwok(self) -> None:
        name = _IDENTITIES["kwok"].user
        subject = {"apiGroup": _RBAC, "kind": "User", "name": name}
        role = {"apiGroup": _RBAC, "kind": "ClusterRole", "name": name}
        client = self.client()
        try:
            client.post(f"/apis/{_RBAC}/v1/clusterroles", {"metadata": {"name": name}, "rules": list(_KWOK_RULES)})
            client.post(
                f"/apis/{_RBAC}/v1/clusterrolebindings",
                {"metadata": {"name": name}, "roleRef": role, "subjects": [subject]},
            )
        finally:
            client.close()

    def _etcd_answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(_PROBE_TIMEOUT_S)
            probe.connect(str(self.layout.etcd_socket))
            connection = http.client.HTTPConnection("localhost")
            connection.sock = probe
            connection.request("GET", "/health")
            return '"health":"true"' in connection.getresponse().read().decode("utf-8", "replace")

    def _wait_for_roles(self) -> None:
        """Wait until each aggregated role has the rules of the one before it."""
        client = self.client(_PROBE_TIMEOUT_S)

        def are_complete() -> bool:
            roles = [client.get(f"/apis/{_RBAC}/v1/clusterroles/{name}").get("rules") or [] for name in _AGGREGATED]
            return bool(roles[0]) and all(rule in larger for role, larger in pairwise(roles) for rule in role)

        try:
            self._until_ready(Tool.CONTROLLER_MANAGER, are_complete)
        finally:
            client.close()

    def _kwok_answers(self) -> bool:
        return _plain_request(self.ports.kwok, "/healthz") == "ok"

    def _until_ready(self, name: str, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _READY_TIMEOUT_S
        last = "no answer yet"
        while time.monotonic() < deadline:
            self._check_running(name)
            try:
                if ready():
                    return
            except (OSError, LocalClusterError) as error:
                # 403 while the roles are still being created; 500 lists the pending checks.
                last = str(error) if isinstance(error, LocalApiError) else type(error).__name__
            time.sleep(_POLL_S)
        tail = self.processes[name].tail()
        raise StartError(f"{name} is not ready after {_READY_TIMEOUT_S:.0f} s ({last}):\n{tail}")

    def _check_running(self, name: str) -> None:
        process = self.processes[name]
        if process.alive:
            return
        tail = process.tail()
        kind = PortTakenError if reports_port_taken(tail) else StartError
        raise kind(f"{name} ended with {process.returncode} right after its start; end of {process.log}:\n{tail}")


def _plain_request(port: int, path: str) -> str:
    """A plain HTTP request to the loopback address."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=_PROBE_TIMEOUT_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode("utf-8", "replace")
    finally:
        connection.close()
