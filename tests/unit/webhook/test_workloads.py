"""Which workloads are validated, the paths of their errors, and what a controller may always do."""

import copy
from typing import Any

import pytest

from bowline.api import names
from bowline.framework.admission import ALLOWED, AdmissionChain, Verdict
from bowline.framework.config import Settings
from bowline.framework.interface.plugin import AdmissionInfo
from bowline.framework.templates import Workload
from bowline.framework.workload_kinds import BUILT_IN, READY
from bowline.framework.workloads import WorkloadEntry
from bowline_webhook.workloads import review_workload
from tests.foreign_kinds import filled
from tests.unit.webhook.chains import built_in, marking
from tests.unit.webhook.reviews import pod

# Of two kinds of one name the second is named with its group.
KINDS: dict[str, Workload] = {}
for listed in (*BUILT_IN, *READY):
    KINDS[listed.kind if listed.kind not in KINDS else f"{listed.kind}.{listed.group}"] = listed
ALL = Settings(workloads=tuple(WorkloadEntry(kind=ready.kind, group=ready.group) for ready in READY))


def template(annotations: Any = None, **spec: Any) -> dict[str, Any]:
    return {key: value for key, value in pod(annotations, **spec).items() if key in ("metadata", "spec")}


def workload(kind: str, **metadata: Any) -> dict[str, Any]:
    """Return a workload with an invalid template in each of its kind's places."""
    return {"metadata": {"name": "w", **metadata}, **copy.deepcopy(filled(KINDS[kind], template({"bad": "x"})))}


def verdict(raw: Any, old: Any = None, kind: str = "Deployment", settings: Settings = ALL) -> Verdict:
    chain: AdmissionChain = marking(settings=settings)
    info = AdmissionInfo(operation="CREATE" if old is None else "UPDATE", namespace="team", kind=kind)
    return review_workload(chain, chain.workloads[KINDS[kind].key], raw, old, info)


def error_paths(raw: Any, old: Any = None, kind: str = "Deployment") -> list[str]:
    return [fault.path for fault in verdict(raw, old, kind).errors]


def owned_by(kind: str, api_version: str, *, controller: bool = True) -> list[dict[str, Any]]:
    return [{"apiVersion": api_version, "kind": kind, "name": "o", "uid": "u", "controller": controller}]


SPARK = ["spec.driver.template", "spec.executor.template", "spec.driver", "spec.executor"]
# One kind for each form of a place.
PATHS = {
    "Deployment": ["spec.template"],
    "CronJob": ["spec.jobTemplate.spec.template"],
    "JobSet": ["spec.replicatedJobs[0].template.spec.template"],
    "RayJob": ["spec.rayClusterSpec.headGroupSpec.template", "spec.rayClusterSpec.workerGroupSpecs[0].template",
        "spec.submitterPodTemplate"],
    "PyTorchJob": ["spec.pytorchReplicaSpecs[Worker].template"],
    "TrainJob": ["spec.runtimePatches[0].trainingRuntimeSpec.template.spec.replicatedJobs[0].template.spec.template",
        "spec.podTemplateOverrides[0]"],
    "Job.batch.volcano.sh": ["spec.tasks[0].template"],
    "InferenceService": ["spec.predictor", "spec.transformer", "spec.explainer", "spec.canary[0].predictor"],
    "ServingRuntime": ["spec", "spec.workerSpec"],
    "Workflow": ["spec.templates[0].metadata"],
    "DynamoGraphDeployment": ["spec.components[0].podTemplate", "spec.services[Worker].extraPodMetadata"],
    "NIMService": ["spec"],
    "SparkApplication": SPARK,
    "ScheduledSparkApplication": [path.replace("spec.", "spec.template.", 1) for path in SPARK],
    "Notebook": ["metadata"],
}  # fmt: skip
# Of kinds with both forms: the paths of pod specs' metadata.
METADATA = {
    "metadata",
    "spec.services[Worker].extraPodMetadata",
    *(path for path in PATHS["SparkApplication"] if path.count(".") == 1),
}
METADATA |= {path for path in PATHS["ScheduledSparkApplication"] if path.count(".") == 2}


