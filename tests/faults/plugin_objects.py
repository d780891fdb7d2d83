"""The objects that built-in plugins create, mark and reserve: read, compared, and checked for an unbound pod.

One read covers everything that one run of a scenario can have touched: its namespace, its volumes (named after it)
and its reservation pods (their groups are named after it, too).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bowline.api import names
from bowline.api.gpu_share import gpu_groups
from bowline.plugins.gpu_sharing.reservation import reservation_name
from tests.faults.plugins.fault_effects import OWNER
from tests.live import LiveCluster
from tests.plugins.claims import is_cleared, is_free, reserved_by
from tests.plugins.sharing import RESERVATIONS, device_of, group_of

# Of devices, in one run: named after it.
GROUPS = ("a", "b")
_CLAIMS = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims"


@dataclass(frozen=True, slots=True)
class Stored:
    """The objects of one run."""

    namespace: str
    pods: list[Any]
    requests: list[Any]
    maps: list[Any]
    effects: list[Any]
    claims: list[Any]
    volume_claims: list[Any]
    volumes: list[Any]
    reservations: list[Any]

    def plugins_state(self) -> dict[str, Any]:
        """Return the state of the plugins' objects, with generated names."""
        return {
            "claims": {claim["metadata"]["name"]: _claim(claim) for claim in self.claims},
            "volumeClaims": {claim["metadata"]["name"]: _volume_claim(claim) for claim in self.volume_claims},
            "volumes": {volume["metadata"]["name"]: _volume(volume) for volume in self.volumes},
            "reservations": sorted(
                [group_of(pod), pod["spec"]["nodeName"], device_of(pod)] for pod in self.reservations
            ),
        }

    def aliases(self) -> Mapping[str, str]:
        """Return the replacement of everything that is random: UIDs, generated names, the run's own namespace."""
        aliases = {self.namespace: "<run>"}
        for kind, objects in (
            ("pod", self.pods),
            ("request", self.requests),
            ("claim", self.claims),
            ("volume claim", self.volume_claims),
        ):
            aliases |= {obj["metadata"]["uid"]: f"<uid of {kind} {_display_name(obj)}>" for obj in objects}
        aliases |= {pod["metadata"]["uid"]: f"<uid of reservation {group_of(pod)}>" for pod in self.reservations}
        aliases |= {obj["metadata"]["name"]: _display_name(obj) for obj in self.claims}
        prefixes = [((obj["metadata"].get("annotations") or {}), obj["metadata"]["name"]) for obj in self.pods]
        aliases |= {
            annotations[names.SHARED_GPU_CONFIGMAP]: f"<maps of {name}>"
            for annotations, name in prefixes
            if names.SHARED_GPU_CONFIGMAP in annotations
        }
        return aliases

    def held_by(self, pod: Any) -> list[str]:
        """Return what plugins hold for the pod, as texts; volumes are kept in any case."""
        return [*self._held_claims(pod), *self._held_shares(pod)]

    def _held_claims(self, pod: Any) -> Iterator[str]:
        for claim in self.claims:
            is_extended = names.EXTENDED_RESOURCE_CLAIM in (claim["metadata"].get("annotations") or {})
            of_pod = any(o["uid"] == pod["metadata"]["uid"] for o in claim["metadata"].get("ownerReferences") or ())
            if pod["metadata"]["uid"] in reserved_by(claim) or (of_pod and (is_extended or not is_free(claim))):
                yield f"claim {claim['metadata']['name']}"
        if not is_cleared(pod, [claim["metadata"]["name"] for claim in self.claims]):
            yield "the pod's status of its extended resources"

    def _held_shares(self, pod: Any) -> Iterator[str]:
        groups = gpu_groups(pod["metadata"].get("labels") or {})
        if groups:
            yield f"label of {', '.join(sorted(groups))}"
        for obj in self.maps:
            if any(o["uid"] == pod["metadata"]["uid"] for o in obj["metadata"].get("ownerReferences") or ()):
                yield f"ConfigMap {obj['metadata']['name']}"
        used = {group for obj in self.pods for group in gpu_groups(obj["metadata"].get("labels") or {})}
        for obj in self.reservations:
            if group_of(obj) not in used:
                yield f"reservation {obj['metadata']['name']}"


def read_objects(live: LiveCluster) -> Stored:
    """Read all objects of the run."""
    api, namespace = live.cluster.api, live.namespace
    core = f"/api/v1/namespaces/{namespace}"
    volumes = api.get("/api/v1/persistentvolumes")["items"]
    reservations = api.get(RESERVATIONS)["items"]
    return Stored(
        namespace,
        pods=api.get(f"{core}/pods")["items"],
        requests=api.get(live.request_path("").rstrip("/"))["items"],
        maps=api.get(f"{core}/configmaps")["items"],
        effects=api.get(f"{core}/secrets?labelSelector={OWNER}")["items"],
        claims=api.get(_CLAIMS.format(namespace))["items"],
        volume_claims=api.get(f"{core}/persistentvolumeclaims")["items"],
        volumes=[volume for volume in volumes if volume["metadata"]["name"].startswith(f"{namespace}-")],
        reservations=[pod for pod in reservations if _is_of(pod, namespace)],
    )


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


def _display_name(obj: Any) -> str:
    """Return the name of an object that is equal in all runs."""
    prefix = obj["metadata"].get("generateName")
    return f"{prefix}*" if prefix else str(obj["metadata"]["name"])


def _claim(claim: Any) -> dict[str, Any]:
    status = claim.get("status") or {}
    allocation = {k: v for k, v in (status.get("allocation") or {}).items() if k != "allocationTimestamp"}
    return {
        "finalizers": claim["metadata"].get("finalizers") or [],
        "owners": [owner["uid"] for owner in claim["metadata"].get("ownerReferences") or ()],
        "deleting": "deletionTimestamp" in claim["metadata"],
        "allocation": allocation,
        "reservedFor": status.get("reservedFor") or [],
    }


def _volume_claim(claim: Any) -> dict[str, Any]:
    return {
        "volume": claim["spec"].get("volumeName"),
        "phase": claim["status"]["phase"],
        "annotations": claim["metadata"].get("annotations") or {},
    }


def _volume(volume: Any) -> dict[str, Any]:
    reference = volume["spec"].get("claimRef") or {}
    return {
        "phase": volume["status"]["phase"],
        "annotations": volume["metadata"].get("annotations") or {},
        "claim": {key: value for key, value in reference.items() if key != "resourceVersion"},
    }
