"""The cluster of a conformance run, the program under test, and what a scheduler and admission do around it.

Nothing here knows how the program works: it is started, killed, and judged by the objects of the API server. Pods of
shares are prepared as an admission webhook prepares them, because no webhook runs.
"""

import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from bowline.api import names
from bowline.conformance.case import BINDING, NODE, POLICIES, POLICY_BINDINGS, denial
from bowline.kube.resources import BINDREQUESTS, CONFIGMAPS, PODS
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.errors import LocalApiError
from bowline.localcluster.pair import CHART
from bowline.localcluster.process import Launch, Process
from bowline.localcluster.spec import ClusterSpec
from bowline.testing.builders import bind_request, device_class, pod, resource_slice

T = TypeVar("T")
_POLL_S = 0.05
# kwok's fake agent in a reservation pod with this toleration never reports its device.
SILENT = [{"key": "bowline.dev/silent-agent", "operator": "Exists"}]
_CRD = CHART / "files" / "bindrequests.yaml"
_RESERVATIONS = PODS.path(names.RESERVATION_APP)


class CaseFailure(Exception):  # noqa: N818 - a result, not a defect
    """The program has not done what the case requires; the message says what was observed."""


@dataclass(frozen=True, slots=True)
class BinderCluster:
    """A control plane with the CRD, two fake GPU nodes and the namespace of reservation pods."""

    cluster: Cluster

    @classmethod
    @contextmanager
    def start(cls, crd: Path | None, kubernetes: str | None) -> Iterator["BinderCluster"]:
        """Start it; it ends with the block. Raises LocalClusterError."""
        with Cluster.start(ClusterSpec(kubernetes=kubernetes)) as cluster:
            cluster.kubectl("apply", "--server-side", f"--filename={crd or _CRD}")
            cluster.wait_established(f"{names.PLURAL}.{names.GROUP}")
            cluster.make_nodes(2)
            cluster.make_runtime_class()
            cluster.make_namespace(names.RESERVATION_APP)
            yield cls(cluster)


@dataclass(slots=True)
class Binder:
    """The program under test."""

    cluster: BinderCluster
    argv: Sequence[str]
    process: Process | None = None

    def start(self) -> None:
        """Start it, also again after ``kill``."""
        cluster = self.cluster.cluster
        environ = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
        self.process = cluster.run_process(
            Launch("binder", self.argv, cluster.layout.logs / "binder.log", Path.cwd(), environ)
        )

    def kill(self) -> None:
        """End it without notice, as kill -9 does."""
        if self.process is not None:
            self.process.kill()

    def failure(self) -> str:
        """Return how it has ended by itself; empty while it runs."""
        if self.process is None or self.process.alive:
            return ""
        return f"the binder has ended with status {self.process.returncode}:\n{self.process.tail(15)}"


