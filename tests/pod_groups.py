"""PodGroups for tests: Kubernetes' own, and those of KAI-Scheduler without it (its group, kind and version)."""

from collections.abc import Mapping
from typing import Any

from bowline.api import names
from bowline.kube.resources import KAI_PODGROUPS, PODGROUPS, Resource
from bowline.localcluster.assets.versions import KubernetesRelease
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.spec import CONTROLLERS, ClusterSpec

_ANY = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}

# Kubernetes' PodGroups and claims that they share: beta in 1.37, off by default.
WITH_POD_GROUPS = ClusterSpec(
    scheduler=True,
    # Removes the finalizer of a PodGroup without pods.
    controllers=(*CONTROLLERS, "podgroup-protection-controller"),
    runtime_config=(f"{PODGROUPS.api_version}=true",),
    feature_gates=("GenericWorkload=true", "DRAWorkloadResourceClaims=true"),
)


def serves_pod_groups(release: KubernetesRelease) -> bool:
    """Return whether this Kubernetes can serve its PodGroups in Bowline's version."""
    return int(release.minor.partition(".")[2]) >= 37


def kubernetes_pod_group(name: str, min_count: int, *claims: dict[str, str]) -> dict[str, Any]:
    """A PodGroup of Kubernetes that shares these claims."""
    spec = {
        "schedulingPolicy": {"gang": {"minCount": min_count}},
        **({"resourceClaims": [*claims]} if claims else {}),
    }
    return _group(PODGROUPS, name, spec)


def install_pod_groups(cluster: Cluster) -> None:
    """Create the CRD, unless it exists, and wait until the API server serves it."""
    kind, name = KAI_PODGROUPS, f"{KAI_PODGROUPS.plural}.{KAI_PODGROUPS.group}"
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": _ANY, "status": _ANY}}}
    body = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": name},
        "spec": {
            "group": kind.group,
            "scope": "Namespaced",
            "names": {"kind": kind.kind, "plural": kind.plural, "singular": "podgroup", "listKind": "PodGroupList"},
            "versions": [{"name": kind.version, "served": True, "storage": True, "schema": schema}],
        },
    }
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}?fieldManager=test&force=true"
    cluster.api.request("PATCH", path, body, "application/apply-patch+yaml")
    cluster.wait_established(name)


def pod_group(name: str, min_member: int) -> dict[str, Any]:
    """A PodGroup of KAI-Scheduler."""
    return _group(KAI_PODGROUPS, name, {"minMember": min_member, "queue": "team"})


def _group(resource: Resource, name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": name}, "spec": spec}


def in_group(name: str) -> dict[str, str]:
    """The annotations of a pod that KAI-Scheduler's podgrouper has assigned to the PodGroup."""
    return {names.POD_GROUP_NAME: name}
