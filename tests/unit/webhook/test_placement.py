"""What a workload has at a place where its pods do not have it."""

import copy
from typing import Any

import pytest

from bowline.framework.admission import AdmissionChain
from bowline.framework.config import Settings
from bowline.framework.interface.plugin import AdmissionInfo
from bowline.framework.workload_kinds import READY
from bowline.framework.workloads import WorkloadEntry, resolve_workloads
from bowline_webhook.placement import unknown_devices
from bowline_webhook.workloads import review_workload
from tests.unit.webhook.chains import built_in

Json = dict[str, Any]
OWN = WorkloadEntry(kind="Own", group="example.com", resource="owns", templates=("spec.pod",))
ENTRIES = (*(WorkloadEntry.model_construct(kind=w.kind, group=w.group) for w in READY), OWN)
SETTINGS = Settings(workloads=ENTRIES)
HALF = {"gpu-fraction": "0.5"}
GPU = {"nvidia.com/gpu": 1}
POD: Json = {"metadata": {}, "spec": {"schedulerName": "example-scheduler", "containers": [{"name": "main"}]}}
OTHER: Json = {"metadata": {}, "spec": {"containers": [{"name": "main"}]}}
GPUS: Json = {"metadata": {}, "spec": {**POD["spec"], "containers": [{"resources": {"limits": GPU}}]}}
SHARE: Json = {"metadata": {"annotations": HALF}, "spec": POD["spec"]}


def deployment(template: Json = POD, metadata: Json | None = None, **spec: Any) -> Json:
    return {"metadata": {"name": "w", **(metadata or {})}, "spec": {"template": template, **spec}}


def ray(**head: Any) -> Json:
    return {"metadata": {"name": "w"}, "spec": {"headGroupSpec": {"template": POD, **head}}}


def warnings(kind: str, raw: Json) -> list[tuple[str, str, str]]:
    """Return rule, path and remedy of each warning about a place."""
    chain: AdmissionChain = built_in(settings=SETTINGS)
    (workload,) = [entry for entry in chain.workloads.values() if entry.kind == kind]
    result = review_workload(chain, workload, copy.deepcopy(raw), None, AdmissionInfo(kind=kind))
    assert result.allowed, result.errors
    return [
        (error.rule.id, error.path, error.message.partition("; ")[2])
        for error in result.warnings
        if error.rule.id.endswith("-place")
    ]


ANNOTATION, SCHEDULER = "workload/annotation-place", "scope/scheduler-place"
IN_TEMPLATE = "set it in spec.template.metadata.annotations"


@pytest.mark.parametrize(
    ("kind", "raw", "expectation"),
    [
        pytest.param(
            "Deployment",
            deployment(metadata={"annotations": {key: "1"}}),
            [(ANNOTATION, f"metadata.annotations[{key}]", IN_TEMPLATE)],
            id=f"{key} on the object",
        )
        for key in ("gpu-fraction", "gpu-memory", "gpu-fraction-num-devices", "gpu-fraction-container-name", "mps")
    ]
    + [
        pytest.param("Deployment", deployment(annotations=HALF), [(ANNOTATION, "spec.annotations[gpu-fraction]",
            IN_TEMPLATE)], id="in the spec"),
        pytest.param("Deployment", deployment({**POD, "annotations": HALF}), [(ANNOTATION,
            "spec.template.annotations[gpu-fraction]", IN_TEMPLATE)], id="beside the pod's metadata"),
        pytest.param("CronJob", {"metadata": {}, "spec": {"jobTemplate": {"metadata": {"annotations": HALF},
            "spec": {"template": POD}}}}, [(ANNOTATION, "spec.jobTemplate.metadata.annotations[gpu-fraction]",
            "set it in spec.jobTemplate.spec.template.metadata.annotations")], id="of the job"),
        pytest.param("RayCluster", ray(annotations=HALF), [(ANNOTATION,
            "spec.headGroupSpec.annotations[gpu-fraction]",
            "set it in spec.headGroupSpec.template.metadata.annotations")],
            id="beside a template of another project"),
        pytest.param("PyTorchJob", {"metadata": {}, "spec": {"pytorchReplicaSpecs": {"Master": {"template": POD},
            "Worker": {"template": POD, "annotations": HALF}}}}, [(ANNOTATION,
            "spec.pytorchReplicaSpecs.Worker.annotations[gpu-fraction]",
            "set it in spec.pytorchReplicaSpecs[Worker].template.metadata.annotations")],
            id="the nearest template is named"),
        pytest.param("Own", {"metadata": {}, "spec": {"pod": POD, "extra": HALF}}, [(ANNOTATION,
            "spec.extra[gpu-fraction]", "set it in spec.pod.metadata.annotations")],
            id="in a kind of the configuration"),
        pytest.param("Deployment", deployment(OTHER, schedulerName="kai-scheduler"), [(SCHEDULER,
            "spec.schedulerName", "set spec.template.spec.schedulerName")], id="the scheduler in the spec"),
        pytest.param("Deployment", deployment(OTHER, metadata={"labels": {"schedulerName": "kai-scheduler"}}),
            [(SCHEDULER, "metadata.labels[schedulerName]", "set spec.template.spec.schedulerName")],
            id="the scheduler as a label"),
    ],
)  # fmt: skip
def test_a_wrong_place_has_the_right_one(kind: str, raw: Json, expectation: list[tuple[str, str, str]]) -> None:
    assert warnings(kind, raw) == expectation


