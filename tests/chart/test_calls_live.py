"""Which requests make the API server call a webhook: the matchConditions, evaluated by the API server.

Every hook fails closed and has an address without a listener. A request that calls it is denied, and the denial names
the path; one that calls none is allowed. A condition that cannot be evaluated would be a denial, too. All requests
are dry runs, so the objects remain as they were created before the hooks.
"""

import re
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
import yaml

from bowline.api import names
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.errors import LocalApiError
from tests.api.samples import bind_request, spec
from tests.chart.objects import (
    BARE_JOB,
    CRON_JOBS,
    DAEMON_SETS,
    DEPLOYMENTS,
    FRACTION,
    JOBS,
    MIRROR_POD,
    PODS,
    REPLICA_SETS,
    REQUESTS,
    STATEFUL_SETS,
    cron_job,
    image_changed,
    job,
    owned_by,
    pod,
    template,
    with_environment,
    workload,
)
from tests.chart.rendering import NAMESPACE, Chart
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
from tests.waiting import wait_until

NO_LISTENER = "https://127.0.0.1:1"
DRY = "?dryRun=All"
OURS_AGAIN = pod("a", "kai-scheduler", {})

KINDS = (
    *("JobSet", "RayCluster", "PyTorchJob", "ClusterTrainingRuntime", "Job", "PodCliqueSet", "InferenceService"),
    *("Workflow", "Own"),
)
PATHS = {kind: objects_path(kind, "default") for kind in KINDS}
JOB_SETS, RAY_CLUSTERS, PYTORCH_JOBS = (PATHS[kind] for kind in KINDS[:3])
OURS, FOREIGN, SHARED = template("kai-scheduler"), template("other"), template("other", FRACTION)
VALIDATED = "/validate/workloads"
SPEC, SHARES = {"containers": [{"name": "main", "image": "x"}]}, {"annotations": FRACTION}
OUR_SPEC = {**SPEC, "schedulerName": "kai-scheduler"}

