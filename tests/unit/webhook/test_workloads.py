"""Which workloads are judged, where their faults point, and what a controller may always do."""

import copy
from typing import Any

import pytest

from shared.framework.plugin import AdmissionInfo
from tests.unit.webhook.chains import marking
from tests.unit.webhook.reviews import pod
from webhook.workloads import TEMPLATES, judge_workload


def workload(kind: str, group: str = "apps", **metadata: Any) -> dict[str, Any]:
    """Return a workload with a bad template where its kind has it."""
    raw: Any = {key: value for key, value in pod({"bad": "x"}).items() if key in ("metadata", "spec")}
    for field in reversed(TEMPLATES[group, kind]):
        raw = {field: raw}
    return {"metadata": {"name": "w", **metadata}, **raw}


def judged(raw: Any, old: Any = None, kind: str = "Deployment", group: str = "apps") -> list[str]:
    info = AdmissionInfo(operation="CREATE" if old is None else "UPDATE", namespace="team", kind=kind)
    return [fault.path for fault in judge_workload(marking(), group, raw, old, info).errors]


def owned_by(kind: str, api_version: str, *, controller: bool = True) -> list[dict[str, Any]]:
    return [{"apiVersion": api_version, "kind": kind, "name": "o", "uid": "u", "controller": controller}]


@pytest.mark.parametrize(
    ("group", "kind", "path"),
    [
        ("apps", "Deployment", "spec.template"),
        ("apps", "StatefulSet", "spec.template"),
        ("apps", "DaemonSet", "spec.template"),
        ("apps", "ReplicaSet", "spec.template"),
        ("", "ReplicationController", "spec.template"),
        ("batch", "Job", "spec.template"),
        ("batch", "CronJob", "spec.jobTemplate.spec.template"),
    ],
)
def test_a_bad_template_is_refused_with_a_path_into_it(group: str, kind: str, path: str) -> None:
    assert judged(workload(kind, group), None, kind, group) == [f"{path}.metadata.annotations[bad]"]


def test_every_kind_is_tested_above() -> None:
    assert len(TEMPLATES) == 7


@pytest.mark.parametrize(
    ("owners", "refused"),
    [
        pytest.param(owned_by("Deployment", "apps/v1"), False, id="a ReplicaSet of a Deployment passes"),
        pytest.param(owned_by("CronJob", "batch/v1"), False, id="so does what a CronJob makes"),
        pytest.param(owned_by("PyTorchJob", "kubeflow.org/v1"), True, id="what nobody else judges is judged"),
        pytest.param(
            owned_by("Deployment", "other/v1"), True, id="a kind of that name in another group does not count"
        ),
        pytest.param(owned_by("Deployment", "apps/v1", controller=False), True, id="nor does a mere owner"),
        pytest.param([{}], True, id="nor an owner without a kind"),
        pytest.param(None, True, id="no owner"),
    ],
)
def test_what_a_judged_controller_makes_passes(owners: Any, refused: bool) -> None:
    assert bool(judged(workload("ReplicaSet", ownerReferences=owners), None, "ReplicaSet")) is refused


class TestUpdate:
    def test_an_unchanged_template_passes_whatever_is_in_it(self) -> None:
        old = workload("Deployment")
        new = copy.deepcopy(old)
        new["spec"]["replicas"] = 5
        assert judged(new, old) == []

    def test_a_changed_template_is_judged_as_a_whole(self) -> None:
        old = workload("Deployment")
        new = copy.deepcopy(old)
        new["spec"]["template"]["spec"]["containers"][0]["image"] = "y"
        assert judged(new, old) == ["spec.template.metadata.annotations[bad]"]

    def test_a_workload_that_is_being_deleted_passes(self) -> None:
        assert judged(workload("Deployment", deletionTimestamp="t"), {"metadata": {}, "spec": {}}) == []

    def test_an_old_object_of_any_shape_is_only_different(self) -> None:
        assert judged(workload("Deployment"), {"spec": "x"}) == ["spec.template.metadata.annotations[bad]"]


@pytest.mark.parametrize(
    ("raw", "paths"),
    [
        pytest.param({"metadata": {}, "spec": {}}, [], id="without a template the API server decides"),
        pytest.param({"metadata": {}, "spec": {"template": None}}, [], id="so it does with a null one"),
        pytest.param(
            {"metadata": {}, "spec": {"template": "x"}}, ["spec.template"], id="a template that is a string"
        ),
        pytest.param({"metadata": {}, "spec": {"template": {}}}, ["spec.template.spec"], id="one without a spec"),
        pytest.param({"metadata": "x", "spec": []}, ["metadata", "spec"], id="a workload of wrong types"),
    ],
)
def test_malformed_workloads(raw: Any, paths: list[str]) -> None:
    assert judged(raw) == paths