NODES = {"nodeSelector": {"nvidia.com/gpu": "true"}}


@pytest.mark.parametrize(
    ("kind", "raw"),
    [
        pytest.param("Deployment", deployment(SHARE, metadata={"annotations": HALF}), id="also on the object"),
        pytest.param("Deployment", deployment({**POD, "spec": {**POD["spec"], **NODES}}), id="a node selector"),
        pytest.param("Deployment", deployment(schedulerName="kai-scheduler"), id="the scheduler, also of the pod"),
        pytest.param("Deployment", deployment(OTHER, schedulerName="volcano"), id="a scheduler that is not ours"),
        pytest.param("Deployment", deployment(mps={"replicas": 2}, other={"mps": "true"}), id="a field called mps"),
        pytest.param("Deployment", {**deployment(), "status": {"annotations": HALF}}, id="the status"),
        pytest.param("Deployment", {"metadata": {"annotations": HALF}, "spec": {"template": None}}, id="no template"),
        pytest.param("RayCluster", ray(resources={"limits": GPU}), id="GPUs for another project's controller"),
        pytest.param("NIMService", {"metadata": {}, "spec": {"annotations": HALF, "schedulerName": "kai-scheduler",
            "resources": {"requests": {"cpu": 1}}}}, id="a spec that is the pod's"),
        pytest.param("Notebook", {"metadata": {"annotations": HALF}, "spec": {"template": {"spec": POD["spec"]}}},
            id="metadata that the pods get"),
    ],
)  # fmt: skip
def test_what_is_no_mistake_has_no_warning(kind: str, raw: Json) -> None:
    assert warnings(kind, raw) == []


def test_an_unchanged_template_is_not_reviewed_again() -> None:
    chain = built_in(settings=SETTINGS)
    raw = deployment(metadata={"annotations": HALF})
    workload = chain.workloads["apps", "Deployment"]
    info = AdmissionInfo(kind="Deployment", operation="UPDATE")
    assert review_workload(chain, workload, copy.deepcopy(raw), raw, info).warnings == ()


@pytest.mark.parametrize(
    ("raw", "places"),
    [
        pytest.param(ray(resources={"limits": GPU}), ["spec.headGroupSpec.resources.limits"], id="beside a template"),
        pytest.param(ray(template=GPUS), [], id="in a container"),
        pytest.param(ray(minResources=GPU), [], id="of a group of pods"),
        pytest.param({**ray(), "status": {"desiredGPU": {"limits": GPU}}}, [], id="in the status"),
    ],
)
def test_gpus_that_are_in_no_known_pod_are_named(raw: Json, places: list[str]) -> None:
    kinds, _ = resolve_workloads(SETTINGS.workloads)
    workload = kinds["ray.io", "RayCluster"]
    assert unknown_devices(workload, raw, list(workload.templates_in(raw))) == places


def test_the_search_is_bounded() -> None:
    deep: Any = HALF
    for _ in range(150):
        deep = [deep]
    assert warnings("Deployment", deployment(extra=deep)) != []
    assert warnings("Deployment", deployment(extra=[[{}] * 30_000, HALF])) == []
