"""The objects that built-in plugins create, mark and reserve: read, compared, and checked for an unbound pod.

One read covers everything that one run of a scenario can have touched: its namespace, its volumes (named after it)
and its reservation pods (their groups are named after it, too).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from shared.api import names
from shared.api.gpu_share import gpu_groups
from tests.faults.plugins.fault_effects import OWNER
from tests.live import LiveCluster
from tests.plugins.claims import is_free, reserved_by
from tests.plugins.sharing import RESERVATIONS, device_of, group_of

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
            "claims": {one["metadata"]["name"]: _claim(one) for one in self.claims},
            "volumeClaims": {one["metadata"]["name"]: _volume_claim(one) for one in self.volume_claims},
            "volumes": {one["metadata"]["name"]: _volume(one) for one in self.volumes},
            "reservations": sorted(
                [group_of(one), one["spec"]["nodeName"], device_of(one)] for one in self.reservations
            ),
        }

    def aliases(self) -> Mapping[str, str]:
        """Return the replacement of everything that is random: UIDs, generated names, the run's own namespace."""
        found = {self.namespace: "<run>"}
        for kind, objects in (
            ("pod", self.pods),
            ("request", self.requests),
            ("claim", self.claims),
            ("volume claim", self.volume_claims),
        ):
            found |= {one["metadata"]["uid"]: f"<uid of {kind} {_shown(one)}>" for one in objects}
        found |= {one["metadata"]["uid"]: f"<uid of reservation {group_of(one)}>" for one in self.reservations}
        found |= {one["metadata"]["name"]: _shown(one) for one in self.claims}
        prefixes = [((one["metadata"].get("annotations") or {}), one["metadata"]["name"]) for one in self.pods]
        found |= {
            annotations[names.SHARED_GPU_CONFIGMAP]: f"<maps of {name}>"
            for annotations, name in prefixes
            if names.SHARED_GPU_CONFIGMAP in annotations
        }
        return found

    def held_by(self, pod: Any) -> list[str]:
        """Return what plugins hold for the pod, as texts; volumes are kept in any case."""
        return [*self._held_claims(pod), *self._held_shares(pod)]

    def _held_claims(self, pod: Any) -> Iterator[str]:
        for claim in self.claims:
            extended = names.EXTENDED_RESOURCE_CLAIM in (claim["metadata"].get("annotations") or {})
            of_pod = any(o["uid"] == pod["metadata"]["uid"] for o in claim["metadata"].get("ownerReferences") or ())
            if pod["metadata"]["uid"] in reserved_by(claim) or (of_pod and (extended or not is_free(claim))):
                yield f"claim {claim['metadata']['name']}"
        if (pod.get("status") or {}).get("extendedResourceClaimStatus"):
            yield "the pod's status of its extended resources"

    def _held_shares(self, pod: Any) -> Iterator[str]:
        groups = gpu_groups(pod["metadata"].get("labels") or {})
        if groups:
            yield f"label of {', '.join(sorted(groups))}"
        for one in self.maps:
            if any(o["uid"] == pod["metadata"]["uid"] for o in one["metadata"].get("ownerReferences") or ()):
                yield f"ConfigMap {one['metadata']['name']}"
        used = {group for one in self.pods for group in gpu_groups(one["metadata"].get("labels") or {})}
        for one in self.reservations:
            if group_of(one) not in used:
                yield f"reservation {one['metadata']['name']}"


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
        volumes=[one for one in volumes if one["metadata"]["name"].startswith(f"{namespace}-")],
        reservations=[one for one in reservations if group_of(one).startswith(f"{namespace}-")],
    )


def _shown(obj: Any) -> str:
    """Return the name of an object that is equal in all runs."""
    generated = obj["metadata"].get("generateName")
    return f"{generated}*" if generated else str(obj["metadata"]["name"])


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
