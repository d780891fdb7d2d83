"""Sharing pods on a live cluster: create them, request their binding, count their leftovers.

kwok acts as the kubelets, and as the agents in reservation pods (``localcluster/kwok_stages.yaml``); a pod
that tolerates ``SILENT`` gets a reservation whose agent reports nothing.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from bowline.api import names
from bowline.api.meta import ObjectKey
from bowline.framework.config import GpuSharingSettings
from bowline.localcluster.workload import LocalProcess, WorkloadOptions, start_pod
from bowline.plugins.gpu_sharing.config import GpuSharingConfig
from bowline.plugins.gpu_sharing.reservation import DeviceRequest, reservation_name
from bowline.plugins.gpu_sharing.reservation_pod import reservation_object
from bowline.testing.builders import bind_request, pod
from tests.audit import WRITES, audit_events, call_of, once_logged
from tests.live import Live

RESERVATIONS = f"/api/v1/namespaces/{names.RESERVATION_APP}/pods"
SILENT = [{"key": "bowline.dev/silent-agent", "operator": "Exists"}]
HALF = {names.GPU_FRACTION: "0.5"}


def reservation(namespace: str, group: str, node: str = "gpu-node-0", name: str = "") -> dict[str, Any]:
    """Return a reservation pod, as the reconciler creates it for a pod of the namespace that has ended."""
    pod_key = ObjectKey(namespace, "ended")
    request = DeviceRequest(pod_key, pod_key, node, group)
    sharing = GpuSharingSettings(agent_image="registry.example/agent:1")
    return reservation_object(request, sharing, GpuSharingConfig(), name or reservation_name(node, group))


class Shares:
    """The sharing pods of one test."""

    def __init__(self, live: Live) -> None:
        self.live = live
        self.api = live.cluster.api
        self.pods = f"/api/v1/namespaces/{live.namespace}/pods"

    # --- writes ---

    def make(self, name: str, annotations: Mapping[str, str | None] | None = None, **spec: Any) -> dict[str, Any]:
        """Create an unbound pod that requests half a GPU; None removes an annotation. Returns it as admitted."""
        body = pod(name, self.live.namespace, **spec)
        changes = {**HALF, **(annotations or {})}
        body["metadata"]["annotations"] = {key: value for key, value in changes.items() if value is not None}
        stored_pod: dict[str, Any] = self.api.post(self.pods, body)
        return stored_pod

    def ask(self, name: str, groups: Sequence[str], node: str = "gpu-node-0", **spec: Any) -> None:
        """Create the pod's BindRequest, as the scheduler does."""
        uid = self.live.pod(name)["metadata"]["uid"]
        fields = {
            "receivedResourceType": "Fraction",
            "receivedGPU": {"count": len(groups), "portion": "0.50"},
            "selectedGPUGroups": list(groups),
            **spec,
        }
        self.api.post(
            self.live.request_path("").rstrip("/"), bind_request(name, node, self.live.namespace, uid, **fields)
        )

    def share(self, name: str, *groups: str, **spec: Any) -> None:
        """Create a pod and its request."""
        self.make(name)
        self.ask(name, groups, **spec)

    def delete(self, name: str) -> None:
        """Delete a pod, as its owner does."""
        self.api.request("DELETE", f"{self.pods}/{name}", {"gracePeriodSeconds": 0})

    def complete(self, name: str) -> None:
        """Complete the running pod, as a kubelet reports it."""
        # kwok would overwrite an earlier end.
        self.live.until("kwok has started the pod", lambda: self.live.pod(name)["status"]["phase"] == "Running")
        self.api.patch(f"{self.pods}/{name}/status", {"status": {"phase": "Succeeded"}})

    def run_agent(self, group: str, name: str, prefix: Sequence[str] = ()) -> LocalProcess:
        """Start the real agent of a group that has one reservation pod, by this name, its command after ``prefix``.

        From the pod's spec, as its ServiceAccount; it ends with the cluster.
        """
        (reservation,) = self.reservations(group)
        spec, pod_name = reservation["spec"], reservation["metadata"]["name"]
        (container,) = spec["containers"]
        if prefix:
            command = [*prefix, sys.executable, *container["command"][1:]]
            spec = {**spec, "containers": [{**container, "command": command}]}
        # POD_NAME is the value of the fieldRef; the process's own name separates a second one from the first.
        options = WorkloadOptions(name=name, env={"POD_NAME": pod_name}, token_of=pod_name)
        return start_pod(self.live.cluster, names.RESERVATION_APP, spec, options)

    # --- reads ---

    def reservations(self, *groups: str) -> list[dict[str, Any]]:
        """The reservation pods of these groups, or all, by group."""
        pods: list[dict[str, Any]] = self.api.get(RESERVATIONS)["items"]
        mine = [reservation for reservation in pods if not groups or group_of(reservation) in groups]
        return sorted(mine, key=group_of)

    def device(self, group: str) -> str:
        """The device of the group, once its agent has reported it."""
        return self.live.until(
            f"group {group} has a device",
            lambda: next((device for entry in self.reservations(group) if (device := device_of(entry))), None),
        )

    def await_release(self, *groups: str) -> None:
        """Wait until no reservation pod of these groups, or at all, is left."""
        self.live.until(f"no reservation is left of {groups or 'any group'}", lambda: not self.reservations(*groups))

    def labels(self, name: str) -> dict[str, str]:
        """The pod's labels about sharing."""
        labels: dict[str, str] = self.live.pod(name)["metadata"].get("labels") or {}
        return {key: value for key, value in labels.items() if key.startswith(("runai-", "bowline.dev/"))}

    def maps(self) -> dict[str, dict[str, str]]:
        """The data of the namespace's ConfigMaps by name."""
        maps = self.api.get(f"/api/v1/namespaces/{self.live.namespace}/configmaps")["items"]
        return {item["metadata"]["name"]: item.get("data", {}) for item in maps}

    def writes(self, *names_: str, expected: Sequence[str]) -> Sequence[str]:
        """The reconciler's writes to objects whose names begin so, in order and without events; awaited."""
        return once_logged(
            self.live,
            len(expected),
            lambda: [
                "/".join(call_of(event))
                for event in audit_events(self.live, "bowline-reconciler")
                if event["verb"] in WRITES and self._is_about(event, names_)
            ],
        )

    def _is_about(self, event: dict[str, Any], prefixes: Sequence[str]) -> bool:
        about = event.get("objectRef") or {}
        if about.get("namespace") not in (self.live.namespace, names.RESERVATION_APP):
            return False
        return about["resource"] != "events" and str(about.get("name", "")).startswith(tuple(prefixes))


def group_of(reservation: dict[str, Any]) -> str:
    """The group of a reservation pod; empty if it has lost its label."""
    return str((reservation["metadata"].get("labels") or {}).get(names.LABEL_GPU_GROUP, ""))


def device_of(reservation: dict[str, Any]) -> str:
    """The device that its agent has reported; empty if none."""
    return str((reservation["metadata"].get("annotations") or {}).get(names.RESERVED_DEVICE, ""))
