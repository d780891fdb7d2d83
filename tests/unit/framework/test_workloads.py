"""Which kinds are validated, their configuration, and the paths of their pod templates."""

from typing import Any

import pytest

from bowline.api import names
from bowline.api.field_error import FieldError
from bowline.api.rule import Rule
from bowline.framework.config import ConfigurationError, parse_settings
from bowline.framework.templates import Workload
from bowline.framework.workload_kinds import BUILT_IN, READY
from bowline.framework.workloads import PodSpecEntry, WorkloadEntry, resolve_workloads

HEAD = "apiVersion: config.bowline.dev/v1alpha1\nkind: BowlineConfiguration\n"


def kinds(text: str) -> dict[str, Workload]:
    """Return the validated kinds of a configuration with these workloads."""
    workloads, errors = resolve_workloads(parse_settings(f"{HEAD}workloads: {text}").workloads)
    assert errors == []
    return {workload.kind: workload for workload in workloads.values()}


def workload_errors(text: str) -> list[FieldError]:
    with pytest.raises(ConfigurationError) as caught:
        parse_settings(f"{HEAD}workloads: {text}")
    return list(caught.value.errors)


# --- the configuration ---


def test_by_default_the_built_in_kinds_are_validated_and_denied() -> None:
    workloads, errors = resolve_workloads(())
    assert (list(workloads.values()), errors) == (list(BUILT_IN), [])
    assert {workload.action for workload in BUILT_IN} == {"Deny"}


def test_every_known_kind_has_a_key_of_its_own_and_all_but_one_a_name() -> None:
    listed_kinds = (*BUILT_IN, *READY)
    assert len({workload.key for workload in listed_kinds}) == len(listed_kinds)
    kind_names = [workload.kind for workload in listed_kinds]
    assert {kind for kind in kind_names if kind_names.count(kind) > 1} == {"Job"}


@pytest.mark.parametrize("ready", [pytest.param(workload, id=workload.kind) for workload in READY])
def test_a_ready_kind_is_enabled_by_its_name(ready: Workload) -> None:
    if ready.kind != "Job":
        assert kinds(f"[{{kind: {ready.kind}}}]")[ready.kind] == ready
    assert kinds(f"[{{kind: {ready.kind}, group: {ready.group}}}]")[ready.kind] == ready


@pytest.mark.parametrize("kind", ["Deployment", "CronJob", "ReplicationController", "JobSet"])
def test_each_kind_can_be_warned_about_only(kind: str) -> None:
    workloads = kinds(f"[{{kind: {kind}, action: Warn}}]")
    assert workloads[kind].action == "Warn"
    assert {workload.action for workload in workloads.values() if workload.kind != kind} == {"Deny"}


