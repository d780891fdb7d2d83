"""The verdict of ``bowline lint`` on one object: that of the webhook's own chain, and what it means offline. Pure.

"Allowed" is said only of what was reviewed. Without a cluster an object may be a patch, or not rendered yet: it then
has no verdict, instead of errors about what is absent.
"""

import copy
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, Final

from bowline.api import names
from bowline.api.bindrequest import SCHEMA, ResourceType, decode_spec
from bowline.api.field_error import FieldError
from bowline.api.meta import Object
from bowline.framework import structure
from bowline.framework.admission import AdmissionChain, Verdict
from bowline.framework.config import Settings
from bowline.framework.interface.plugin import AdmissionInfo
from bowline.framework.templates import Template, steps_of, values_at
from bowline.framework.workload_kinds import BUILT_IN_KEYS, READY
from bowline.framework.workloads import WorkloadEntry, resolve_workloads
from bowline.plugins.gpu_sharing.guards import guard_errors
from bowline_cli.embedded import EMBEDDING_KINDS, has_unread_text
from bowline_cli.kustomize import Part
from bowline_cli.manifests import DUPLICATE_KEY, SCHEDULER, Finding, Manifest, duplicate_text
from bowline_cli.schema import KUBERNETES_GROUPS, ApiSchema, quantity_errors
from bowline_cli.traces import gpu_trace, requests_gpu, unknown_devices
from bowline_webhook.review import display_name
from bowline_webhook.workloads import review_workload

