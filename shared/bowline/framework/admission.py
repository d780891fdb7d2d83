"""The admission chain: runs every enabled plugin's mutate and validate methods on one object and collects all errors.

Pure: objects in, ``Verdict`` out. The webhook and ``bowline lint`` call the same functions and so agree.

The chain owns what is not a plugin's decision: which pods are in scope, what a failing plugin means, the
BindRequest's own rules. The same object always gives the same errors in the same order: plugin order, then each
plugin's own.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any, Final

from bowline.api import names
from bowline.api.bindrequest import (
    IMMUTABLE,
    BindRequest,
    changed_fields,
    decode_bind_request,
    decode_spec,
    effects_record,
    name_error,
    owner_pod_uid,
)
from bowline.api.field_error import FieldError, annotation_path
from bowline.api.meta import Object
from bowline.api.rule import DenialCause, Rule, Severity
from bowline.framework import scope, structure
from bowline.framework.config import SYSTEM_NAMESPACES, Settings
from bowline.framework.interface.mutable import MutableObject, MutablePod, PatchOperation
from bowline.framework.interface.plugin import AdmissionInfo, AdmissionPlugin, AnnotationReads, Plugin, overriding
from bowline.framework.templates import Template
from bowline.framework.workloads import resolve_workloads

POD_UID: Final = Rule("bindrequest/pod-uid", "`spec.podUID` of a BindRequest is not the UID of the pod that owns it")
TEMPLATE_PATH: Final = Rule(
    "workload/template-path",
    "a path of the configuration's `workloads` leads to a pod spec instead of a pod template, or the reverse: "
    "the object's pods are not reviewed where it is applied",
    severity=Severity.WARNS,
)
PLUGIN_OFF: Final = Rule(
    "plugin/off",
    "an annotation is read by a plugin that is off, so it has no effect",
    severity=Severity.WARNS,
)
MORE_ERRORS: Final = Rule("admission/more", "a denial has reached the number of errors after which a review ends")

RULES: Final = (
    POD_UID,
    *scope.RULES,
    TEMPLATE_PATH,
    PLUGIN_OFF,
    MORE_ERRORS,
)


# (plugin, extension point, exception): the caller logs and counts it; the chain itself stays pure.
OnPluginError = Callable[[str, str, BaseException], None]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one object: allowed unless there are ``errors``. ``patch`` is RFC 6902."""

    errors: tuple[FieldError, ...] = ()
    warnings: tuple[FieldError, ...] = ()
    patch: tuple[PatchOperation, ...] = ()

    @property
    def allowed(self) -> bool:
        """Whether the object may be stored."""
        return not self.errors

    def after(self, target: MutableObject) -> "Verdict":
        """Return this verdict with the patch of the mutation that preceded the validation, and its warnings.

        An object that is denied, or stored without its patch, is not changed: warnings about changes would be wrong.
        """
        changes = tuple(target.warnings) if self.allowed else ()
        return Verdict(self.errors, (*changes, *self.warnings), tuple(target.operations))

    def placed(self, template: Template) -> "Verdict":
        """Return this verdict on a template's pod with the paths of the workload, and without the patch, whose paths
        would be wrong.
        """
        return Verdict(tuple(map(template.place, self.errors)), tuple(map(template.place, self.warnings)))

    def as_warnings(self) -> "Verdict":
        """Return the verdict of a review that must not deny: allowed, each error as a warning, then the warnings.

        An object with errors is not patched: it is stored as its author wrote it.
        """
        if self.allowed:
            return self
        errors = [replace(error, is_downgraded=True) for error in self.errors]
        return Verdict(warnings=(*errors, *self.warnings))


@dataclass(frozen=True, slots=True)
class ReviewCall:
    """A plugin's method that reviews call."""

    plugin: str
    point: str
    method: Callable[..., Any]