NOT_KNOWN = "is not known by its name ("
PATH_RULE = "must lead from spec to a pod template, such as spec.groups[*].template: "
REFUSED: list[Any] = [
    pytest.param("[{kind: Jobset}]", [f'workloads[0].kind: "Jobset": {NOT_KNOWN}'], id="a misspelt name"),
    pytest.param("[{action: Warn}]", ["workloads[0].kind: null: is required"], id="no name"),
    pytest.param("[{kind: 'A b'}]", ['workloads[0].kind: "A b": '], id="a name that no kind can have"),
    pytest.param("[{kind: JobSet, mode: Warn}]", ['workloads[0].mode: "Warn": is not a known key'], id="unknown key"),
    pytest.param("[{kind: JobSet, action: Ignore}]", ['workloads[0].action: "Ignore": '], id="an unknown action"),
    pytest.param("[{kind: JobSet}, {kind: JobSet}]", ["is listed twice, first at workloads[0]"],
        id="a kind listed twice"),
    pytest.param("[{kind: Deployment, resource: deployments, templates: [spec.template]}]",
        ['workloads[0].resource: "deployments": is known', 'workloads[0].templates: "spec.template": is known'],
        id="a known kind with redundant fields"),
    pytest.param("[{group: a.b, kind: Own}]", ["workloads[0].resource: null: is required",
        "workloads[0].templates: null: is required"], id="an own kind with missing fields"),
    pytest.param("[{kind: Own, resource: owns, templates: [spec.t]}]", ["workloads[0].group: null: "],
        id="one without a group"),
    *(
        pytest.param(
            f"[{{group: a.b, kind: Own, resource: owns, templates: [spec.t, '{path}']}}]",
            [f'workloads[0].templates[1]: "{path}": {PATH_RULE}'],
            id=why,
        )
        for path, why in (
            ("template", "a path outside spec"),
            ("spec", "a path to all of spec"),
            ("spec..t", "a path with a hole"),
            ("spec.a.[*].t", "a list without a name"),
            ("spec[*].t", "spec as a list"),
            ("spec.*[*].t", "both kinds of each together"),
            ("spec.a-b.t", "a field that expressions cannot name"),
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "parts"), REFUSED)
def test_an_invalid_entry_is_rejected_with_its_path(text: str, parts: list[str]) -> None:
    faults = workload_errors(text)
    paths = [part.partition(": ")[0] if ": " in part else "workloads[1]" for part in parts]
    assert [fault.path for fault in faults] == paths
    assert [part for fault, part in zip(faults, parts, strict=True) if part not in str(fault)] == []


# --- the paths of templates ---


def own_kind(*templates: str) -> Workload:
    entry = WorkloadEntry(group="a.b", kind="Own", resource="owns", templates=templates)
    workloads, errors = resolve_workloads((entry,))
    assert not errors
    return workloads["a.b", "Own"]


RAW: dict[str, Any] = {
    "template": "not below spec",
    "spec": {"head": {"template": "h"}, "groups": [{"template": "g0"}, {"other": 1}, {"template": "g2"}],
        "roles": {"Worker": {"template": "w"}, "Master": {"template": "m"}, "Empty": {}},
        "nested": [{"a": {"x": {"t": [1]}}}, {"a": {"y": {"t": 2}}}], "null": None, "text": "x"},
}  # fmt: skip
FOUND = [
    pytest.param("spec.groups[*].template", ["spec.groups[0].template", "spec.groups[2].template"],
        id="only items with a template"),
    pytest.param("spec.roles.*.template", ["spec.roles[Master].template", "spec.roles[Worker].template"],
        id="by sorted key"),
    pytest.param("spec.nested[*].a.*.t", ["spec.nested[0].a[x].t", "spec.nested[1].a[y].t"],
        id="one within the other"),
    pytest.param("spec.text.template", [], id="nothing below a string"),
    pytest.param("spec.text[*].template", [], id="a string is no list"),
    pytest.param("spec.groups.*.template", [], id="a list is no object"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "paths"), FOUND)
def test_templates_are_found_where_the_path_leads(path: str, paths: list[str]) -> None:
    assert [template.path for template in own_kind(path).templates_in(RAW)] == paths


# --- pod specs ---


def own_pod_specs(path: str, metadata: str = "") -> Workload:
    entry = WorkloadEntry(
        group="a.b", kind="Own", resource="owns", pod_specs=(PodSpecEntry(path=path, metadata=metadata),)
    )
    workloads, errors = resolve_workloads((entry,))
    assert not errors
    return workloads["a.b", "Own"]


CLIQUES = {
    "spec": {"cliques": [{"annotations": {"a": "0"}, "labels": {"l": "x"}, "name": "n", "podSpec": {"nodeName": "n0",
        "other": 1}}, {"podSpec": {"containers": [{}]}}, {"annotations": {"a": "2"}}]},
}  # fmt: skip


def test_a_pod_spec_and_its_metadata_are_a_pod() -> None:
    first, second = own_pod_specs("spec.cliques[*].podSpec", "spec.cliques[*]").templates_in(CLIQUES)
    assert first.content == {
        "metadata": {"labels": {"l": "x"}, "annotations": {"a": "0"}},
        "spec": {"nodeName": "n0"},
    }
    assert second.content == {"metadata": {}, "spec": {"containers": [{}]}}
    paths = [(template.path, template.metadata_path) for template in (first, second)]
    assert paths == [(f"spec.cliques[{i}].podSpec", f"spec.cliques[{i}]") for i in (0, 1)]


@pytest.mark.parametrize(
    ("path", "expectation"),
    [
        pytest.param("metadata.annotations[a]", "spec.cliques[1].annotations[a]", id="an annotation"),
        pytest.param("spec.nodeName", "spec.cliques[1].podSpec.nodeName", id="a field of the spec"),
        pytest.param("spec.containers[0].name", "spec.cliques[1].podSpec.containers[0].name", id="a container"),
        pytest.param("", "spec.cliques[1].podSpec", id="the pod"),
    ],
)
def test_an_error_of_the_pod_has_the_path_in_the_object(path: str, expectation: str) -> None:
    *_, template = own_pod_specs("spec.cliques[*].podSpec", "spec.cliques[*]").templates_in(CLIQUES)
    assert template.place(FieldError(Rule("x/y", "a test's"), path, 1, "must not be")) == FieldError(
        Rule("x/y", "a test's"), expectation, 1, "must not be"
    )


@pytest.mark.parametrize(
    ("kind", "raw", "is_wrong"),
    [
        pytest.param(own_kind("spec.pod"), {"containers": []}, True, id="a pod spec at a template's path"),
        pytest.param(own_kind("spec.pod"), {"spec": {"containers": []}}, False, id="a template at a template's"),
        pytest.param(own_pod_specs("spec.pod"), {"spec": {"containers": []}}, True, id="a template at a spec's"),
        pytest.param(own_pod_specs("spec.pod"), "text", False, id="a string"),
    ],
)
def test_a_path_of_the_other_form_is_recognised(kind: Workload, raw: Any, is_wrong: bool) -> None:
    (template,) = kind.templates_in({"spec": {"pod": raw}})
    assert template.is_wrong_path is is_wrong


def known(kind: str) -> Workload:
    return next(ready for ready in READY if ready.kind == kind)


def test_containers_outside_the_list_are_named_and_have_their_own_paths() -> None:
    templates = [
        {
            "name": "a",
            "container": {"image": "i"},
            "sidecars": [{"name": "s"}],
            "metadata": {"annotations": {"k": "v"}},
        },
        {"name": "b", "script": "text", "containerSet": {"containers": [{"name": "c"}]}},
        {"name": "c", "steps": []},
    ]
    first, second = known("Workflow").templates_in({"spec": {"templates": templates}})
    assert first.content["spec"]["containers"] == [{"name": "main", "image": "i"}, {"name": "s"}]
    assert first.content["metadata"] == {"annotations": {"k": "v"}}
    error = FieldError(Rule("x/y", "a test's"), "spec.containers[1].resources", 1, "must not be")
    assert first.place(error).path == "spec.templates[0].sidecars[0].resources"
    assert second.content["spec"]["containers"] == [{"name": "c"}]


def test_annotations_of_an_inference_service_are_those_of_its_pods() -> None:
    raw = {
        "metadata": {"annotations": {"a": "object", "b": "object"}},
        "spec": {"predictor": {"annotations": {"b": "own"}, "model": {"image": "i"}, "minReplicas": 1}},
    }
    (template,) = known("InferenceService").templates_in(raw)
    assert template.content["metadata"]["annotations"] == {"a": "object", "b": "own"}
    assert template.content["spec"] == {"containers": [{"name": "kserve-container", "image": "i"}]}
    paths = [
        template.place(FieldError(Rule("x/y", "a test's"), f"metadata.annotations[{key}]", 1, "")).path
        for key in "ab"
    ]
    assert paths == ["metadata.annotations[a]", "spec.predictor.annotations[b]"]


RAY: dict[str, Any] = {"spec": {"headGroupSpec": {"template": {"spec": {"containers": []}}}}}
QUEUED: dict[str, Any] = {**RAY, "metadata": {"labels": {names.QUEUE_LABEL: "team"}}}
TASK: dict[str, Any] = {"template": {"spec": {"containers": []}}}


@pytest.mark.parametrize(
    ("kind", "raw", "scheduler"),
    [
        pytest.param(known("RayCluster"), RAY, None, id="a RayCluster without a queue"),
        pytest.param(known("RayCluster"), QUEUED, "kai-scheduler", id="a RayCluster with a queue"),
        pytest.param(known("Job"), {"spec": {"schedulerName": "s", "tasks": [TASK]}}, "s",
            id="a Volcano Job with one"),
        pytest.param(known("Job"), {"spec": {"schedulerName": "s",
            "tasks": [{"template": {"spec": {"schedulerName": "own"}}}]}}, "own", id="a task with its own"),
    ],
)  # fmt: skip
def test_a_controller_sets_the_scheduler_of_pods_that_name_none(kind: Workload, raw: Any, scheduler: str) -> None:
    (template,) = kind.templates_in(raw)
    assert template.content["spec"].get("schedulerName") == scheduler


@pytest.mark.parametrize(
    ("pod_spec", "message"),
    [
        pytest.param("{path: template}", "podSpecs[0].path", id="a path outside spec"),
        pytest.param("{path: 'spec.a[*].b', metadata: spec.a}", "must be spec.a[*] or lead on",
            id="not of each item"),
        pytest.param("{path: spec.a, metadata: metadata}", "must be spec or lead on", id="outside spec"),
    ],
)  # fmt: skip
def test_a_pod_spec_without_a_pods_metadata_is_an_error(pod_spec: str, message: str) -> None:
    (error,) = workload_errors(f"[{{group: a.b, kind: Own, resource: owns, podSpecs: [{pod_spec}]}}]")
    assert message in (error.path if message.startswith("podSpecs") else error.message)