# Of the name of a kind or a field: Podd and Deployement resemble one, PodMonitor does not.
_LIKENESS = 0.85
_POD = ("", "Pod")
_SELECTING = tuple(("apps", kind) for kind in ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"))
_BIND_REQUEST = (names.GROUP, names.KIND)
_KNATIVE_SERVICE = ("serving.knative.dev", "Service")
# A variable of envsubst or kustomize, or an expression of a template language.
_VARIABLE = re.compile(r"\$\{|\$\(|\{\{|^\$[A-Za-z_]\w*$")
# Maps of a pod, and what the API server decodes a null in them as.
_MAPS: Final = {
    **dict.fromkeys(("metadata.labels", "metadata.annotations", "spec.nodeSelector"), ""),
    **{
        f"spec.{owner}resources.{part}": "0"
        for owner in ("", "initContainers[*].", "containers[*].")
        for part in ("limits", "requests")
    },
}
_PATCH, _NO_CONTAINERS = (f"{what}: review the output of kustomize build" for what in ("a patch", "no containers"))


class LintVerdict(StrEnum):
    """The verdict on an object. Bowline reviews only the first two."""

    ALLOWED = "allowed"
    DENIED = "denied"
    OUT_OF_SCOPE = "out of scope"  # no pod of the object has a scheduler that the configuration lists
    NOT_CHECKED = "not checked"  # Bowline does not know the kind, or its pods are described elsewhere
    NO_PODS = "no pods"  # one of Kubernetes' kinds that have none; only the API server's schema is applied, if at all
    PARTIAL = "partial"  # a patch: its pods have no containers
    UNRENDERED = "unrendered"  # a variable is where a value would be wrong, or decides the scope

    @property
    def may_have_pods(self) -> bool:
        """Whether an object with this verdict may describe pods, as far as is known."""
        return self not in (LintVerdict.NOT_CHECKED, LintVerdict.NO_PODS)

    @property
    def is_review(self) -> bool:
        """Whether the object was reviewed."""
        return self in (LintVerdict.ALLOWED, LintVerdict.DENIED)


# Verdicts whose objects are counted, each in one line: a repository may have hundreds.
COUNTED: Final = (LintVerdict.OUT_OF_SCOPE, LintVerdict.PARTIAL)


@dataclass(frozen=True, slots=True)
class LintResult:
    """The verdict on one object. ``has_wrong_path``: see ``Template``. ``has_unread``: a part changes its pods and
    was not reviewed. ``has_schema``: the API server's schema was applied to it. ``ignored``: how many findings it
    had that are ignored.

    ``reason``: of a verdict without a review; of one with it, what of the object was not reviewed.
    """

    manifest: Manifest
    namespace: str
    name: str
    verdict: LintVerdict
    reason: str
    review: Verdict
    submitted: Object
    has_wrong_path: bool = False
    has_unread: bool = False
    has_schema: bool = True
    ignored: int = 0

    @property
    def is_listed(self) -> bool:
        """Whether people want to see it: not an object without pods and without findings."""
        has_findings = bool(self.review.errors or self.review.warnings or self.manifest.duplicates)
        return has_findings or (self.verdict not in COUNTED and (self.verdict.may_have_pods or bool(self.reason)))

    def ignoring(self, ids: Collection[str]) -> "LintResult":
        """Return the result without the findings of these rules."""
        errors, warnings = (
            tuple(finding for finding in findings if finding.rule.id not in ids)
            for findings in (self.review.errors, self.review.warnings)
        )
        duplicates = () if DUPLICATE_KEY.id in ids else self.manifest.duplicates
        count = len(self.review.errors) + len(self.review.warnings) + len(self.manifest.duplicates)
        count -= len(errors) + len(warnings) + len(duplicates)
        verdict, reason = self.verdict, self.reason
        if verdict is LintVerdict.DENIED and not errors:
            verdict, reason = LintVerdict.ALLOWED, "its errors are ignored"
        review = replace(self.review, errors=errors, warnings=warnings)
        manifest = replace(self.manifest, duplicates=duplicates)
        return replace(self, manifest=manifest, verdict=verdict, reason=reason, review=review, ignored=count)

    @property
    def is_complete(self) -> bool:
        """Whether nothing of it that may be about GPUs was left unreviewed."""
        is_left_out = self.verdict in (LintVerdict.PARTIAL, LintVerdict.UNRENDERED) or bool(
            self.verdict is LintVerdict.NOT_CHECKED and self.reason
        )
        return not is_left_out and not self.has_unread

    def findings(self) -> list[Finding]:
        """Return its errors and warnings, each with the line of its field."""
        manifest = self.manifest
        located = [
            Finding(error.rule, manifest.file, manifest.line_of(error.path), str(error), error.is_warning)
            for error in (*self.review.errors, *self.review.warnings)
        ]
        return [*located, *self.duplicates()]

    def duplicates(self) -> list[Finding]:
        """Return the warnings about keys that are given twice."""
        manifest = self.manifest
        return [
            Finding(
                DUPLICATE_KEY,
                manifest.file,
                1 if manifest.is_rendered else line,
                duplicate_text(line, key, is_rendered=manifest.is_rendered),
                is_warning=True,
            )
            for line, key in manifest.duplicates
        ]


def with_ready_kinds(settings: Settings) -> Settings:
    """Return settings with every kind that Bowline knows by name, also those that the configuration does not list.

    A cluster that does not check such a kind stores the object and denies its pods; lint reports the error earlier.
    """
    kinds, _ = resolve_workloads(settings.workloads)
    entries = (
        WorkloadEntry.model_construct(kind=ready.kind, group=ready.group) for ready in READY if ready.key not in kinds
    )
    return settings.model_copy(update={"workloads": (*settings.workloads, *entries)})


def review_manifest(
    chain: AdmissionChain, manifest: Manifest, schema: ApiSchema | None = None, *, requires_scheduler: bool = False
) -> LintResult:
    """Check one object as on CREATE, or as a stored one if it has a UID. Modifies ``manifest.object`` in place.

    ``schema``: the API server's, by which the object is checked as well; None: it is not. ``requires_scheduler``: a
    GPU in a pod of a scheduler that is not listed is an error.
    """
    raw, is_partial = manifest.object, _is_partial(chain, manifest)
    if is_partial:
        _drop_directives(raw)
    submitted = copy.deepcopy(raw)
    metadata = raw.get("metadata")
    namespace = metadata.get("namespace") if isinstance(metadata, dict) else ""
    info = AdmissionInfo(
        kind=manifest.kind,
        namespace=namespace if isinstance(namespace, str) else "",
        operation="UPDATE" if isinstance(metadata, dict) and metadata.get("uid") else "CREATE",
        is_partial=is_partial,
    )
    templates = _templates(chain, manifest)
    if manifest.key == _POD or manifest.key in BUILT_IN_KEYS:
        _decode_nulls((raw, *(template.content for template in templates)))
    if manifest.key == _KNATIVE_SERVICE:
        _name_container(templates)
    own_errors = list(_api_errors(manifest, templates, schema))
    if chain.settings.gpu_sharing.enabled and info.operation == "CREATE":
        own_errors += _policy_errors(chain, templates)
    own_errors += _scheduler_errors(chain, templates, is_partial=is_partial) if requires_scheduler else ()
    review = _review(chain.for_unknown_scheduler() if is_partial else chain, manifest, info)
    errors = _all_errors(review.errors if review is not None else (), own_errors)
    relevant = tuple(e for e in errors if not (_is_variable(e.value) or (is_partial and e.rule.needs_whole)))
    warnings: tuple[FieldError, ...] = ()
    unread = _unread(chain, manifest, templates)
    if review is None:
        verdict, reason = _unreviewed(chain, manifest, schema)
    else:
        warnings = tuple(w for w in review.warnings if not _is_variable(w.value))
        verdict, reason = _verdict(chain, manifest, templates, info, unread)
    if relevant:
        verdict, reason = LintVerdict.DENIED, ""
    elif any(_is_variable(error.value) for error in errors) or _is_variable(display_name(submitted)):
        verdict, reason = LintVerdict.UNRENDERED, "a variable instead of a value"
    if verdict is LintVerdict.UNRENDERED:
        warnings = ()
    result = Verdict(relevant, warnings, () if errors or review is None or is_partial else review.patch)
    return LintResult(
        manifest,
        info.namespace,
        display_name(submitted),
        verdict,
        reason,
        result,
        submitted,
        any(template.is_wrong_path for template in templates),
        has_unread=bool(unread),
        has_schema=manifest.key == _BIND_REQUEST or (schema is not None and schema.has(*manifest.api)),
    )


def _all_errors(reviewed: Sequence[FieldError], own_errors: Sequence[FieldError]) -> tuple[FieldError, ...]:
    """Return the errors of the review, and lint's own about other fields."""
    amounts = {_amount_of(error) for error in reviewed}
    return (
        *reviewed,
        *(error for error in own_errors if not _is_reported(_amount_of(error), amounts) and error not in reviewed),
    )


def _is_reported(path: str, reported: Collection[str]) -> bool:
    """Return whether an error of the path, or of a field around it, is reported already."""
    return any(path == other or path.startswith((f"{other}.", f"{other}[")) for other in reported if other)


def _unreviewed(chain: AdmissionChain, manifest: Manifest, schema: ApiSchema | None) -> tuple[LintVerdict, str]:
    """Return the verdict on an object of a kind without pods, or of one that Bowline does not know."""
    hint = _similar_kind(chain, manifest)
    if manifest.key in EMBEDDING_KINDS:
        return LintVerdict.NO_PODS, ""  # its components are objects of their own
    is_kubernetes = schema.has(*manifest.api) if schema is not None else manifest.group in KUBERNETES_GROUPS
    if not hint and is_kubernetes:
        return LintVerdict.NO_PODS, ""
    return LintVerdict.NOT_CHECKED, hint or gpu_trace(manifest.object)


def _review(chain: AdmissionChain, manifest: Manifest, info: AdmissionInfo) -> Verdict | None:
    """Return the webhook's verdict on the object; None if its kind is not one that Bowline knows."""
    raw, key = manifest.object, manifest.key
    is_stored = info.operation == "UPDATE"
    if key == _POD:
        if not is_stored:
            if info.is_partial and raw.get("spec") is None:
                raw["spec"] = {}
            return chain.admit_pod(raw, info)
        spec = raw.get("spec")
        if isinstance(spec, dict):
            spec.pop("nodeName", None)  # set by its scheduler
        return chain.validate_pod(raw, None, info)
    if key == _BIND_REQUEST:
        return chain.admit_bind_request(raw, info)
    if key in chain.workloads:
        return review_workload(chain, chain.workloads[key], raw, None, info)
    return None


def _templates(chain: AdmissionChain, manifest: Manifest) -> list[Template]:
    """Return the pods that an object describes; a pod describes itself."""
    raw, key = manifest.object, manifest.key
    if key == _POD:
        return [Template("", raw, "spec", "metadata")]
    return list(chain.workloads[key].templates_in(raw)) if key in chain.workloads else []


def _metadata_of(template: Template) -> Object:
    metadata = template.content.get("metadata") if isinstance(template.content, dict) else None
    return metadata if isinstance(metadata, dict) else {}


def _spec_of(template: Template) -> dict[str, Any] | None:
    spec = template.content.get("spec") if isinstance(template.content, dict) else None
    return spec if isinstance(spec, dict) and not template.is_wrong_path else None


def _api_errors(manifest: Manifest, templates: Sequence[Template], schema: ApiSchema | None) -> Iterator[FieldError]:
    """Yield the errors by the API server's own rules for quantities and by its schema."""
    for template in templates:
        spec = _spec_of(template)
        if spec is not None and not structure.pod_errors({"metadata": {}, "spec": spec}):
            yield from map(template.place, quantity_errors(spec))
    if manifest.key == _BIND_REQUEST:
        yield from _fraction_errors(manifest.object.get("spec"))
    if schema is not None and schema.has(*manifest.api):
        yield from schema.errors(manifest.api, manifest.object)


def _fraction_errors(raw_spec: Any) -> Iterator[FieldError]:
    """Yield what the CRD's rules deny, of a spec that has its schema: a Fraction of no device, or without groups."""
    spec, _ = decode_spec(raw_spec)
    if spec is None or spec.received_resource_type is not ResourceType.FRACTION:
        return
    if not spec.gpu_groups:
        message = "needs the group of each device that a Fraction shares; name at least one"
        yield FieldError(SCHEMA, "spec.selectedGPUGroups", None, message)
    if spec.received_gpu is None or not spec.received_gpu.count:
        message = "must be at least 1, because a Fraction is of at least one device"
        yield FieldError(SCHEMA, "spec.receivedGPU.count", spec.received_gpu and spec.received_gpu.count, message)


def _policy_errors(chain: AdmissionChain, templates: Sequence[Template]) -> Iterator[FieldError]:
    """Yield what the chart's policy of devices denies, in pods of every scheduler."""
    of_plugins = chain.bound_annotations
    for template in templates:
        yield from map(template.place, guard_errors(_metadata_of(template), of_plugins))


def _scheduler_errors(
    chain: AdmissionChain, templates: Sequence[Template], *, is_partial: bool
) -> Iterator[FieldError]:
    """Yield an error for each pod that requests a GPU and whose scheduler is not listed.

    ``is_partial``: a pod that names no scheduler may have that of its base.
    """
    for template in templates:
        spec = _spec_of(template)
        if spec is None or (is_partial and not spec.get("schedulerName")):
            continue
        if not chain.exclusion(spec, "") or not requests_gpu(template.content):
            continue
        listed = ", ".join(chain.settings.scheduler_names)
        why = f"the pod requests a GPU, and no scheduler of the configuration decides for it; set one of: {listed}"
        yield template.place(FieldError(SCHEDULER, "spec.schedulerName", spec.get("schedulerName"), why))


def _is_partial(chain: AdmissionChain, manifest: Manifest) -> bool:
    """Return whether the object is a patch: a kustomization says so, a pod of it has no containers, or a workload has
    no selector, and no labels or a kustomization, which may add both.
    """
    raw, key = manifest.object, manifest.key
    if not isinstance(raw.get("metadata"), dict) or key == _BIND_REQUEST:
        return False
    if manifest.part is Part.PATCH:
        return True
    templates = _templates(chain, manifest)
    spec = raw.get("spec")
    lacks_selector = key in _SELECTING and isinstance(spec, dict) and spec.get("selector") is None
    if lacks_selector and (manifest.part or not any(_metadata_of(each).get("labels") for each in templates)):
        return True
    if key == _POD or key in BUILT_IN_KEYS:
        return not templates or any(map(_lacks_containers, templates))
    return key in chain.workloads and not chain.workloads[key].is_partial and any(map(_lacks_containers, templates))


def _drop_directives(part: Any) -> None:
    """Remove what a patch says about its base: null removes a field, and keys with ``$`` are directives."""
    if isinstance(part, dict):
        for key in [key for key, value in part.items() if value is None or key.startswith("$")]:
            del part[key]
    for value in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        _drop_directives(value)


def _decode_nulls(pods: Iterable[Any]) -> None:
    """Replace each null in a map of a pod, or of its template, in place. Custom resources have their own schema."""
    for pod in pods:
        for path, zero in _MAPS.items():
            for _, entries in values_at(pod, steps_of(path)):
                if isinstance(entries, dict):
                    entries.update({key: zero for key, value in entries.items() if value is None})


def _name_container(templates: Iterable[Template]) -> None:
    """Name an only container without a name, in place, as Knative's webhook does before the object is validated."""
    for template in templates:
        containers = (_spec_of(template) or {}).get("containers")
        if isinstance(containers, list) and len(containers) == 1 and isinstance(containers[0], dict):
            containers[0].setdefault("name", "user-container")


def _lacks_containers(template: Template) -> bool:
    if not isinstance(template.content, dict) or template.is_wrong_path:
        return False
    spec = template.content.get("spec")
    return spec is None or (isinstance(spec, dict) and spec.get("containers") is None)


def _verdict(
    chain: AdmissionChain,
    manifest: Manifest,
    templates: list[Template],
    info: AdmissionInfo,
    unread: str,
) -> tuple[LintVerdict, str]:
    """Return the verdict on an object without errors, and its reason. ``unread``: see ``_unread``."""
    not_checked = f"not checked: {unread}" if unread else ""
    specs = [spec for spec in map(_spec_of, templates) if spec is not None]
    if info.is_partial:
        if templates and not any(map(_lacks_containers, templates)):
            return LintVerdict.PARTIAL, _PATCH
        return LintVerdict.PARTIAL, next(filter(None, map(_similar_field, specs)), _NO_CONTAINERS)
    if any(template.is_wrong_path for template in templates):
        return LintVerdict.NOT_CHECKED, "a configured path is wrong"
    if not templates and manifest.key != _BIND_REQUEST:
        return (LintVerdict.NOT_CHECKED, unread) if unread else (LintVerdict.OUT_OF_SCOPE, "no pod template")
    exclusions = [chain.exclusion(spec, info.namespace) for spec in specs]
    if exclusions and all(exclusions):
        is_variable = any(_is_variable(spec.get("schedulerName")) for spec in specs)
        verdict = LintVerdict.UNRENDERED if is_variable else LintVerdict.OUT_OF_SCOPE
        return verdict, ", ".join(filter(None, (*dict.fromkeys(exclusions), not_checked)))
    return LintVerdict.ALLOWED, not_checked


def _unread(chain: AdmissionChain, manifest: Manifest, templates: Sequence[Template]) -> str:
    """Return what was not reviewed of what changes the pods; empty if all was."""
    workload = chain.workloads.get(manifest.key)
    if workload is None:
        return ""
    unread = workload.unread_in(manifest.object)
    if manifest.key in EMBEDDING_KINDS and not has_unread_text(manifest):
        unread = [part for part in unread if not part.endswith(".manifest")]
    if manifest.key not in BUILT_IN_KEYS:
        places = unknown_devices(manifest.object, templates)
        unread = [*unread, *(place for place in places if not place.startswith(tuple(unread)))]
    return ", ".join(unread)


def _amount_of(error: FieldError) -> str:
    """Return the path of a resource's amount, whether limit or request: one error of an amount is enough."""
    return error.path.replace(".requests[", ".limits[")


def _is_variable(value: Any) -> bool:
    return isinstance(value, str) and _VARIABLE.search(value) is not None


def _similar_field(spec: Object) -> str:
    matches = get_close_matches("containers", list(spec), 1, _LIKENESS)
    return f"no containers; did you mean containers instead of {matches[0]}?" if matches else ""


def _similar_kind(chain: AdmissionChain, manifest: Manifest) -> str:
    """Return a hint if the kind is nearly one that Bowline knows; empty if not."""
    keys = (_POD, _BIND_REQUEST, *chain.workloads)
    kinds = [kind for group, kind in keys if group == manifest.group]
    matches = get_close_matches(manifest.kind, kinds, 1, _LIKENESS)
    return f"did you mean kind {matches[0]}?" if matches else ""