@pytest.mark.parametrize("kind", PATHS)
def test_an_invalid_template_is_denied_with_a_path_into_it(kind: str) -> None:
    has_templates = KINDS[kind].templates[0].metadata is None
    assert error_paths(workload(kind), None, kind) == [
        f"{path}.{'metadata.' if has_templates and path not in METADATA else ''}annotations[bad]"
        for path in PATHS[kind]
    ]


def test_a_kind_in_warn_mode_is_allowed_with_the_same_messages() -> None:
    kind = "JobSet"
    denial = verdict(workload(kind), None, kind)
    warn = Settings(workloads=(WorkloadEntry(kind=kind, action="Warn"),))
    warning_verdict = verdict(workload(kind), None, kind, warn)
    assert (warning_verdict.allowed, warning_verdict.patch) == (True, ())
    assert [str(fault) for fault in warning_verdict.warnings] == [str(fault) for fault in denial.errors]
    assert all(fault.is_warning for fault in warning_verdict.warnings)
    malformed_verdict = verdict({"metadata": [], "spec": {}}, None, kind, warn)
    assert [fault.path for fault in malformed_verdict.warnings] == ["metadata"]


@pytest.mark.parametrize(
    ("owners", "is_denied"),
    [
        pytest.param(owned_by("Deployment", "apps/v1"), False, id="a ReplicaSet of a Deployment passes"),
        pytest.param(owned_by("JobSet", "jobset.x-k8s.io/v1alpha2"), False, id="an object of a configured kind"),
        pytest.param(owned_by("JobSet", "jobset.x-k8s.io/v9"), False, id="in any version of it"),
        pytest.param(owned_by("Pod", "v1"), False, id="an object of a pod, which was validated itself"),
        pytest.param(owned_by("CloneSet", "apps.kruise.io/v1alpha1"), True,
            id="the only validated object of its chain"),
        pytest.param(owned_by("Deployment", "other/v1"), True,
            id="a kind of that name in another group does not count"),
        pytest.param(owned_by("Deployment", "apps/v1", controller=False), True,
            id="an owner that is not the controller"),
        pytest.param([{}], True, id="an owner without a kind"),
        pytest.param(None, True, id="no owner"),
    ],
)  # fmt: skip
def test_objects_of_a_validated_controller_are_allowed(owners: Any, is_denied: bool) -> None:
    assert bool(error_paths(workload("ReplicaSet", ownerReferences=owners), None, "ReplicaSet")) is is_denied


def test_a_workload_that_is_being_deleted_passes() -> None:
    assert error_paths(workload("Deployment", deletionTimestamp="t"), {"metadata": {}, "spec": {}}) == []


def ray_cluster(*groups: Any, head: Any = None) -> dict[str, Any]:
    """Return a RayCluster of these worker groups, given by their annotations."""
    return {
        "metadata": {"name": "r"},
        "spec": {
            "headGroupSpec": {"template": template(head)},
            "workerGroupSpecs": [{"replicas": 1, "template": template(group)} for group in groups],
        },
    }


BAD, WORSE, GOOD = {"bad": "x"}, {"bad": "y"}, {"note": "x"}


def group(*indexes: int) -> list[str]:
    return [f"spec.workerGroupSpecs[{index}].template.metadata.annotations[bad]" for index in indexes]


@pytest.mark.parametrize(
    ("new", "old", "paths"),
    [
        pytest.param(ray_cluster(BAD, BAD), None, group(0, 1), id="a new object: every template"),
        pytest.param(ray_cluster(BAD, GOOD), ray_cluster(BAD, None), [], id="a valid template beside an old error"),
        pytest.param(ray_cluster(BAD, WORSE), ray_cluster(BAD, None), group(1), id="a new error beside an old one"),
        pytest.param(ray_cluster(WORSE, BAD), ray_cluster(BAD, BAD), group(0),
            id="an old error in a changed template"),
        pytest.param(ray_cluster(GOOD, BAD), ray_cluster(BAD), [], id="a template inserted before the old error"),
        pytest.param(ray_cluster(BAD), ray_cluster(GOOD, BAD), [], id="a template removed before the old error"),
        pytest.param(ray_cluster(BAD, GOOD), ray_cluster(GOOD, BAD), [], id="two that changed places"),
        pytest.param(ray_cluster(BAD, BAD), ray_cluster(BAD), group(1), id="another copy of the old error"),
        pytest.param(ray_cluster(WORSE, BAD, BAD), ray_cluster(BAD), group(0, 2),
            id="one moved, its copy and another"),
        pytest.param(ray_cluster(BAD), ray_cluster(), group(0), id="the first of a list"),
        pytest.param(ray_cluster(), ray_cluster(BAD), [], id="the last of a list removed"),
        pytest.param(ray_cluster(GOOD, head=BAD), ray_cluster(head=BAD), [],
            id="a valid one in another place than the old error"),
        pytest.param(ray_cluster(BAD), {"metadata": {}}, group(0), id="an old object without a spec"),
    ],
)  # fmt: skip
def test_only_changed_templates_are_validated(new: Any, old: Any, paths: list[str]) -> None:
    assert error_paths(copy.deepcopy(new), copy.deepcopy(old), "RayCluster") == paths