ALLOWED = Verdict()
# Added where the review ended before all errors were found.
MORE = FieldError(
    MORE_ERRORS,
    "",
    None,
    f"there may be more errors: the review ends after {structure.MAX_ERRORS}; fix these first",
)


def _ignore(plugin: str, point: str, error: BaseException) -> None:
    """The default error handler: nowhere to report to."""


class AdmissionChain:
    """Admission with the enabled plugins.

    ``own_namespace`` is Bowline's own namespace, which is never in scope; ``default_scheduler``, that of pods that
    name none.
    """

    def __init__(
        self,
        plugins: Sequence[Plugin],
        settings: Settings,
        own_namespace: str = "",
        on_error: OnPluginError = _ignore,
        default_scheduler: str = names.DEFAULT_SCHEDULER,
        unread: Sequence[AnnotationReads] = (),
    ) -> None:
        self._unread = tuple(unread)
        self._default_scheduler = default_scheduler
        self._own_namespace = own_namespace
        self.settings = settings
        excluded_namespaces = (*SYSTEM_NAMESPACES, *settings.namespaces.exclude, own_namespace)
        self._excluded_namespaces = frozenset(excluded_namespaces) - {""}
        # The kinds whose pod templates are reviewed; errors of the configured ones were reported at startup.
        self.workloads, _ = resolve_workloads(settings.workloads)
        self._on_error = on_error
        self._current: ReviewCall | None = None
        self._plugins = tuple(plugins)
        reviewers = [plugin for plugin in plugins if isinstance(plugin, AdmissionPlugin)]
        self._mutate_pod = _calls(reviewers, AdmissionPlugin.mutate_pod)
        self._validate_pod = _calls(reviewers, AdmissionPlugin.validate_pod)
        self._mutate_ephemeral = _calls(reviewers, AdmissionPlugin.mutate_ephemeral_containers)
        self._validate_ephemeral = _calls(reviewers, AdmissionPlugin.validate_ephemeral_containers)
        self._mutate_request = _calls(reviewers, AdmissionPlugin.mutate_bind_request)
        self._validate_request = _calls(reviewers, AdmissionPlugin.validate_bind_request)
        self._side_effects = _calls(plugins, Plugin.has_side_effects)

    def for_unknown_scheduler(self) -> "AdmissionChain":
        """Return a chain in which a pod that names no scheduler is in scope: of a part of a pod it is not known."""
        scheduler = next(iter(self.settings.scheduler_names), self._default_scheduler)
        return AdmissionChain(
            self._plugins, self.settings, self._own_namespace, self._on_error, scheduler, self._unread
        )

    @property
    def current_call(self) -> ReviewCall | None:
        """The plugin's call in progress, for another thread that asks why a review does not end."""
        return self._current

    @property
    def bound_annotations(self) -> frozenset[str]:
        """The annotations that the plugins set on pods by the Binding."""
        return frozenset(key for plugin in self._plugins for key in plugin.access.binding_annotations)

    # --- pods ---

    def exclusion(self, spec: Object, namespace: str) -> str:
        """Return why pods with this spec are out of scope, so that no plugin reviews them; empty if they are not."""
        if namespace in self._excluded_namespaces:
            return f"namespace {namespace}"
        scheduler = spec.get("schedulerName") or self._default_scheduler
        return "" if self.settings.schedules(scheduler) else f"scheduler {scheduler}"

    def admit_pod(self, raw: dict[str, Any], info: AdmissionInfo) -> Verdict:
        """Mutate a new pod, then validate the result. Modifies ``raw`` in place."""
        return self._early_verdict(raw, info) or self._admit_in_scope(raw, info)

    def _admit_in_scope(self, raw: dict[str, Any], info: AdmissionInfo) -> Verdict:
        pod = MutablePod(raw)
        for call in self._mutate_pod:
            self._mutate(call, pod, info)
        return self._review_pod(raw, None, info).after(pod)

    def validate_pod(self, raw: Object, old: Object | None, info: AdmissionInfo) -> Verdict:
        """Validate a pod as it will be stored; on UPDATE only the changes. A pod being deleted is allowed."""
        if _is_ending(raw, info):
            return ALLOWED
        early = self._early_verdict(raw, info)
        if early is not None:
            return early
        verdict = self._review_pod(raw, old, info)
        if verdict.allowed or old is None or structure.pod_errors(old):
            return verdict
        # A ratchet below the plugins' own: an existing error must not deny an unrelated change. Otherwise a finalizer
        # could not be removed from a pod that was stored while the webhook was unavailable.
        before = self._review_pod(old, None, info).errors
        return replace(verdict, errors=tuple(error for error in verdict.errors if error not in before))

    def validate_template(self, template: Template, info: AdmissionInfo) -> Verdict:
        """Validate a workload's pod template as its pods will be validated; error paths are those of the workload.

        The template is mutated first, in place: an error that mutation corrects is none.
        """
        content = template.content
        if not isinstance(content, dict):
            return Verdict((FieldError(structure.TYPE, template.path, content, "must be an object"),))
        if template.is_wrong_path:
            return Verdict(warnings=(_wrong_path(template),))
        metadata = content.get("metadata")
        spec = content.get("spec")
        if spec is None and info.is_partial:
            spec = {}
        pod = {"metadata": {} if metadata is None else metadata, "spec": spec}
        early = self._early_verdict(pod, info, template.spec_path)
        return (early or self._admit_in_scope(pod, info)).placed(template)

    def _review_pod(self, raw: Object, old: Object | None, info: AdmissionInfo) -> Verdict:
        by_plugin = self._errors_of(self._validate_pod, raw, old, info)
        return verdict_of(chain(by_plugin, [list(self._unread_warnings(raw))] if old is None else ()))

    def _unread_warnings(self, raw: Object) -> Iterator[FieldError]:
        """Yield a warning for each annotation that only a plugin reads which is off."""
        annotations = raw["metadata"].get("annotations") or {}
        for reads in self._unread:
            for key in islice(filter(reads.covers, annotations), structure.MAX_ERRORS):
                message = f"plugin {reads.plugin} is off: {reads.remedy}"
                yield FieldError(PLUGIN_OFF, annotation_path(key), annotations[key], message)

    def _early_verdict(self, raw: Object, info: AdmissionInfo, spec_path: str = "spec") -> Verdict | None:
        """Return the verdict on a pod that is not passed to the plugins: malformed or out of scope. None for the
        others. ``spec_path``: of the pod's spec in the object, for remedies.
        """
        if info.namespace in self._excluded_namespaces:
            return ALLOWED
        errors = structure.pod_errors(raw)
        if errors:
            return verdict_of([errors])
        annotations = raw["metadata"].get("annotations") or {}
        if names.MIRROR_POD in annotations:
            return ALLOWED
        scheduler = raw["spec"].get("schedulerName") or self._default_scheduler
        if self.settings.schedules(scheduler):
            return None
        field = f"{spec_path}.schedulerName"
        return Verdict(warnings=(*scope.warnings(self.settings, scheduler, raw["metadata"], field),))

    # --- subresources of a pod ---

    def admit_ephemeral_containers(self, raw: dict[str, Any], old: Object | None, info: AdmissionInfo) -> Verdict:
        """Mutate a pod's new ephemeral containers, then validate the result. Modifies ``raw`` in place."""
        early = self._early_verdict(raw, info)
        if early is not None:
            return early
        pod, old = MutablePod(raw), _readable(old)
        for call in self._mutate_ephemeral:
            self._mutate(call, pod, old, info)
        return self.validate_ephemeral_containers(raw, old, info).after(pod)

    def validate_ephemeral_containers(self, raw: Object, old: Object | None, info: AdmissionInfo) -> Verdict:
        """Validate a pod's new ephemeral containers."""
        early = self._early_verdict(raw, info)
        return early or verdict_of(self._errors_of(self._validate_ephemeral, raw, _readable(old), info))

    # --- BindRequests ---

    def admit_bind_request(self, raw: dict[str, Any], info: AdmissionInfo, old: Object | None = None) -> Verdict:
        """Fill fields from the owner reference, add the finalizer, let the plugins mutate, then validate a new
        BindRequest, or one whose spec has changed.

        Modifies ``raw`` in place. On UPDATE only the plugins' mutations apply, and another decision is denied: no
        foreign CRD does it, and it may have no schema.
        """
        early = _early_request_verdict(raw, info)
        if early is not None:
            return early
        request = MutableObject(raw)
        if info.operation == "CREATE":
            self._complete(request, info)
        for call in self._mutate_request:
            self._mutate(call, request, info)
        return self._review_request(raw, old, info).after(request)

    def _review_request(self, raw: Object, old: Object | None, info: AdmissionInfo) -> Verdict:
        if old is not None and old.get("spec") == raw.get("spec"):
            return ALLOWED
        changes = changed_fields(raw, old) if old is not None else ()
        if changes:
            spec = raw.get("spec")
            values = ((name, spec.get(name) if isinstance(spec, dict) else spec) for name in changes)
            return verdict_of(
                [[FieldError(IMMUTABLE, f"spec.{name}", value, IMMUTABLE.message) for name, value in values]]
            )
        errors = request_errors(raw, old)
        # Plugins receive only requests that can be decoded.
        return verdict_of([errors] if errors else self._errors_of(self._validate_request, raw, old, info))

    def _complete(self, request: MutableObject, info: AdmissionInfo) -> None:
        decoded_request = decode_bind_request(_named(request.raw))
        if decoded_request.spec is not None:
            uid = owner_pod_uid(request.raw)
            effects = [call.plugin for call in self._side_effects if self._has_side_effects(call, decoded_request)]
            if uid and not decoded_request.spec.pod_uid:
                request.set(uid, "spec", "podUID")
            if effects and not decoded_request.has_finalizer:
                request.append(names.FINALIZER, "metadata", "finalizers")
                request.set(effects_record(effects), "metadata", "annotations", names.EFFECTS)

    # --- an exception of a plugin is a defect of the plugin, not of the object ---

    def _has_side_effects(self, call: ReviewCall, request: BindRequest) -> bool:
        self._current = call
        try:
            return bool(call.method(request, None))
        except BaseException as error:  # noqa: BLE001 - reported; a finalizer too many costs a write, one too few a leak
            self._on_error(call.plugin, call.point, error)
            return True
        finally:
            self._current = None

    def _mutate(self, call: ReviewCall, target: MutableObject, *arguments: object) -> None:
        mark = target.checkpoint()
        self._current = call
        try:
            call.method(target, *arguments)
        except BaseException as error:  # noqa: BLE001 - reported through on_error; its changes are reverted
            target.revert(mark)
            self._on_error(call.plugin, call.point, error)
        finally:
            self._current = None

    def _errors_of(self, calls: Iterable[ReviewCall], *arguments: object) -> Iterator[Sequence[FieldError]]:
        for call in calls:
            self._current = call
            try:
                errors = _first_errors(call.method(*arguments))
            except BaseException as error:  # noqa: BLE001 - reported through on_error; what cannot be validated is denied
                self._on_error(call.plugin, call.point, error)
                message = (
                    f"plugin {call.plugin} failed while reviewing this object ({type(error).__name__}); "
                    "ask the cluster's operator to read the webhook's log"
                )
                errors = [FieldError(_internal_rule(call.plugin), "", None, message)]
            finally:
                self._current = None
            yield errors


