"""What a workload has at a place where its pods do not have it."""

import copy
from typing import Any

import pytest

from bowline.framework.admission import AdmissionChain
from bowline.framework.config import Settings
from bowline.framework.interface.plugin import AdmissionInfo
from bowline.framework.workload_kinds import READY
from bowline.framework.workloads import WorkloadEntry
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


ANNOTATION = "workload/annotation-place"
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
        pytest.param("CronJob", {"metadata": {}, "spec": {"jobTemplate": {"metadata": {"annotations": HALF},
            "spec": {"template": POD}}}}, [(ANNOTATION, "spec.jobTemplate.metadata.annotations[gpu-fraction]",
            "set it in spec.jobTemplate.spec.template.metadata.annotations")], id="of the job"),
        pytest.param("JobSet", {"metadata": {}, "spec": {"replicatedJobs": [{"template": {"spec": {"template": POD}}},
            {"template": {"metadata": {"annotations": HALF}, "spec": {"template": POD}}}]}}, [(ANNOTATION,
            "spec.replicatedJobs[1].template.metadata.annotations[gpu-fraction]",
            "set it in spec.replicatedJobs[1].template.spec.template.metadata.annotations")], id="one of a list"),
    ],
)  # fmt: skip
def test_a_wrong_place_has_the_right_one(kind: str, raw: Json, expectation: list[tuple[str, str, str]]) -> None:
    assert warnings(kind, raw) == expectation


@pytest.mark.parametrize(
    ("kind", "raw"),
    [
        pytest.param("Deployment", deployment(SHARE, metadata={"annotations": HALF}), id="also on the object"),
        pytest.param("Deployment", {"metadata": {"annotations": HALF}, "spec": {"template": None}}, id="no template"),
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
