"""Volumes for live tests: PVCs, PVs and classes of one test, and a provisioner that the test acts as step by step.

Volumes and classes are cluster-scoped, so their names start with the test's; ``clean`` removes them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bowline.api import names
from bowline.localcluster.errors import LocalApiError
from tests.live import LiveCluster

PROVISIONER = "csi.example.com"


@dataclass(frozen=True, slots=True)
class Storage:
    """The storage of one test."""

    live: LiveCluster

    # --- names and paths ---

    def name(self, short: str) -> str:
        """The cluster-wide name of a volume or class of this test."""
        return f"{self.live.namespace}-{short}"

    def claim(self, name: str = "data") -> dict[str, Any]:
        """The claim as stored."""
        stored_claim: dict[str, Any] = self.live.cluster.api.get(self.claim_path(name))
        return stored_claim

    def claim_path(self, name: str) -> str:
        """The API path of the claim."""
        return f"/api/v1/namespaces/{self.live.namespace}/persistentvolumeclaims/{name}"

    def volume(self, short: str) -> dict[str, Any]:
        """The volume as stored."""
        stored_volume: dict[str, Any] = self.live.cluster.api.get(self.volume_path(short))
        return stored_volume

    def volume_path(self, short: str) -> str:
        """The API path of the volume."""
        return f"/api/v1/persistentvolumes/{self.name(short)}"

    def volume_of(self, claim: str = "data") -> str:
        """The short name of the volume that the claim is bound to."""
        return str(self.claim(claim)["spec"]["volumeName"]).removeprefix(f"{self.live.namespace}-")

    # --- creating ---

    def make_class(self, provisioner: str = names.NO_PROVISIONER) -> None:
        """Create the test's class ``late``."""
        metadata = {"name": self.name("late")}
        body = {"metadata": metadata, "provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer"}
        self.live.cluster.api.post("/apis/storage.k8s.io/v1/storageclasses", body)

    def make_volume(self, short: str, node: str = "gpu-node-0", *, size: str = "1Gi", **fields: Any) -> None:
        """Create a local volume on the node and wait until it is available."""
        body = {
            "metadata": {"name": self.name(short)},
            "spec": {
                "capacity": {"storage": size},
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": self.name("late"),
                "persistentVolumeReclaimPolicy": "Retain",
                "local": {"path": f"/mnt/{short}"},
                "nodeAffinity": {"required": on_node(node)},
                **fields,
            },
        }
        self.live.cluster.api.post("/api/v1/persistentvolumes", body)
        self.live.until(f"volume {short} is available", lambda: self.volume(short)["status"]["phase"] == "Available")

    def make_claim(self, name: str = "data", *, size: str = "1Gi") -> None:
        """Create a claim of the test's class."""
        self.live.cluster.api.post(
            f"/api/v1/namespaces/{self.live.namespace}/persistentvolumeclaims",
            {"metadata": {"name": name}, "spec": self.claim_spec(size)},
        )

    def claim_spec(self, size: str = "1Gi") -> dict[str, Any]:
        """The claim's spec."""
        return {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": self.name("late"),
            "resources": {"requests": {"storage": size}},
        }

    def make_pod(self, name: str = "pod", *claims: str, **spec: Any) -> str:
        """Create a pod that mounts the claims (``data`` if none is named); returns its UID."""
        return self.live.create_pod(name, volumes=mounts(*(claims or ("data",))), **spec)

    def clean(self) -> None:
        """Delete cluster-scoped objects, with their finalizers."""
        api = self.live.cluster.api
        for path in ("/api/v1/persistentvolumes", "/apis/storage.k8s.io/v1/storageclasses"):
            for item in api.get(path)["items"]:
                name = item["metadata"]["name"]
                if name.startswith(f"{self.live.namespace}-"):
                    try:
                        api.patch(f"{path}/{name}", {"metadata": {"finalizers": None}})
                        api.delete(f"{path}/{name}")
                    except LocalApiError as error:
                        if error.status != 404:
                            raise

    # --- the provisioner ---

    def asked_for(self, claim: str = "data") -> str:
        """Wait until a volume is requested from the provisioner; returns the node."""

        def volume_request() -> str | None:
            return (self.claim(claim)["metadata"].get("annotations") or {}).get(names.SELECTED_NODE)

        return self.live.until(f"a volume for claim {claim} is asked for", volume_request)

    def provision(self, claim: str = "data") -> None:
        """Create the requested volume, as a CSI provisioner does."""
        node, stored_claim = self.asked_for(claim), self.claim(claim)
        metadata, spec = stored_claim["metadata"], stored_claim["spec"]
        body = {
            "metadata": {
                "name": self.name(f"pvc-{claim}"),
                "annotations": {"pv.kubernetes.io/provisioned-by": PROVISIONER},
            },
            "spec": {
                "capacity": spec["resources"]["requests"],
                "accessModes": spec["accessModes"],
                "storageClassName": spec["storageClassName"],
                "persistentVolumeReclaimPolicy": "Retain",
                "csi": {"driver": PROVISIONER, "volumeHandle": metadata["uid"]},
                "nodeAffinity": {"required": on_node(node)},
                "claimRef": {
                    "apiVersion": "v1",
                    "kind": "PersistentVolumeClaim",
                    **{key: metadata[key] for key in ("namespace", "name", "uid", "resourceVersion")},
                },
            },
        }
        self.live.cluster.api.post("/api/v1/persistentvolumes", body)

    def refuse(self, claim: str = "data") -> None:
        """Reject the node, as a CSI provisioner does when the node has no capacity."""
        self.asked_for(claim)
        self.live.cluster.api.patch(
            self.claim_path(claim), {"metadata": {"annotations": {names.SELECTED_NODE: None}}}
        )


def on_node(name: str) -> Mapping[str, Any]:
    """A node affinity for one node."""
    expression = {"key": "kubernetes.io/hostname", "operator": "In", "values": [name]}
    return {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}


def mounts(*claims: str) -> list[dict[str, Any]]:
    """Volumes of a pod, one for each claim."""
    return [{"name": f"v{number}", "persistentVolumeClaim": {"claimName": c}} for number, c in enumerate(claims)]