@pytest.mark.parametrize(
    ("raw", "paths"),
    [
        pytest.param({"metadata": {}, "spec": {}}, [], id="without a template the API server decides"),
        pytest.param({"metadata": {}, "spec": {"template": None}}, [], id="a null template"),
        pytest.param({"metadata": {}, "spec": {"template": "x"}}, ["spec.template"],
            id="a template that is a string"),
        pytest.param({"metadata": {}, "spec": {"template": {}}}, ["spec.template.spec"], id="one without a spec"),
        pytest.param({"metadata": "x", "spec": []}, ["metadata", "spec"], id="a workload of wrong types"),
    ],
)  # fmt: skip
def test_malformed_workloads(raw: Any, paths: list[str]) -> None:
    assert error_paths(raw) == paths


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"jobTemplate": "nightly"}, id="a field called as one of a CronJob"),
        pytest.param({"jobTemplate": {"spec": []}}, id="such a field, malformed inside"),
        pytest.param(None, id="none"),
        pytest.param("x", id="a string"),
    ],
)
def test_the_shape_of_a_foreign_kind_is_left_to_its_own_schema(spec: Any) -> None:
    own_kind = WorkloadEntry(kind="Own", group="example.com", resource="owns", templates=("spec.groups[*].template",))
    chain: AdmissionChain = marking(settings=Settings(workloads=(own_kind,)))
    raw = {"metadata": {"name": "w"}, "spec": spec, "status": "ready"}
    info = AdmissionInfo(namespace="team", kind="Own")
    assert review_workload(chain, chain.workloads["example.com", "Own"], raw, None, info) == ALLOWED
    if isinstance(spec, dict):
        spec["groups"] = [{"template": template({"bad": "x"})}]
        assert not review_workload(chain, chain.workloads["example.com", "Own"], raw, None, info).allowed


# --- paths of the wrong form, and pods with containers from elsewhere ---


def test_a_container_may_come_from_a_runtime() -> None:
    annotations = {names.GPU_FRACTION: "0.5", names.GPU_FRACTION_CONTAINER: "node"}
    patch = {"metadata": {"annotations": annotations}, "spec": {"schedulerName": "example-scheduler"}}
    chain = built_in(settings=ALL)
    for kind, raw, is_allowed in (
        ("TrainJob", {"spec": {"podTemplateOverrides": [patch]}}, True),
        ("Deployment", {"spec": {"template": patch}}, False),
    ):
        workload_kind = chain.workloads[KINDS[kind].key]
        result = review_workload(chain, workload_kind, {"metadata": {}, **raw}, None, AdmissionInfo(kind=kind))
        assert result.allowed is is_allowed, result.errors


def test_resources_without_a_pod_spec_are_those_of_a_container() -> None:
    chain = built_in(settings=ALL)
    raw: Any = {
        "metadata": {"name": "n"},
        "spec": {"annotations": {"gpu-fraction": "0.5"}, "schedulerName": "example-scheduler"},
    }
    raw["spec"]["resources"] = {"limits": {"nvidia.com/gpu": "0.5"}}
    verdict = review_workload(chain, KINDS["NIMService"], raw, None, AdmissionInfo(kind="NIMService"))
    assert [error.path for error in verdict.errors] == ["spec.resources.limits[nvidia.com/gpu]"]
