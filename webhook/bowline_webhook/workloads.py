"""Workloads: review of the pod templates of the configured kinds. Pure.

A bad template is reported at ``kubectl apply`` instead of later in an event of a ReplicaSet. It is reviewed by the
same chain as a pod; the pod hook remains the gate, this only reports earlier. The kinds and the location of their
templates are in ``bowline.framework.workload_kinds``.

Must never deny what a controller does on a user's behalf: objects owned by a controller whose own template is
reviewed (the next ReplicaSet of an old Deployment), and updates that leave the templates unchanged (scaling, labels,
finalizers). Of several templates only the changed ones are reviewed.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import orjson

from bowline.api.field_error import FieldError
from bowline.api.meta import Object
from bowline.api.rule import DenialCause, Rule
from bowline.framework import structure
from bowline.framework.admission import ALLOWED, AdmissionChain, Verdict, verdict_of
from bowline.framework.interface.plugin import AdmissionInfo
from bowline.framework.templates import Template, Workload, WorkloadKey
from bowline.framework.workload_kinds import BUILT_IN_KEYS
from bowline_webhook import placement
from bowline_webhook.placement import misplaced

TEMPLATES: Final = Rule(
    "structure/templates", "a workload has more than 128 pod templates", cause=DenialCause.TOO_MANY
)
RULES: Final = (
    TEMPLATES,
    *placement.RULES,
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
    # Before the templates are mutated, which adds annotations to them.
    warnings = tuple(misplaced(workload, raw, list(workload.templates_in(raw)))) if templates else ()
    info = replace(info, is_partial=info.is_partial or workload.is_partial)
    verdicts = (chain.validate_template(template, info) for template in templates)
    findings = [(*verdict.errors, *verdict.warnings) for verdict in verdicts]
    return _as_asked(workload, verdict_of(_distinct([*findings, warnings])))


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
