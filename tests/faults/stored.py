"""What a run of a scenario leaves, in a form that can be compared: without UIDs, times and messages.

One read covers everything that one run can have touched: its namespace, and its reservation pods (their groups are
named after it). Random names are replaced by what they refer to.

The pod condition PodBound is best effort, as events are: a crash may lose it, so it is not compared.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bowline.api import names
from bowline.api.gpu_share import gpu_groups
from bowline.plugins.gpu_sharing.reservation import reservation_name
from tests.live import LiveCluster
from tests.plugins.sharing import RESERVATIONS, device_of, group_of

# Of devices, in one run: named after it.
GROUPS = ("a", "b")
State = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Stored:
    """The objects of one run."""

    namespace: str
    pods: list[Any]
    requests: list[Any]
    maps: list[Any]
    reservations: list[Any]

    @staticmethod
    def read(live: LiveCluster) -> "Stored":
        """Read all objects of the run."""
        api, core = live.cluster.api, f"/api/v1/namespaces/{live.namespace}"
        return Stored(
            live.namespace,
            pods=api.get(f"{core}/pods")["items"],
            requests=api.get(live.request_path("").rstrip("/"))["items"],
            maps=api.get(f"{core}/configmaps")["items"],
            reservations=[pod for pod in api.get(RESERVATIONS)["items"] if _is_of(pod, live.namespace)],
        )

    def aliases(self) -> Mapping[str, str]:
        """Return the replacement of everything that is random: UIDs, generated names, the run's own namespace."""
        aliases = {self.namespace: "<run>"}
        for kind, objects in (("pod", self.pods), ("request", self.requests)):
            aliases |= {obj["metadata"]["uid"]: f"<uid of {kind} {obj['metadata']['name']}>" for obj in objects}
        aliases |= {pod["metadata"]["uid"]: f"<uid of reservation {group_of(pod)}>" for pod in self.reservations}
        for pod in self.pods:
            aliases[pod["metadata"]["annotations"][names.SHARED_GPU_CONFIGMAP]] = "<maps>"
        return aliases

    def owned_maps(self) -> list[Any]:
        """Return the ConfigMaps of the pods."""
        return [obj for obj in self.maps if obj["metadata"].get("ownerReferences")]


def group_name(live: LiveCluster, group: str) -> str:
    """Return the group of this run."""
    return f"{live.namespace}-{group}"


def _is_of(reservation: Any, namespace: str) -> bool:
    """Return whether a reservation pod is of the run: by its group, or by its name if it has lost the label."""
    groups = [f"{namespace}-{group}" for group in GROUPS]
    return group_of(reservation).startswith(f"{namespace}-") or any(
        reservation["metadata"]["name"].startswith(reservation_name(reservation["spec"]["nodeName"], group))
        for group in groups
    )


def held_shares(live: LiveCluster) -> list[str]:
    """Return the names of what is held for the pods of a run, and the labels of their groups."""
    stored = Stored.read(live)
    labels = [group for pod in stored.pods for group in gpu_groups(pod["metadata"].get("labels") or {})]
    return [*labels, *(obj["metadata"]["name"] for obj in (*stored.owned_maps(), *stored.reservations))]


def left_behind(live: LiveCluster) -> list[str]:
    """Return the existing objects that belong to pods; after these are deleted, all of them must be deleted."""
    stored = Stored.read(live)
    return [obj["metadata"]["name"] for obj in (*stored.pods, *stored.reservations, *stored.owned_maps())]


def state_of(live: LiveCluster) -> State:
    """Return everything that a run may leave: pods, requests, ConfigMaps and reservations."""
    stored = Stored.read(live)
    state = {
        "pods": {pod["metadata"]["name"]: _pod(pod) for pod in stored.pods},
        "requests": {request["metadata"]["name"]: _request(request) for request in stored.requests},
        "maps": {obj["metadata"]["name"]: obj.get("data", {}) for obj in stored.maps},
        "reservations": sorted(
            [group_of(pod), pod["spec"]["nodeName"], device_of(pod)] for pod in stored.reservations
        ),
    }
    text, aliases = json.dumps(state, sort_keys=True), stored.aliases()
    for name in sorted(aliases, key=len, reverse=True):
        text = text.replace(name, aliases[name])
    anonymous: State = json.loads(text)
    return anonymous


def _pod(pod: dict[str, Any]) -> State:
    metadata = pod["metadata"]
    return {
        "node": pod["spec"].get("nodeName", ""),
        "annotations": metadata.get("annotations") or {},
        "labels": metadata.get("labels") or {},
    }


def _request(request: dict[str, Any]) -> State:
    status = request.get("status") or {}
    return {
        "phase": status.get("phase"),
        "reason": (status.get("reason") or "").partition(":")[0],
        # Equal, not at most: an attempt whose end was not written is repeated and then counted once.
        "failedAttempts": status.get("failedAttempts"),
        "conditions": {
            condition["type"]: condition["status"]
            for condition in status.get("conditions") or ()
            if condition["type"] in ("Prepared", "Bound", "RolledBack")
        },
        "nodeName": status.get("nodeName"),
        "suggestion": status.get("suggestion"),
        "finalizers": request["metadata"].get("finalizers") or [],
        "deleting": "deletionTimestamp" in request["metadata"],
    }


def differences(expected: State, actual: State) -> str:
    """Return the differences, kind by kind."""
    return "; ".join(
        f"{kind}: {expected[kind]} became {actual[kind]}" for kind in expected if expected[kind] != actual[kind]
    )
