"""Which objects of configured kinds make the API server call a webhook: their matchConditions.

As in test_calls_live: the hooks fail closed and have an address without a listener, so a call is a denial that names
its path and a condition that cannot be evaluated is a denial, too. All requests are dry runs.
"""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest

from bowline.api import names
from bowline.localcluster.cluster import Cluster
from tests.chart.objects import FRACTION, JOBS, job, owned_by, template
from tests.chart.rendering import Chart
from tests.chart.test_calls_live import NO_LISTENER, called
from tests.foreign_kinds import (
    install,
    job_set,
    object_of,
    objects_path,
    pytorch_job,
    ray_cluster,
    remove,
    workload_of,
)

KINDS = (
    *("JobSet", "RayCluster", "PyTorchJob", "ClusterTrainingRuntime", "Job", "PodCliqueSet", "InferenceService"),
    *("Workflow", "Own"),
)
CONFIGURATION = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
PATHS = {kind: objects_path(kind, "default") for kind in KINDS}
JOB_SETS, RAY_CLUSTERS, PYTORCH_JOBS = (PATHS[kind] for kind in KINDS[:3])
OURS, FOREIGN, SHARED = template("kai-scheduler"), template("other"), template("other", FRACTION)
VALIDATED = "/validate/workloads"
SPEC, SHARES = {"containers": [{"name": "main", "image": "x"}]}, {"annotations": FRACTION}
OUR_SPEC = {**SPEC, "schedulerName": "kai-scheduler"}

BEFORE: list[tuple[str, Any]] = [
    (JOB_SETS, job_set("ours", OURS, FOREIGN)),
    (JOB_SETS, job_set("foreign", FOREIGN)),
    (JOB_SETS, job_set("leaving", OURS, finalizers=["example.com/keep"])),
    (RAY_CLUSTERS, ray_cluster("ours", OURS, OURS, FOREIGN)),
    (PYTORCH_JOBS, pytorch_job("ours", Master=OURS, Worker=OURS)),
    (PATHS["PodCliqueSet"], object_of("PodCliqueSet", "ours",
        {"template": {"cliques": [{"spec": {"podSpec": OUR_SPEC}}]}})),
    (PATHS["InferenceService"], object_of("InferenceService", "ours",
        {"predictor": {"schedulerName": "kai-scheduler"}})),
    (PATHS["Workflow"], object_of("Workflow", "ours", {"schedulerName": "kai-scheduler",
        "templates": [{"name": "a"}]})),
]  # fmt: skip


@pytest.fixture(scope="module")
def cluster_with_hooks(chart_cluster: Cluster, chart: Chart) -> Iterator[Cluster]:
    """A cluster with the kinds, an object or two of each, and the validating hooks failing closed."""
    install(chart_cluster, *KINDS)
    for path, body in BEFORE:
        chart_cluster.api.post(path, body)
    chart_cluster.api.delete(f"{JOB_SETS}/leaving")
    own = {"templates": ["spec.pod"], "podSpecs": [{"path": "spec.podSpec", "metadata": "spec"}]}
    workloads = [
        {"kind": kind, "group": workload_of(kind).group} | ({**own, "resource": "owns"} if kind == "Own" else {})
        for kind in KINDS
    ]
    values = {"webhook": {"url": NO_LISTENER}, "config": {"workloads": workloads}}
    (configuration,) = chart.render(values).of_kind("ValidatingWebhookConfiguration")
    configuration = deepcopy(configuration)
    for hook in configuration["webhooks"]:
        hook["failurePolicy"] = "Fail"
    chart_cluster.api.post(f"{CONFIGURATION}?fieldValidation=Strict", configuration)
    # The API server watches configurations; each attempt is a request, no sleep.
    while called(chart_cluster, "POST", JOB_SETS, job_set("probe", OURS)) is None:
        pass
    yield chart_cluster
    chart_cluster.api.delete(f"{CONFIGURATION}/{configuration['metadata']['name']}")
    while called(chart_cluster, "POST", JOB_SETS, job_set("probe", OURS)) is not None:
        pass
    chart_cluster.api.patch(f"{JOB_SETS}/leaving", {"metadata": {"finalizers": None}})
    remove(chart_cluster, *KINDS)