@dataclass(frozen=True, slots=True)
class Situation:
    """One case's namespace, with the actions of a scheduler, of users and of admission."""

    cluster: BinderCluster
    binder: Binder
    timeout_s: float
    namespace: str = field(default_factory=lambda: f"case-{uuid.uuid4().hex[:8]}")

    @property
    def api(self) -> Any:
        """The administrator's client."""
        return self.cluster.cluster.api

    # --- actions ---

    def create_pod(self, name: str, *, share: bool = False, **spec: Any) -> str:
        """Create an unbound pod, prepared for a share of a GPU if ``share``; return its UID."""
        body = pod(name, self.namespace, **spec)
        if share:
            _prepare(body)
        return str(self.api.post(PODS.path(self.namespace), body)["metadata"]["uid"])

    def request(self, name: str, node: str = NODE, uid: str = "", named: str = "", **spec: Any) -> None:
        """Create the BindRequest of a pod, as a scheduler does: named after it, or ``named``, and owned by it."""
        owner = uid or str(self.pod(name)["metadata"]["uid"])
        body = bind_request(name, node, self.namespace, owner, **spec)
        body["metadata"]["name"] = named or name
        self.api.post(BINDREQUESTS.path(self.namespace), body)

    def request_share(self, name: str, group: str, **spec: Any) -> None:
        """The same for half of the device of a group."""
        gpu = {"count": 1, "portion": "0.50"}
        self.request(name, receivedResourceType="Fraction", receivedGPU=gpu, selectedGPUGroups=[group], **spec)

    @contextmanager
    def denied_binds(self, *pods: str) -> Iterator[None]:
        """Let each Binding of the pods fail until the block ends, as an exceeded quota does."""
        with self.bindings_that(f"!(object.metadata.name in {list(pods)})", pods[0]):
            yield

    @contextmanager
    def bindings_that(self, expression: str, name: str = "pod") -> Iterator[None]:
        """Let each Binding fail for which the CEL expression is false, as that of the pod ``name`` without a UID."""
        policy, binding = denial(self.namespace, BINDING, expression)
        self.api.post(POLICIES, policy)
        self.api.post(POLICY_BINDINGS, binding)
        try:
            self.until("the Binding is denied", lambda: self._is_bind_denied(name))
            yield
        finally:
            self.api.delete(f"{POLICY_BINDINGS}/{self.namespace}")
            self.api.delete(f"{POLICIES}/{self.namespace}")

    def publish_devices(self) -> None:
        """Publish a device class and the devices of the node, unless they exist."""
        for plural, body in (("deviceclasses", device_class()), ("resourceslices", resource_slice(NODE))):
            with suppress(LocalApiError):  # another case has
                self.api.post(f"/apis/resource.k8s.io/v1/{plural}", body)

    def touch(self, path: str) -> None:
        """Change an object without a meaning."""
        labels = {"metadata": {"labels": {"example.com/touched": uuid.uuid4().hex}}}
        self.api.request("PATCH", path, labels, "application/merge-patch+json")

    def bind(self, name: str, node: str) -> None:
        """Bind the pod, as another program does."""
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        self.api.post(PODS.path(self.namespace, name, "binding"), {"metadata": {"name": name}, "target": target})

    def delete_pod(self, name: str) -> None:
        """Delete the pod at once."""
        self.api.request("DELETE", PODS.path(self.namespace, name), {"gracePeriodSeconds": 0})
        self.until(f"pod {name} is deleted", lambda: self._get(PODS.path(self.namespace, name)) is None)

    def delete_request(self, name: str) -> None:
        """Delete the request, as a scheduler withdraws its decision."""
        self.api.delete(BINDREQUESTS.path(self.namespace, name))

    # --- observations ---

    def pod(self, name: str) -> dict[str, Any]:
        """Return the stored pod."""
        stored: dict[str, Any] = self.api.get(PODS.path(self.namespace, name))
        return stored

    def node_of(self, name: str) -> str:
        """Return the pod's node; empty while it is not bound."""
        return str(self.pod(name)["spec"].get("nodeName") or "")

    def phase(self, name: str) -> str:
        """Return the request's phase; ``deleted`` if there is no request."""
        request = self._get(BINDREQUESTS.path(self.namespace, name))
        return "deleted" if request is None else str((request.get("status") or {}).get("phase") or "")

    def reservations(self, group: str) -> list[dict[str, Any]]:
        """Return the reservation pods of a group."""
        path = f"{_RESERVATIONS}?labelSelector={names.LABEL_GPU_GROUP}%3D{group}"
        return list(self.api.get(path)["items"])

    def configmaps(self) -> dict[str, dict[str, str]]:
        """Return the data of the namespace's ConfigMaps by name."""
        items = self.api.get(CONFIGMAPS.path(self.namespace))["items"]
        return {item["metadata"]["name"]: item.get("data") or {} for item in items}

    def remains(self, name: str, group: str) -> list[str]:
        """Return what a share has left: reservation pods, ConfigMaps, labels of its pod."""
        labels = (self._get(PODS.path(self.namespace, name)) or {"metadata": {}})["metadata"].get("labels") or {}
        return [
            *(f"reservation pod {entry['metadata']['name']}" for entry in self.reservations(group)),
            *(f"ConfigMap {configmap}" for configmap in self.configmaps() if configmap.startswith(name)),
            *(f"label {key}" for key in labels if key.startswith(names.LABEL_GPU_GROUP)),
        ]

    def until(self, what: str, condition: Callable[[], T | None]) -> T:
        """Wait until the condition returns a result; CaseFailure after the limit, or when the binder has ended."""
        deadline = time.monotonic() + self.timeout_s
        while (result := condition()) is None or result is False:
            ended = self.binder.failure()
            if ended or time.monotonic() > deadline:
                raise CaseFailure(ended or f"not within {self.timeout_s:g} s: {what}")
            time.sleep(_POLL_S)
        return result

    def await_phase(self, name: str, *phases: str) -> str:
        """Wait until the request has one of the phases."""
        return self.until(
            f"request {name} is {' or '.join(phases)}, it is {self.phase(name) or 'Pending'}",
            lambda: phase if (phase := self.phase(name)) in phases else None,
        )

    def require(self, condition: bool, why: str) -> None:
        """Raise CaseFailure unless the condition holds."""
        if not condition:
            raise CaseFailure(why)

    def _is_bind_denied(self, name: str) -> bool:
        target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
        try:
            path = PODS.path(self.namespace, name, "binding")
            self.api.post(f"{path}?dryRun=All", {"metadata": {"name": name}, "target": target})
        except LocalApiError as error:
            return error.status not in (404, 409)
        return False

    def _get(self, path: str) -> dict[str, Any] | None:
        try:
            stored: dict[str, Any] = self.api.get(path)
        except LocalApiError as error:
            if error.status == 404:
                return None
            raise
        return stored


def _prepare(body: dict[str, Any]) -> None:
    """Add what admission adds to a pod with half a GPU: the names of its ConfigMaps and references to them."""
    prefix = f"{body['metadata']['name']}-bcdfghj-shared-gpu"
    annotations = {names.GPU_FRACTION: "0.5", names.SHARED_GPU_CONFIGMAP: prefix}
    body["metadata"].setdefault("annotations", {}).update(annotations)
    container = body["spec"]["containers"][0]
    keys = (names.VISIBLE_DEVICES, names.NUM_OF_GPUS, names.GPU_PORTION)
    container["env"] = [
        {"name": key, "valueFrom": {"configMapKeyRef": {"name": f"{prefix}-0", "key": key}}} for key in keys
    ]
    container["envFrom"] = [{"configMapRef": {"name": f"{prefix}-0-evar"}}]
