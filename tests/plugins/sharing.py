"""Sharing pods on a live cluster: create them, request their binding, count their leftovers.

kwok acts as the kubelets, and as the agents in reservation pods (``localcluster/kwok_stages.yaml``); a pod that
tolerates ``SILENT`` gets a reservation whose agent reports nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from shared.api import names
from shared.testing.builders import bind_request, pod
from tests.audit import WRITES, audited, call_of, once_logged
from tests.live import Live

RESERVATIONS = f"/api/v1/namespaces/{names.RESERVATION_APP}/pods"
SILENT = [{"key": "bowline.dev/silent-agent", "operator": "Exists"}]
HALF = {names.GPU_FRACTION: "0.5"}


class Shares:
    """The sharing pods of one test."""

    def __init__(self, live: Live) -> None:
        self.live = live
        self.api = live.cluster.api
        self.pods = f"/api/v1/namespaces/{live.namespace}/pods"

    # --- writes ---

    def make(self, name: str, annotations: Mapping[str, str | None] | None = None, **spec: Any) -> dict[str, Any]:
        """Create an unbound pod that requests half a GPU; None removes an annotation. Returns it as admitted."""
        wanted = pod(name, self.live.namespace, **spec)
        asked = {**HALF, **(annotations or {})}
        wanted["metadata"]["annotations"] = {key: value for key, value in asked.items() if value is not None}
        made: dict[str, Any] = self.api.post(self.pods, wanted)
        return made

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
        """Complete the pod, as a kubelet reports it."""
        self.api.patch(f"{self.pods}/{name}/status", {"status": {"phase": "Succeeded"}})

    # --- reads ---

    def reservations(self, *groups: str) -> list[dict[str, Any]]:
        """The reservation pods of these groups, or all, by group."""
        found: list[dict[str, Any]] = self.api.get(RESERVATIONS)["items"]
        mine = [one for one in found if not groups or group_of(one) in groups]
        return sorted(mine, key=group_of)

    def device(self, group: str) -> str:
        """The device of the group, once its agent has reported it."""
        return self.live.until(
            f"group {group} has a device",
            lambda: next((d for one in self.reservations(group) if (d := device_of(one))), None),
        )

    def freed(self, *groups: str) -> None:
        """Wait until no reservation pod of these groups, or at all, is left."""
        self.live.until(f"no reservation is left of {groups or 'any group'}", lambda: not self.reservations(*groups))

    def labels(self, name: str) -> dict[str, str]:
        """The pod's labels about sharing."""
        labels: dict[str, str] = self.live.pod(name)["metadata"].get("labels") or {}
        return {key: value for key, value in labels.items() if key.startswith(("runai-", "bowline.dev/"))}

    def maps(self) -> dict[str, dict[str, str]]:
        """The data of the namespace's ConfigMaps by name."""
        found = self.api.get(f"/api/v1/namespaces/{self.live.namespace}/configmaps")["items"]
        return {one["metadata"]["name"]: one.get("data", {}) for one in found}

    def writes(self, *names_: str, expected: Sequence[str]) -> Sequence[str]:
        """The reconciler's writes to objects whose names begin so, in order and without events; awaited."""
        return once_logged(
            self.live,
            len(expected),
            lambda: [
                "/".join(call_of(one))
                for one in audited(self.live, "bowline-reconciler")
                if one["verb"] in WRITES and self._is_about(one, names_)
            ],
        )

    def _is_about(self, event: dict[str, Any], wanted: Sequence[str]) -> bool:
        about = event.get("objectRef") or {}
        if about.get("namespace") not in (self.live.namespace, names.RESERVATION_APP):
            return False
        return about["resource"] != "events" and str(about.get("name", "")).startswith(tuple(wanted))


def group_of(reservation: dict[str, Any]) -> str:
    """The group of a reservation pod."""
    return str(reservation["metadata"]["labels"][names.LABEL_GPU_GROUP])


def device_of(reservation: dict[str, Any]) -> str:
    """The device that its agent has reported; empty if none."""
    return str((reservation["metadata"].get("annotations") or {}).get(names.RESERVED_DEVICE, ""))