def _calls(plugins: Iterable[Plugin], method: Callable[..., Any]) -> tuple[ReviewCall, ...]:
    point = method.__name__
    return tuple(ReviewCall(plugin.name, point, getattr(plugin, point)) for plugin in overriding(plugins, method))


def _internal_rule(plugin: str) -> Rule:
    return Rule(f"{plugin}/internal", f"plugin {plugin} raised an exception", cause=DenialCause.INTERNAL)


def _wrong_path(template: Template) -> FieldError:
    """Return the warning for a configured path that leads to a pod spec instead of a template, or the reverse.

    The object is not at fault, so it is not denied.
    """
    is_spec = "containers" in template.content
    kinds = ("a pod's spec", "podSpecs", "templates") if is_spec else ("a pod template", "templates", "podSpecs")
    message = "is {}, so its rules are not applied; in Bowline's configuration list the path in {}, not in {}"
    return FieldError(TEMPLATE_PATH, template.path, None, message.format(*kinds))


def request_errors(raw: Object, old: Object | None) -> list[FieldError]:
    """Return the errors of a well-formed BindRequest: of a new one its name, then the schema's, else a mismatch of
    spec.podUID and owner.
    """
    misnamed = name_error(raw) if old is None else None
    spec, errors = decode_spec(raw.get("spec"))
    if misnamed is not None:
        errors = (misnamed, *errors)
    if spec is None or errors:
        return list(errors)
    owner = owner_pod_uid(raw)
    if spec.pod_uid and owner and spec.pod_uid != owner:
        message = f"must be the UID of the owning pod, {owner}; leave it out and it is filled in"
        return [FieldError(POD_UID, "spec.podUID", spec.pod_uid, message)]
    return []