OF_KINDS: list[tuple[str, Any]] = [
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
# Of a kind that the chart does not know.
OWN = {"resource": "owns", "templates": ["spec.pod"], "podSpecs": [{"path": "spec.podSpec", "metadata": "spec"}]}
WORKLOADS = [{"kind": kind, "group": workload_of(kind).group} | (OWN if kind == "Own" else {}) for kind in KINDS]
VALUES = {"webhook": {"url": NO_LISTENER}, "config": {"workloads": WORKLOADS}}

BEFORE: list[tuple[str, Any]] = [
    (PODS, pod("ours", "kai-scheduler", FRACTION, finalizers=["example.com/keep"])),
    (PODS, pod("plain", "kai-scheduler")),
    (PODS, pod("foreign", "", FRACTION)),
    (PODS, pod("leaving", "kai-scheduler", FRACTION, finalizers=["example.com/keep"])),
    (DEPLOYMENTS, workload("ours")),
    (DEPLOYMENTS, workload("foreign", "default-scheduler")),
    # Half a megabyte: the comparison of templates must be within the API server's limit on the cost of a condition.
    (DEPLOYMENTS, with_environment(workload("huge"), 4000)),
    (DEPLOYMENTS, workload("leaving", finalizers=["example.com/keep"])),
    (REPLICA_SETS, workload("of-deployment", ownerReferences=owned_by("apps/v1", "Deployment"))),
    (CRON_JOBS, cron_job("ours")),
    (REQUESTS, bind_request("ours", spec(), finalizers=["bowline.dev/rollback"])),
    (REQUESTS, bind_request("leaving", spec(), finalizers=["bowline.dev/rollback"])),
    *OF_KINDS,
]
LEAVING = (f"{PODS}/leaving", f"{DEPLOYMENTS}/leaving", f"{REQUESTS}/leaving", f"{JOB_SETS}/leaving")


# --- the harness ---


@pytest.fixture(scope="module")
def stocked(chart_cluster: Cluster, chart: Chart) -> Iterator[Cluster]:
    """A cluster with the CRDs and the objects, and no hook yet."""
    install(chart_cluster, *KINDS)
    (crd,) = chart.render().of_kind("CustomResourceDefinition")
    chart_cluster.kubectl("apply", "--server-side", "-f", "-", input=yaml.safe_dump(crd))
    chart_cluster.wait_established(crd["metadata"]["name"])
    for path, body in BEFORE:
        chart_cluster.api.post(path, body)
    for path in LEAVING:
        chart_cluster.api.delete(path)
    yield chart_cluster
    for path, body in BEFORE:
        name = body["metadata"]["name"]
        chart_cluster.api.patch(f"{path}/{name}", {"metadata": {"finalizers": None}})
        if f"{path}/{name}" not in LEAVING:
            chart_cluster.api.delete(f"{path}/{name}?gracePeriodSeconds=0")
    remove(chart_cluster, *KINDS)
    # Waits for its end: another file of this worker may install it.
    chart_cluster.kubectl("delete", "crd", crd["metadata"]["name"])


@pytest.fixture(scope="module", params=["mutating", "validating"])
def word_and_cluster(request: pytest.FixtureRequest, stocked: Cluster, chart: Chart) -> Iterator[tuple[str, Cluster]]:
    """The hooks of one kind, failing closed, with an address without a listener."""
    word = str(request.param)
    kind = f"{word.capitalize()}WebhookConfiguration"
    configuration: Any = deepcopy(chart.render(VALUES).get(kind, "bowline-webhook"))
    for hook in configuration["webhooks"]:
        hook["failurePolicy"] = "Fail"
    path = f"/apis/admissionregistration.k8s.io/v1/{kind.lower()}s"
    stocked.api.post(f"{path}?fieldValidation=Strict", configuration)
    probe = ("POST", PODS, pod("probe", "kai-scheduler"))
    # The API server watches configurations; each attempt is a request, no sleep.
    while called(stocked, *probe) is None:
        pass
    yield word, stocked
    stocked.api.delete(f"{path}/{configuration['metadata']['name']}")
    while called(stocked, *probe) is not None:
        pass


def called(cluster: Cluster, method: str, path: str, body: Any) -> str | None:
    """Return the path of the hook that the request called; None if it was allowed without a call."""
    kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
    try:
        cluster.api.request(method, path + DRY, body, kind)
    except LocalApiError as error:
        match = re.search(rf"{NO_LISTENER}([a-z/]+)", str(error))
        if match is None:
            raise AssertionError("refused by something else than a hook") from error
        return match.group(1)
    return None


CREATES = {
    "a pod of KAI": (PODS, pod("a", "kai-scheduler"), "/mutate/pods", "/validate/pods"),
    "a pod of ours": (PODS, pod("a", "kai-scheduler", {}), "/mutate/pods", "/validate/pods"),
    "a pod of the default scheduler": (PODS, pod("a"), None, None),
    **{
        f"a foreign pod with {key} is warned": (PODS, pod("a", "other", {key: "x"}), "/mutate/pods", None)
        for key in names.OWNED_ANNOTATIONS
    },
    "a mirror pod": (PODS, MIRROR_POD, None, None),
    "a pod in kube-system": (PODS.replace("default", "kube-system"), pod("a", "kai-scheduler", FRACTION), None, None),
    "a pod in our namespace": (PODS.replace("default", NAMESPACE), pod("a", "kai-scheduler", FRACTION), None, None),
    "a BindRequest": (REQUESTS, bind_request("a", spec()), "/mutate/bindrequests", None),
    "a Deployment of ours": (DEPLOYMENTS, workload("a"), None, "/validate/workloads"),
    "a Deployment of another scheduler": (DEPLOYMENTS, workload("a", "other"), None, None),
    "a foreign Deployment with a share": (DEPLOYMENTS, workload("a", "other", FRACTION), None, "/validate/workloads"),
    "a Deployment in kube-system": (DEPLOYMENTS.replace("default", "kube-system"), workload("a"), None, None),
    "a DaemonSet": (DAEMON_SETS, workload("a"), None, "/validate/workloads"),
    "a StatefulSet": (STATEFUL_SETS, workload("a"), None, "/validate/workloads"),
    "a ReplicationController": ("/api/v1/namespaces/default/replicationcontrollers", {"metadata": {"name": "a"},
        "spec": {"template": template("kai-scheduler")}}, None, "/validate/workloads"),
    "a ReplicaSet by hand": (REPLICA_SETS, workload("a"), None, "/validate/workloads"),
    "a ReplicaSet of a Deployment, which was validated": (REPLICA_SETS,
        workload("a", ownerReferences=owned_by("apps/v1", "Deployment")), None, None),
    "a Job": (JOBS, job("a"), None, "/validate/workloads"),
    "a Job of a CronJob": (JOBS, job("a", ownerReferences=owned_by("batch/v1", "CronJob")), None, None),
    "a Job whose template has only containers": (JOBS, BARE_JOB, None, None),
    "a CronJob": (CRON_JOBS, cron_job("a"), None, "/validate/workloads"),
}  # fmt: skip


def annotated(name: str, **annotations: str | None) -> tuple[str, Any]:
    keys = {key.replace("_", "-"): value for key, value in annotations.items()}
    return f"{PODS}/{name}", {"metadata": {"annotations": keys}}


UPDATES = {
    "a share changed": (annotated("ours", gpu_fraction="0.7"), "/validate/pods"),
    "a share taken away": (annotated("ours", gpu_fraction=None), "/validate/pods"),
    "one more of our annotations": (annotated("ours", mps="true"), "/validate/pods"),
    "a share written again": (annotated("ours", gpu_fraction="0.5"), None),
    "a foreign annotation": (annotated("ours", note="x"), None),
    "a pod's status": ((f"{PODS}/ours/status", {"status": {"phase": "Running"}}), None),
    "a share of another scheduler's pod": (annotated("foreign", gpu_fraction="0.7"), None),
    "a share of a pod being deleted": (annotated("leaving", gpu_fraction="0.7"), None),
    "the last finalizer of a pod": ((f"{PODS}/leaving", {"metadata": {"finalizers": None}}), None),
    "a Deployment's template": (image_changed(f"{DEPLOYMENTS}/ours"), "/validate/workloads"),
    "a Deployment scaled": ((f"{DEPLOYMENTS}/ours", {"spec": {"replicas": 5}}), None),
    "a huge Deployment's template": (image_changed(f"{DEPLOYMENTS}/huge"), "/validate/workloads"),
    "a foreign Deployment's template": (image_changed(f"{DEPLOYMENTS}/foreign"), None),
    "the template of a Deployment being deleted": (image_changed(f"{DEPLOYMENTS}/leaving"), None),
    "a template that a Deployment wrote": (image_changed(f"{REPLICA_SETS}/of-deployment"), None),
    "a CronJob's Job": ((f"{CRON_JOBS}/ours", {"spec": {"jobTemplate": {"spec": {"backoffLimit": 1}}}}), None),
    "a CronJob's template": ((f"{CRON_JOBS}/ours", {"spec": {"jobTemplate": image_changed("")[1]}}),
        "/validate/workloads"),
    "a request's limit": ((f"{REQUESTS}/ours", {"spec": {"backoffLimit": 1}}), "/mutate/bindrequests"),
    "a request's status": ((f"{REQUESTS}/ours/status", {"status": {"phase": "Succeeded"}}), None),
    "a request being deleted": ((f"{REQUESTS}/leaving", {"spec": {"backoffLimit": 1}}), None),
}  # fmt: skip


# --- configured kinds ---

JOB_SET_OWNER = owned_by("jobset.x-k8s.io/v1alpha2", "JobSet")
CREATES_OF_KINDS = {
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


def jobs_of(*templates: Any, replicas: int = 1) -> Any:
    jobs = job_set("", *templates)["spec"]["replicatedJobs"]
    return [{**replicated_job, "replicas": replicas} for replicated_job in jobs]


OUR_JOB_SET, OUR_RAY_CLUSTER, OUR_PYTORCH_JOB, OUR_WORKFLOW = (
    f"{PATHS[kind]}/ours" for kind in ("JobSet", "RayCluster", "PyTorchJob", "Workflow")
)
UPDATES_OF_KINDS: dict[str, tuple[str, Any, str | None]] = {
    "an annotation of a clique": (f"{PATHS['PodCliqueSet']}/ours", {"spec": {"template": {"cliques": [{**SHARES,
        "spec": {"podSpec": OUR_SPEC}}]}}}, VALIDATED),
    "an annotation of all its pods": (f"{PATHS['InferenceService']}/ours", {"metadata": SHARES}, VALIDATED),
    "one of the metadata of all pods": (OUR_WORKFLOW, {"spec": {"podMetadata": SHARES}}, VALIDATED),
    "the scheduler of all pods": (OUR_WORKFLOW, {"spec": {"schedulerName": "example-scheduler"}}, VALIDATED),
    "a queue of KAI": (OUR_RAY_CLUSTER, {"metadata": {"labels": QUEUE}}, VALIDATED),
    "a template changed": (OUR_JOB_SET, {"spec": {"replicatedJobs": jobs_of(OURS, SHARED)}}, VALIDATED),
    "a job more": (OUR_JOB_SET, {"spec": {"replicatedJobs": jobs_of(OURS, FOREIGN, OURS)}}, VALIDATED),
    "suspended": (OUR_JOB_SET, {"spec": {"suspend": True}}, None),
    "metadata alone": (OUR_JOB_SET, {"metadata": {"labels": {"a": "b"}, "ownerReferences": None}}, None),
    "jobs scaled": (OUR_JOB_SET, {"spec": {"replicatedJobs": jobs_of(OURS, FOREIGN, replicas=9)}}, None),
    "the head's template changed": (OUR_RAY_CLUSTER, {"spec": {"headGroupSpec": {"template": SHARED}}}, VALIDATED),
    "a role's": (OUR_PYTORCH_JOB, {"spec": {"pytorchReplicaSpecs": {"Worker": {"template": SHARED}}}}, VALIDATED),
    "a role more": (OUR_PYTORCH_JOB, {"spec": {"pytorchReplicaSpecs": {"Chief": {"template": OURS}}}}, VALIDATED),
    "a role scaled": (OUR_PYTORCH_JOB, {"spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": 9}}}}, None),
    "another scheduler's template": (f"{JOB_SETS}/foreign", {"spec": {"replicatedJobs": jobs_of({})}}, None),
    "one being deleted": (f"{JOB_SETS}/leaving", {"spec": {"replicatedJobs": jobs_of(SHARED)}}, None),
    "a status": (f"{JOB_SETS}/ours/status", {"status": {"restarts": 1}}, None),
}  # fmt: skip