JOB_SET_OWNER = owned_by("jobset.x-k8s.io/v1alpha2", "JobSet")
CREATES = {
    "a JobSet of ours": (JOB_SETS, job_set("a", OURS), VALIDATED),
    "a JobSet whose second job is of ours": (JOB_SETS, job_set("a", FOREIGN, OURS), VALIDATED),
    "a JobSet of another scheduler": (JOB_SETS, job_set("a", FOREIGN), None),
    "a template without anything": (JOB_SETS, job_set("a", {}), None),
    "with a worker group of ours": (RAY_CLUSTERS, ray_cluster("a", FOREIGN, FOREIGN, OURS), VALIDATED),
    "a PyTorchJob": (PYTORCH_JOBS, pytorch_job("a", Worker=OURS), VALIDATED),
    "a Job of a JobSet, which was validated": (JOBS, job("a", ownerReferences=JOB_SET_OWNER), None),
    "a Job that a JobSet owns but does not control": (JOBS,
        job("a", ownerReferences=owned_by("jobset.x-k8s.io/v1alpha2", "JobSet", controller=False)), VALIDATED),
    "a Job of another JobSet": (JOBS, job("a", ownerReferences=owned_by("example.com/v1", "JobSet")), VALIDATED),
    "a Job of a pod, which was validated itself": (JOBS, job("a", ownerReferences=owned_by("v1", "Pod")), None),
}  # fmt: skip


def clique_set(*cliques: Any, **metadata: Any) -> Any:
    return object_of("PodCliqueSet", "a", {"template": {"cliques": list(cliques)}}, **metadata)


def described(kind: str, spec: Any, **metadata: Any) -> Any:
    return PATHS[kind], object_of(kind, "a", spec, **metadata)


QUEUE = {names.QUEUE_LABEL: "team"}
FOREIGN_TASK, MODEL = {"template": FOREIGN}, {"model": {"image": "x"}}
DESCRIBED = {
    "a kind without namespaces": (*described("ClusterTrainingRuntime",
        {"template": {"spec": job_set("a", OURS)["spec"]}}), VALIDATED),
    "a RayCluster without a scheduler": (RAY_CLUSTERS, ray_cluster("a", {"spec": SPEC}), None),
    "with a queue of KAI": (RAY_CLUSTERS, ray_cluster("a", {"spec": SPEC}, labels=QUEUE), VALIDATED),
    "whose scheduler is in its spec": (*described("Job", {"schedulerName": "kai-scheduler",
        "tasks": [{"template": {"spec": SPEC}}]}), VALIDATED),
    "whose task has another": (*described("Job", {"schedulerName": "kai-scheduler", "tasks": [FOREIGN_TASK]}), None),
    "one with a clique of ours": (PATHS["PodCliqueSet"], clique_set({"spec": {"podSpec": SPEC}},
        {"spec": {"podSpec": OUR_SPEC}}), VALIDATED),
    "annotated, as are its pods": (*described("InferenceService", {"predictor": MODEL}, **SHARES), VALIDATED),
    "one component": (*described("InferenceService", {"predictor": MODEL, "transformer": {**SHARES}}), VALIDATED),
    "of ours": (*described("InferenceService", {"predictor": {**MODEL, "schedulerName": "kai-scheduler"}}),
        VALIDATED),
    "whose pods are all annotated": (*described("Workflow", {"podMetadata": SHARES,
        "templates": [{"container": {}}]}), VALIDATED),
    "of ours as a whole": (*described("Workflow", {"schedulerName": "kai-scheduler",
        "templates": [{"container": {}}]}), VALIDATED),
    "an own kind with a template": (*described("Own", {"pod": FOREIGN}), None),
    "a pod spec in place of its template": (*described("Own", {"pod": OUR_SPEC}), VALIDATED),
    "whose metadata is annotated": (*described("Own", {"podSpec": SPEC, **SHARES}), VALIDATED),
    "a template in place of its pod spec": (*described("Own", {"podSpec": OURS}), VALIDATED),
}  # fmt: skip


