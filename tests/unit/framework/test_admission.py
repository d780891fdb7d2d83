"""The admission chain: scope, order, all errors together, and plugins that fail."""

import copy
import sys
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from bowline.api import names
from bowline.api.bindrequest import BindRequest
from bowline.api.field_error import FieldError, annotation_path
from bowline.api.meta import Object
from bowline.api.rule import Rule, Severity
from bowline.framework.admission import ALLOWED, AdmissionChain, Verdict
from bowline.framework.config import Namespaces, Settings
from bowline.framework.interface.mutable import MutableObject, MutablePod
from bowline.framework.interface.plugin import AdmissionInfo, AdmissionPlugin, Plugin, PluginConfig
from bowline.framework.templates import Template

CREATE = AdmissionInfo(namespace="team")
UPDATE = AdmissionInfo(operation="UPDATE", namespace="team", is_validating_webhook=True)


class Labels(AdmissionPlugin):
    """Sets a label, then denies any pod with the annotation ``bad``; one error for each of its words."""

    name = "labels"

    def mutate_pod(self, pod: MutablePod, info: AdmissionInfo) -> None:
        pod.set("yes", "metadata", "labels", "seen")

    def validate_pod(self, pod: Object, old: Object | None, info: AdmissionInfo) -> Iterable[FieldError]:
        annotations = pod["metadata"].get("annotations") or {}
        for word in annotations.get("bad", "").split():
            yield FieldError(Rule("labels/bad", "a test's"), annotation_path("bad"), word, "must not be")
        if "odd" in annotations:
            yield FieldError(Rule("labels/odd", "a test's", Severity.WARNS), annotation_path("odd"), None, "is odd")


class Needs(AdmissionPlugin):
    """Denies a pod that the previous plugin has not labelled."""

    name = "needs"

    def validate_pod(self, pod: Object, old: Object | None, info: AdmissionInfo) -> Iterable[FieldError]:
        if (pod["metadata"].get("labels") or {}).get("seen") != "yes":
            yield FieldError(Rule("needs/seen", "a test's"), "metadata.labels[seen]", None, "is required")
        if info.is_validating_webhook:
            yield FieldError(Rule("needs/final", "a test's"), "", None, "is final")


class Raises(AdmissionPlugin):
    """Fails everywhere, within a change."""

    name = "raises"

    def mutate_pod(self, pod: MutablePod, info: AdmissionInfo) -> None:
        pod.set("done", "metadata", "labels", "half")
        pod.set("no", "metadata", "labels", "seen")
        raise LookupError("bug")

    def validate_pod(self, pod: Object, old: Object | None, info: AdmissionInfo) -> Iterable[FieldError]:
        yield FieldError(Rule("raises/one", "a test's"), "", None, "first")
        raise LookupError("bug")

    def mutate_ephemeral_containers(self, pod: MutablePod, old: Object, info: AdmissionInfo) -> None:
        self.mutate_pod(pod, info)

    def validate_ephemeral_containers(self, pod: Object, old: Object, info: AdmissionInfo) -> Iterable[FieldError]:
        raise LookupError("bug")

    def mutate_bind_request(self, request: MutableObject, info: AdmissionInfo) -> None:
        request.set("x", "metadata", "labels", "half")
        raise LookupError("bug")

    def validate_bind_request(self, request: Object, old: Object | None, info: AdmissionInfo) -> Iterable[FieldError]:
        sys.exit(3)

    def has_side_effects(self, request: BindRequest, pod: Object | None) -> bool:
        sys.exit(3)


class Strings(AdmissionPlugin):
    """Omits its return value."""

    name = "strings"

    def validate_pod(self, pod: Object, old: Object | None, info: AdmissionInfo) -> Iterable[FieldError]:
        return ["not a FieldError"]  # type: ignore[list-item]  # the bug under test


class Effects(AdmissionPlugin):
    """Would leave a change behind, and denies node ``bad``."""

    name = "effects"

    def has_side_effects(self, request: BindRequest, pod: Object | None) -> bool:
        return True

    def validate_bind_request(self, request: Object, old: Object | None, info: AdmissionInfo) -> Iterable[FieldError]:
        if request["spec"]["selectedNode"] == "bad":
            yield FieldError(Rule("effects/node", "a test's"), "spec.selectedNode", "bad", "must be good")


def chain(
    *plugins: type[Plugin], settings: Settings | None = None, own_namespace: str = "bowline-system"
) -> AdmissionChain:
    settings = settings or Settings()
    return AdmissionChain([plugin(PluginConfig(), settings) for plugin in plugins], settings, own_namespace)


