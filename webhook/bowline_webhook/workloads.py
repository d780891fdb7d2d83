"""Workloads: review of the pod templates of the configured kinds. Pure.

A bad template is reported at ``kubectl apply`` instead of later in an event of a ReplicaSet. It is reviewed by the
same chain as a pod; the pod hook remains the gate, this only reports earlier. The kinds and the location of their
templates are in ``bowline.framework.workload_kinds``.

Must never deny what a controller does on a user's behalf: objects owned by a controller whose own template is
reviewed (the next ReplicaSet of an old Deployment), and updates that leave the templates unchanged (scaling, labels,
finalizers). Of several templates only the changed ones are reviewed.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import orjson

from bowline.api import names
from bowline.api.field_error import FieldError, annotation_path
from bowline.api.meta import Object
from bowline.api.rule import DenialCause, Rule, Severity
from bowline.framework import structure
from bowline.framework.admission import ALLOWED, AdmissionChain, Verdict, verdict_of
from bowline.framework.plugin import AdmissionInfo
from bowline.framework.templates import Template, Workload, WorkloadKey, steps_of, values_at
from bowline.framework.workload_kinds import BUILT_IN_KEYS

TEMPLATES: Final = Rule(
    "structure/templates", "a workload has more than 128 pod templates", cause=DenialCause.TOO_MANY
)
ANNOTATION_PLACE: Final = Rule(
    "workload/annotation-place",
    "an annotation of a share is on a workload, not on its pod template: its pods do not have it",
    severity=Severity.WARNS,
)

RULES: Final = (
    TEMPLATES,
    ANNOTATION_PLACE,
)


# Each costs as much as a pod.
MAX_TEMPLATES: Final = 128
# Pods are reviewed themselves, and some controllers make a pod the owner of the workload that belongs to it.
_POD: Final[WorkloadKey] = ("", "Pod")


def review_workload(
    chain: AdmissionChain, workload: Workload, raw: dict[str, Any], old: Object | None, info: AdmissionInfo
) -> Verdict:
    """Review the pod templates of an object of the kind. Modifies their content in place."""
    if info.operation == "UPDATE" and structure.is_deleting(raw):
        return ALLOWED
    check = structure.workload_errors if workload.key in BUILT_IN_KEYS else structure.foreign_workload_errors
    errors = check(raw)
    if errors:
        return _as_asked(workload, verdict_of([errors]))
    if _has_reviewed_owner(chain, raw):
        return ALLOWED
    # Whether a template is required is the API server's decision.
    templates = changed_templates(workload, raw, old)
    if len(templates) > MAX_TEMPLATES:
        message = f"must not have more than {MAX_TEMPLATES} pod templates; make several objects of it"
        too_many = FieldError(TEMPLATES, "spec", len(templates), message)
        return _as_asked(workload, Verdict((too_many,)))
    info = replace(info, is_partial=info.is_partial or workload.is_partial)
    verdicts = (chain.validate_template(template, info) for template in templates)
    findings = [(*verdict.errors, *verdict.warnings) for verdict in verdicts]
    return _as_asked(workload, verdict_of(_distinct([*findings, tuple(misplaced(raw, templates))])))


def _distinct(groups: Iterable[Sequence[FieldError]]) -> Iterator[list[FieldError]]:
    """Yield the groups without repetitions: pods of one object may have the same annotations."""
    texts: set[tuple[str, str]] = set()
    for group in groups:
        fresh = []
        for error in group:
            if (error.rule.id, str(error)) not in texts:
                texts.add((error.rule.id, str(error)))
                fresh.append(error)
        yield fresh


def misplaced(raw: Object, templates: Sequence[Template]) -> Iterator[FieldError]:
    """Yield a warning for each share annotation that is on the object, or between it and its pod templates."""
    places = {template.metadata_path for template in templates}
    for path, metadata in _metadata_around(raw, places) if templates else ():
        annotations = _annotations({"metadata": metadata})
        for key in names.SHARE_ANNOTATIONS:
            if key in annotations and not any(key in _annotations(t.content) for t in templates):
                place = f"{templates[0].metadata_path}.annotations"
                message = f"has no effect here, the pods do not have it; set it in {place}"
                where = annotation_path(key).replace("metadata", path, 1)
                yield FieldError(ANNOTATION_PLACE, where, annotations[key], message)


def _metadata_around(raw: Object, places: Collection[str]) -> Iterator[tuple[str, Any]]:
    """Yield the metadata of the object, and of each object on the way to the pod templates' metadata."""
    yield "metadata", raw.get("metadata")
    around = {place[: match.start()] for place in places for match in re.finditer(r"\.", place)}
    for path in sorted(around):
        where = f"{path}.metadata"
        if where not in places:
            for _, value in values_at(raw, steps_of(re.sub(r"\[\d+\]", "[*]", where))):
                yield where, value


def _annotations(obj: Any) -> Object:
    """Return the annotations of an object or a template; empty if it is malformed."""
    metadata = obj.get("metadata") if isinstance(obj, dict) else None
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    return annotations if isinstance(annotations, dict) else {}


def changed_templates(workload: Workload, raw: Object, old: Object | None) -> list[Template]:
    """Return the templates that the old object does not have.

    A template that has only moved, because another one was inserted or removed, is not new; an additional copy is.
    """
    now = list(workload.templates_in(raw))
    before = {t.path: t.content for t in workload.templates_in(old)} if old is not None else {}
    fresh = [template for template in now if before.get(template.path) != template.content]
    if not fresh or not before:
        return fresh
    same_paths = {template.path for template in now if before.get(template.path) == template.content}
    former_texts = Counter(_text(content) for path, content in before.items() if path not in same_paths)
    result = []
    for template in fresh:
        text = _text(template.content)
        if text and former_texts[text]:
            former_texts[text] -= 1
        else:
            result.append(template)
    return result


def _text(template: Any) -> bytes:
    """Return the canonical JSON by which templates are compared; empty if it is nested too deeply."""
    try:
        return orjson.dumps(template, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:
        return b""


def _has_reviewed_owner(chain: AdmissionChain, raw: Object) -> bool:
    controllers = [owner for owner in raw["metadata"].get("ownerReferences") or () if owner.get("controller")]
    return any(_key(owner) == _POD or _key(owner) in chain.workloads for owner in controllers)


def _key(owner: Object) -> WorkloadKey:
    return (owner.get("apiVersion") or "").rpartition("/")[0], owner.get("kind") or ""


def _as_asked(workload: Workload, verdict: Verdict) -> Verdict:
    """Return the verdict, with its errors as warnings unless the configuration denies for this kind."""
    return verdict if workload.action == "Deny" else verdict.as_warnings()