def _is_ending(raw: Object, info: AdmissionInfo) -> bool:
    """Return whether the object is being deleted. On CREATE never: the API server ignores a deletionTimestamp
    there.
    """
    return info.operation == "UPDATE" and structure.is_deleting(raw)


def _early_request_verdict(raw: Object, info: AdmissionInfo) -> Verdict | None:
    """Return the verdict on a BindRequest that is malformed or being deleted; None for the others."""
    if _is_ending(raw, info):
        return ALLOWED
    errors = structure.bind_request_errors(raw)
    return verdict_of([errors]) if errors else None


def _readable(old: Object | None) -> Object:
    """Return the old pod for the plugins; an empty one if it is malformed, which no API server would have stored."""
    return {"metadata": {}, "spec": {}} if old is None or structure.pod_errors(old) else old


def verdict_of(groups: Iterable[Sequence[FieldError]]) -> Verdict:
    """Return the verdict for groups of errors and warnings.

    Ends with the group that reaches the limit of errors, and adds ``MORE``.
    """
    errors: list[FieldError] = []
    warnings: list[FieldError] = []
    for group in groups:
        for error in group:
            (warnings if error.is_warning else errors).append(error)
        if len(errors) >= structure.MAX_ERRORS:
            errors = [*errors[: structure.MAX_ERRORS], MORE]
            break
    return Verdict(tuple(errors), tuple(warnings)) if errors or warnings else ALLOWED


def _first_errors(results: Iterable[Any]) -> list[FieldError]:
    """Return errors up to the limit, and as many warnings. Errors after many warnings are still found.

    Raises TypeError for a result that is no FieldError.
    """
    first: list[FieldError] = []
    errors = warnings = 0
    for error in results:
        if not isinstance(error, FieldError):
            raise TypeError(f"returned {type(error).__name__}, must return FieldErrors")
        if error.is_warning:
            warnings += 1
            if warnings > structure.MAX_ERRORS:
                continue
        else:
            errors += 1
        first.append(error)
        if errors >= structure.MAX_ERRORS:
            break
    return first


def _named(raw: Object) -> Object:
    """Return the object with a name: with generateName it has none yet at admission."""
    metadata = raw["metadata"]
    return raw if metadata.get("name") else {**raw, "metadata": {**metadata, "name": ""}}