def pod(scheduler: str | None = "example-scheduler", **metadata: Any) -> dict[str, Any]:
    spec: dict[str, Any] = {"containers": [{"name": "main", "image": "x"}]}
    if scheduler is not None:
        spec["schedulerName"] = scheduler
    return {"metadata": {"name": "p", **metadata}, "spec": spec}


def request(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "spec": {"podName": "p", "selectedNode": "n", **spec}}


def with_owner(raw: dict[str, Any], uid: str = "uid-1", name: str = "p") -> dict[str, Any]:
    raw["metadata"]["ownerReferences"] = [{"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}]
    return raw


def rules(verdict: Verdict) -> list[str]:
    return [fault.rule.id for fault in verdict.errors]


class TestOrder:
    def test_validation_sees_the_mutated_pod(self) -> None:
        assert chain(Labels, Needs).admit_pod(pod(), CREATE).allowed

    def test_an_object_with_errors_that_do_not_deny_is_not_patched(self) -> None:
        verdict = chain(Labels).admit_pod(pod(annotations={"bad": "x", "odd": ""}), CREATE).as_warnings()
        assert (verdict.allowed, verdict.patch) == (True, ())
        assert [fault.rule.id for fault in verdict.warnings] == ["labels/bad", "labels/odd"]


class TestScope:
    @pytest.mark.parametrize(
        ("raw", "namespace"),
        [
            pytest.param(pod(annotations={"bad": "x"}), "kube-system", id="kube-system is never in scope"),
            pytest.param(pod(annotations={"bad": "x"}), "bowline-system", id="Bowline's own namespace is not"),
            pytest.param(pod(annotations={"bad": "x"}), "excluded", id="a namespace that the configuration excludes"),
            pytest.param(pod("other", annotations={"bad": "x"}), "team", id="a pod of another scheduler"),
            pytest.param(pod(None, annotations={"bad": "x"}), "team", id="a pod without a scheduler name"),
            pytest.param(pod(annotations={"bad": "x", names.MIRROR_POD: "h"}), "team", id="a mirror pod"),
        ],
    )
    def test_out_of_scope_pods_pass_unchanged(self, raw: dict[str, Any], namespace: str) -> None:
        settings = Settings(namespaces=Namespaces(exclude=("excluded",)))
        before, info = copy.deepcopy(raw), AdmissionInfo(namespace=namespace)
        assert chain(Labels, settings=settings).admit_pod(raw, info) == ALLOWED
        assert raw == before
        assert chain(Labels, settings=settings).validate_pod(raw, None, info) == ALLOWED

    def test_every_scheduler_is_ours_with_a_star(self) -> None:
        settings = Settings(scheduler_names=("*",))
        verdict = chain(Labels, settings=settings).admit_pod(pod(None, annotations={"bad": "x"}), CREATE)
        assert rules(verdict) == ["labels/bad"]

    @pytest.mark.parametrize("key", names.SHARE_ANNOTATIONS)
    def test_a_share_without_a_plugin_gets_a_warning(self, key: str) -> None:
        verdict = chain(Labels).admit_pod(pod(None, annotations={key: "0.5"}), CREATE)
        assert verdict.allowed
        assert [(fault.rule.id, fault.path) for fault in verdict.warnings] == [
            ("scope/scheduler", annotation_path(key))
        ]
        assert len(str(verdict.warnings[0])) <= 160

    @pytest.mark.parametrize(
        ("scheduler", "is_reported"),
        [("kai-schedular", True), ("Kai-scheduler", True), ("kai-scheduler-b", False), ("default-scheduler", False)],
    )
    def test_a_misspelt_scheduler_gets_a_warning(self, scheduler: str, is_reported: bool) -> None:
        verdict = chain(Labels).admit_pod(pod(scheduler), CREATE)
        paths = [(warning.rule.id, warning.path) for warning in verdict.warnings]
        assert paths == ([("scope/scheduler-name", "spec.schedulerName")] if is_reported else [])

    def test_a_pod_that_is_being_deleted_passes(self) -> None:
        raw = pod(annotations={"bad": "x"}, deletionTimestamp="2026-01-01T00:00:00Z")
        assert chain(Labels).validate_pod(raw, pod(), UPDATE) == ALLOWED


class TestUpdate:
    def test_an_old_error_does_not_deny_an_unrelated_change(self) -> None:
        old = pod(annotations={"bad": "a"}, finalizers=["x"])
        assert chain(Labels, Needs).validate_pod(pod(annotations={"bad": "a"}), old, UPDATE).allowed

    def test_a_plugin_that_raises_for_old_and_new_denies_nothing(self) -> None:
        assert chain(Raises).validate_pod(pod(), pod(), UPDATE).allowed

    def test_an_old_pod_that_is_malformed_excuses_nothing(self) -> None:
        old: dict[str, Any] = {"metadata": None, "spec": []}
        assert rules(chain(Labels).validate_pod(pod(annotations={"bad": "a"}), old, UPDATE)) == ["labels/bad"]


class TestTemplates:
    def test_errors_have_paths_into_the_template(self) -> None:
        template = {"metadata": {"annotations": {"bad": "x"}}, "spec": pod()["spec"]}
        verdict = chain(Labels).validate_template(Template.at("spec.template", template), CREATE)
        assert [(fault.path, fault.value) for fault in verdict.errors] == [
            ("spec.template.metadata.annotations[bad]", "x")
        ]
        assert verdict.patch == ()

    @pytest.mark.parametrize(
        ("template", "path"),
        [
            pytest.param("text", "spec.template", id="a template that is no object"),
            pytest.param({"metadata": [], "spec": {}}, "spec.template.metadata", id="metadata that is a list"),
        ],
    )  # fmt: skip
    def test_a_malformed_template_is_denied_with_its_path(self, template: Any, path: str) -> None:
        verdict = chain(Raises).validate_template(Template.at("spec.template", template), CREATE)
        assert [fault.path for fault in verdict.errors] == [path]


class TestPluginsThatFail:
    def recording_chain(self, *plugins: type[Plugin]) -> tuple[AdmissionChain, list[tuple[str, str, str]]]:
        calls: list[tuple[str, str, str]] = []

        def record(plugin: str, point: str, error: BaseException) -> None:
            calls.append((plugin, point, type(error).__name__))

        return AdmissionChain([p(PluginConfig(), Settings()) for p in plugins], Settings(), on_error=record), calls

    def test_a_failing_mutate_leaves_no_partial_change_and_the_others_run(self) -> None:
        raw = pod()
        failing, calls = self.recording_chain(Labels, Raises)
        failing.admit_pod(raw, CREATE)
        assert raw["metadata"]["labels"] == {"seen": "yes"}
        assert calls[0] == ("raises", "mutate_pod", "LookupError")

    def test_a_failing_validate_denies_beside_the_errors_of_the_others(self) -> None:
        failing, calls = self.recording_chain(Raises, Labels)
        verdict = failing.validate_pod(pod(annotations={"bad": "x"}), None, CREATE)
        assert rules(verdict) == ["raises/internal", "labels/bad"]
        assert "LookupError" in verdict.errors[0].message
        assert calls == [("raises", "validate_pod", "LookupError")]

    def test_a_plugin_that_fails_for_ephemeral_containers_denies_and_leaves_no_change(self) -> None:
        raw = pod()
        failing, calls = self.recording_chain(Raises)
        verdict = failing.admit_ephemeral_containers(raw, pod(), UPDATE)
        assert (rules(verdict), verdict.patch, raw) == (["raises/internal"], (), pod())
        assert [point for _, point, _ in calls] == ["mutate_ephemeral_containers", "validate_ephemeral_containers"]

    def test_a_plugin_that_returns_another_type_denies(self) -> None:
        failing, calls = self.recording_chain(Strings)
        assert rules(failing.validate_pod(pod(), None, CREATE)) == ["strings/internal"]
        assert calls == [("strings", "validate_pod", "TypeError")]

    def test_a_plugin_that_fails_for_a_request_denies_and_leaves_no_change(self) -> None:
        raw = request()
        failing, calls = self.recording_chain(Raises)
        verdict = failing.admit_bind_request(raw, CREATE)
        assert "labels" not in raw["metadata"]
        assert raw["metadata"]["finalizers"] == [names.FINALIZER], "whether it leaves effects is not known"
        assert rules(verdict) == ["raises/internal"]
        assert [point for _, point, _ in calls] == [
            "has_side_effects",
            "mutate_bind_request",
            "validate_bind_request",
        ]


class TestBindRequests:
    def test_the_pod_uid_is_taken_from_the_owner_reference(self) -> None:
        raw = with_owner(request())
        verdict = chain().admit_bind_request(raw, CREATE)
        assert verdict.patch == ({"op": "add", "path": "/spec/podUID", "value": "uid-1"},)
        assert raw["spec"]["podUID"] == "uid-1"

    @pytest.mark.parametrize("raw", [with_owner(request(), name="another"), with_owner(request(podUID="uid-1"))])
    def test_the_pod_uid_is_unchanged_if_the_owner_is_another_pod_or_it_is_given(self, raw: dict[str, Any]) -> None:
        assert chain().admit_bind_request(raw, CREATE) == ALLOWED

    def test_a_pod_uid_that_contradicts_the_owner_is_denied(self) -> None:
        verdict = chain().admit_bind_request(with_owner(request(podUID="uid-2")), CREATE)
        assert [(fault.rule.id, fault.path) for fault in verdict.errors] == [("bindrequest/pod-uid", "spec.podUID")]

    def test_a_new_request_has_the_name_of_its_pod(self) -> None:
        raw = with_owner(request(podName="other", backoffLimit="many"))
        verdict = chain(Effects).admit_bind_request(raw, CREATE)
        assert [(fault.rule.id, fault.path) for fault in verdict.errors] == [
            ("bindrequest/pod-name", "metadata.name"),
            ("bindrequest/schema", "spec.backoffLimit"),
        ], "every error at once"
        assert not verdict.patch

    def test_a_stored_request_with_another_name_than_its_pod_can_be_updated(self) -> None:
        old = request(podName="other")
        raw = request(podName="other", backoffLimit=1)
        assert chain().admit_bind_request(raw, UPDATE, old) == ALLOWED

    def test_the_finalizer_is_added_once_with_the_plugins_that_leave_effects(self) -> None:
        raw = request()
        first, second = (chain(Effects).admit_bind_request(raw, CREATE) for _ in range(2))
        assert raw["metadata"]["finalizers"] == [names.FINALIZER]
        assert first.patch == (
            {"op": "add", "path": "/metadata/finalizers", "value": [names.FINALIZER]},
            {"op": "add", "path": "/metadata/annotations", "value": {names.EFFECTS: "effects"}},
        )
        assert not second.patch

    @pytest.mark.parametrize(
        ("change", "paths"),
        [
            pytest.param({"selectedNode": "m", "podName": "q"}, ["spec.podName", "spec.selectedNode"],
                id="two fields"),
            pytest.param({"backoffLimit": 3}, [], id="backoffLimit"),
            pytest.param({"selectedNode": "m", "deleted": True}, [], id="of a request that is deleted"),
        ],
    )  # fmt: skip
    def test_another_decision_is_denied(self, change: dict[str, Any], paths: list[str]) -> None:
        raw = request(**change)
        if raw["spec"].pop("deleted", False):
            raw["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        verdict = chain().admit_bind_request(raw, UPDATE, request())
        assert [(fault.path, fault.rule.id) for fault in verdict.errors if not fault.is_warning] == [
            (path, "bindrequest/immutable") for path in paths
        ]

    @pytest.mark.parametrize(
        ("change", "expectation"),
        [
            pytest.param(lambda raw: raw["metadata"].update(finalizers=[]), [],
                id="an old error beside other fields"),
            pytest.param(lambda raw: raw["spec"].update(backoffLimit=1), ["effects/node"], id="a changed spec"),
            pytest.param(lambda raw: (raw["metadata"].update(deletionTimestamp="t"),
                raw["spec"].update(backoffLimit=1)), [], id="a request that is being deleted"),
        ],
    )  # fmt: skip
    def test_on_update_only_a_changed_spec_is_validated(
        self, change: Callable[[Any], None], expectation: list[str]
    ) -> None:
        old = request(selectedNode="bad")
        new = copy.deepcopy(old)
        change(new)
        assert rules(chain(Effects).admit_bind_request(new, UPDATE, old)) == expectation

    @pytest.mark.parametrize(
        ("raw", "path"),
        [
            pytest.param({"spec": {}}, "metadata", id="without metadata"),
            pytest.param({"metadata": {"name": "r"}, "spec": "x"}, "spec", id="whose spec is a string"),
            pytest.param({"metadata": {"name": "r", "ownerReferences": "x"}, "spec": {}}, "metadata.ownerReferences",
                id="whose owners are a string"),
        ],
    )  # fmt: skip
    def test_a_malformed_request_is_denied_with_its_path(self, raw: dict[str, Any], path: str) -> None:
        assert [fault.path for fault in chain(Effects).admit_bind_request(raw, CREATE).errors] == [path]