# --- tests ---


@pytest.mark.parametrize(
    ("path", "body", "mutating", "validating"),
    [*CREATES.values(), *((path, body, None, call) for path, body, call in (CREATES_OF_KINDS | DESCRIBED).values())],
    ids=[*CREATES, *CREATES_OF_KINDS, *DESCRIBED],
)
def test_creations_call_these_hooks(
    word_and_cluster: tuple[str, Cluster], path: str, body: Any, mutating: str | None, validating: str | None
) -> None:
    word, cluster = word_and_cluster
    assert called(cluster, "POST", path, body) == {"mutating": mutating, "validating": validating}[word]


@pytest.mark.parametrize(
    ("change", "path"),
    [*UPDATES.values(), *(((path, patch), call) for path, patch, call in UPDATES_OF_KINDS.values())],
    ids=[*UPDATES, *UPDATES_OF_KINDS],
)
def test_updates_call_these_hooks(
    word_and_cluster: tuple[str, Cluster], change: tuple[str, Any], path: str | None
) -> None:
    word, cluster = word_and_cluster
    verb = {"mutating": "/mutate", "validating": "/validate"}[word]
    expectation = path if path and path.startswith(verb) else None
    assert called(cluster, "PATCH", *change) == expectation


def test_binding_eviction_and_deletion_call_no_hook(word_and_cluster: tuple[str, Cluster]) -> None:
    _, cluster = word_and_cluster
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "plain"},
        "target": {"kind": "Node", "name": "n"},
    }
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "plain"}}
    debugger = {"spec": {"ephemeralContainers": [{"name": "debug", "image": "example.com/debug"}]}}
    assert called(cluster, "POST", f"{PODS}/plain/binding", binding) is None
    assert called(cluster, "POST", f"{PODS}/plain/eviction", eviction) is None
    assert called(cluster, "PATCH", f"{PODS}/plain/ephemeralcontainers", debugger) is None
    for path in (f"{PODS}/ours", f"{DEPLOYMENTS}/ours", f"{REQUESTS}/ours"):
        assert called(cluster, "DELETE", path, None) is None


def test_the_metrics_of_the_alerts_count_calls_that_fail(word_and_cluster: tuple[str, Cluster]) -> None:
    """BowlineWebhookUnreachable: of hooks that deny, and of those that admit without a review."""
    word, cluster = word_and_cluster
    path = f"/apis/admissionregistration.k8s.io/v1/{word}webhookconfigurations/bowline-webhook"
    webhooks = cluster.api.get(path)["webhooks"]

    def set_policy(policy: str, *, is_called: bool) -> None:
        cluster.api.patch(path, {"webhooks": [hook | {"failurePolicy": policy} for hook in webhooks]})
        wait_until(
            lambda: (called(cluster, "POST", PODS, OURS_AGAIN) is not None) is is_called, "the policy is known"
        )

    set_policy("Ignore", is_called=False)
    set_policy("Fail", is_called=True)
    metrics, of_type = cluster.api.get("/metrics"), {"mutating": "admit"}.get(word, word)
    for metric, labels in (("rejection_count", 'error_type="calling_webhook_error",'), ("fail_open_count", "")):
        series = rf'(?m)^apiserver_admission_webhook_{metric}{{{labels}name="pods\.bowline\.dev",.*type="{of_type}"'
        assert re.search(series, metrics), metric
