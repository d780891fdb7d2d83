"""PodGroups of KAI-Scheduler for tests that run without it: its group, kind and version, with any fields."""

from typing import Any

from shared.api import names
from shared.kube.resources import KAI_PODGROUPS
from tests.localcluster.cluster import Cluster

_ANY = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


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
    return {
        "apiVersion": KAI_PODGROUPS.api_version,
        "kind": KAI_PODGROUPS.kind,
        "metadata": {"name": name},
        "spec": {"minMember": min_member, "queue": "team"},
    }


def in_group(name: str) -> dict[str, str]:
    """The annotations of a pod that KAI-Scheduler's podgrouper has assigned to the PodGroup."""
    return {names.POD_GROUP_NAME: name}