CREATED: dict[str, tuple[str, Any, str | None]] = {**CREATES, **DESCRIBED}


@pytest.mark.parametrize(("path", "body", "call"), CREATED.values(), ids=CREATED)
def test_creations_call_the_hook(cluster_with_hooks: Cluster, path: str, body: Any, call: str | None) -> None:
    assert called(cluster_with_hooks, "POST", path, body) == call


def jobs_of(*templates: Any, replicas: int = 1) -> Any:
    jobs = job_set("", *templates)["spec"]["replicatedJobs"]
    return [{**replicated_job, "replicas": replicas} for replicated_job in jobs]


def groups_of(*templates: Any, replicas: int = 1) -> Any:
    groups = ray_cluster("", OURS, *templates)["spec"]["workerGroupSpecs"]
    return [{**group, "replicas": replicas} for group in groups]


UPDATES = {
    "an annotation of a clique": (PATHS["PodCliqueSet"], {"spec": {"template": {"cliques": [{**SHARES,
        "spec": {"podSpec": OUR_SPEC}}]}}}, VALIDATED),
    "an annotation of all its pods": (PATHS["InferenceService"], {"metadata": SHARES}, VALIDATED),
    "one of the metadata of all pods": (PATHS["Workflow"], {"spec": {"podMetadata": SHARES}}, VALIDATED),
    "the scheduler of all pods": (PATHS["Workflow"], {"spec": {"schedulerName": "example-scheduler"}}, VALIDATED),
    "a queue of KAI": (RAY_CLUSTERS, {"metadata": {"labels": QUEUE}}, VALIDATED),
    "a template changed": (JOB_SETS, {"spec": {"replicatedJobs": jobs_of(OURS, SHARED)}}, VALIDATED),
    "a job more": (JOB_SETS, {"spec": {"replicatedJobs": jobs_of(OURS, FOREIGN, OURS)}}, VALIDATED),
    "suspended": (JOB_SETS, {"spec": {"suspend": True}}, None),
    "metadata alone": (JOB_SETS, {"metadata": {"labels": {"a": "b"}, "ownerReferences": None}}, None),
    "jobs scaled": (JOB_SETS, {"spec": {"replicatedJobs": jobs_of(OURS, FOREIGN, replicas=9)}}, None),
    "the head's template changed": (RAY_CLUSTERS, {"spec": {"headGroupSpec": {"template": SHARED}}}, VALIDATED),
    "a role's": (PYTORCH_JOBS, {"spec": {"pytorchReplicaSpecs": {"Worker": {"template": SHARED}}}}, VALIDATED),
    "a role more": (PYTORCH_JOBS, {"spec": {"pytorchReplicaSpecs": {"Chief": {"template": OURS}}}}, VALIDATED),
    "a role scaled": (PYTORCH_JOBS, {"spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": 9}}}}, None),
}  # fmt: skip


@pytest.mark.parametrize(("path", "patch", "call"), UPDATES.values(), ids=UPDATES)
def test_updates_call_the_hook(cluster_with_hooks: Cluster, path: str, patch: Any, call: str | None) -> None:
    assert called(cluster_with_hooks, "PATCH", f"{path}/ours", patch) == call


@pytest.mark.parametrize(
    ("method", "name", "patch"),
    [
        pytest.param(
            "PATCH", "foreign", {"spec": {"replicatedJobs": jobs_of({})}}, id="another scheduler's template"
        ),
        pytest.param("PATCH", "leaving", {"spec": {"replicatedJobs": jobs_of(SHARED)}}, id="one being deleted"),
        pytest.param("PATCH", "ours/status", {"status": {"restarts": 1}}, id="a status"),
    ],
)
def test_requests_of_a_covered_kind_without_a_call(
    cluster_with_hooks: Cluster, method: str, name: str, patch: Any
) -> None:
    assert called(cluster_with_hooks, method, f"{JOB_SETS}/{name}", patch) is None
