"""Kinds of other projects for tests: the real group, kind and resource, with a schema that accepts everything.

The API server treats objects of these CRDs as it does those of the projects' own; no controller acts on them.
"""

from typing import Any

from bowline.framework.templates import TemplatePath, Workload
from bowline.framework.workload_kinds import READY
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.errors import LocalApiError
from tests.waiting import wait_until

_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
VERSIONS = {"jobset.x-k8s.io": "v1alpha2"}  # others: v1
# A kind that only a configuration knows.
OWN = Workload("example.com", "Own", "owns", (TemplatePath.of("spec.pod"),))

Json = dict[str, Any]


def workload_of(kind: str) -> Workload:
    """Return the ready kind of that name, or ``OWN``."""
    return next(workload for workload in (*READY, OWN) if workload.kind == kind)


def api_version(kind: str) -> str:
    """Return group and version of a ready kind."""
    group = workload_of(kind).group
    return f"{group}/{VERSIONS.get(group, 'v1')}"


def objects_path(kind: str, namespace: str) -> str:
    """Return the API path of the kind's objects."""
    place = "" if is_cluster_scoped(kind) else f"/namespaces/{namespace}"
    return f"/apis/{api_version(kind)}{place}/{workload_of(kind).resource}"


def is_cluster_scoped(kind: str) -> bool:
    """Return whether the kind's objects have no namespace."""
    return kind.startswith("Cluster")


def crd(kind: str) -> Json:
    """Return a CRD of the kind that accepts any fields."""
    workload = workload_of(kind)
    everything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": everything, "status": everything}}}
    version = {"name": VERSIONS.get(workload.group, "v1"), "served": True, "storage": True, "schema": schema}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        # Kubernetes' own groups, such as *.x-k8s.io, require an annotation about their approval.
        "metadata": {
            "name": f"{workload.resource}.{workload.group}",
            "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
        },
        "spec": {
            "group": workload.group,
            "scope": "Cluster" if is_cluster_scoped(kind) else "Namespaced",
            "names": {"kind": kind, "plural": workload.resource, "singular": kind.lower(), "listKind": f"{kind}List"},
            "versions": [{**version, "subresources": {"status": {}}}],
        },
    }


def install(cluster: Cluster, *kinds: str) -> None:
    """Create the CRDs and wait until the API server serves them, and kubectl finds them."""
    for kind in kinds:
        wait_until(lambda kind=kind: _is_created(cluster, kind), f"the creation of {kind}")  # type: ignore[misc]
    names = {f"{workload_of(kind).resource}.{workload_of(kind).group}" for kind in kinds}
    for name in names:
        cluster.wait_established(name)
    resources = ("api-resources", "--output=name")
    wait_until(lambda: names <= set(cluster.kubectl(*resources, check=False).stdout.split()), "discovery")


def remove(cluster: Cluster, *kinds: str) -> None:
    """Delete them, with all their objects."""
    for kind in kinds:
        cluster.api.delete(f"{_CRDS}/{workload_of(kind).resource}.{workload_of(kind).group}")


def _is_created(cluster: Cluster, kind: str) -> bool:
    """Create the CRD; False while one of that name is being deleted."""
    try:
        cluster.api.post(_CRDS, crd(kind))
    except LocalApiError as error:
        if error.status != 409:
            raise
        return False
    return True


# --- objects; a template is a pod template's metadata and spec ---


def job_set(name: str, *templates: Json, **metadata: Any) -> Json:
    """Return a JobSet with a replicated job for each template."""
    jobs = [
        {"name": f"job-{index}", "replicas": 1, "template": {"spec": {"template": template}}}
        for index, template in enumerate(templates)
    ]
    return object_of("JobSet", name, {"replicatedJobs": jobs}, **metadata)


def ray_cluster(name: str, head: Json, *workers: Json, **metadata: Any) -> Json:
    """Return a RayCluster with a worker group for each template but the first."""
    groups = [
        {"groupName": f"group-{index}", "replicas": 1, "template": template} for index, template in enumerate(workers)
    ]
    spec = {"headGroupSpec": {"template": head}, "workerGroupSpecs": groups}
    return object_of("RayCluster", name, spec, **metadata)


def pytorch_job(name: str, **templates: Json) -> Json:
    """Return a PyTorchJob with these roles, such as Master and Worker."""
    roles = {role: {"replicas": 1, "template": template} for role, template in templates.items()}
    return object_of("PyTorchJob", name, {"pytorchReplicaSpecs": roles})


def object_of(kind: str, name: str, spec: Json, **metadata: Any) -> Json:
    """Return an object of the kind."""
    return {"apiVersion": api_version(kind), "kind": kind, "metadata": {"name": name, **metadata}, "spec": spec}


def filled(workload: Workload, template: Json) -> Json:
    """Return an object of the kind with the template, or its spec and annotations, in each place for a pod."""
    raw: Json = {}
    for path in workload.templates:
        if path.metadata is None:
            raw = _merged(raw, _below(path.steps, template))
            continue
        annotations = {"annotations": template["metadata"].get("annotations") or {}}
        if path.metadata:
            raw = _merged(raw, _below(path.metadata, annotations))
        elif workload.pod_metadata:
            raw = _merged(raw, {workload.pod_metadata: {"name": "w", **annotations}})
        raw = _merged(raw, _below(path.steps, template["spec"]))
    return raw


def _below(steps: tuple[str, ...], value: Any) -> Any:
    for step in reversed(steps):
        value = [value] if step == "[*]" else {"Worker" if step == "*" else step: value}
    return value


def _merged(base: Any, overlay: Any) -> Any:
    if isinstance(base, list) and isinstance(overlay, list) and len(base) == len(overlay) == 1:
        return [_merged(base[0], overlay[0])]
    if not isinstance(base, dict) or not isinstance(overlay, dict):
        return overlay
    return {**base, **overlay, **{key: _merged(base[key], overlay[key]) for key in base.keys() & overlay.keys()}}
