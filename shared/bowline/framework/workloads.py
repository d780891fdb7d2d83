"""Kinds that pods are made from: those that are reviewed, resolved from the configuration. Pure.

The built-in kinds are reviewed, and those in the configuration (``workloads``): a kind of ``workload_kinds`` by its
name alone, any other with its group, resource and the paths of its templates or pod specs. Process and chart use the
same list: the process to review templates, the chart to configure which objects the API server sends.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Final

from pydantic import Field

from bowline.api.field_error import FieldError
from bowline.api.rule import Rule
from bowline.api.schema import ConfigModel
from bowline.framework.templates import ITEMS, VALUES, Action, TemplatePath, Workload, WorkloadKey, steps_of
from bowline.framework.workload_kinds import BUILT_IN, READY

RULE: Final = Rule("config/workload", "an entry of `workloads` is no kind whose pod templates can be found")
RULES: Final = (RULE,)
TEMPLATE_PATH: Final = re.compile(r"spec(\.([A-Za-z_][A-Za-z0-9_]*(\[\*\])?|\*))+")
_FORM: Final = "names of fields, [*] for each item of a list, * for each value of an object"
_PATH_RULE: Final = f"must lead from spec to a pod template, such as spec.groups[*].template: {_FORM}"
_SPEC_RULE: Final = f"must lead from spec to a pod's spec, such as spec.groups[*].podSpec: {_FORM}"


class PodSpecEntry(ConfigModel):
    """Where a kind has pod specs instead of pod templates."""

    path: str
    """Of the pod specs, such as spec.groups[*].podSpec."""
    metadata: str = ""
    """Of the objects with the labels and annotations of those pods, such as spec.groups[*]; empty without any."""


class WorkloadEntry(ConfigModel):
    """A kind of object that pods are made from: its pod templates are validated when it is applied.

    The built-in kinds always are; for them an entry can only set the action. Kinds listed in
    shared/bowline/framework/workload_kinds.py need only their name; any other needs group, resource, and templates or
    podSpecs.
    """

    kind: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9]*$")]
    """The kind's name, such as RayCluster."""
    action: Action = "Deny"
    """Deny rejects the object, Warn allows it with the same text as a warning; its pods are denied either way."""
    group: Annotated[str, Field(pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$")] = ""
    """API group."""
    resource: Annotated[str, Field(pattern=r"^([a-z][a-z0-9]*)?$")] = ""
    """The kind's plural in URLs."""
    templates: tuple[str, ...] = ()
    """Where its pod templates are, such as spec.groups[*].template."""
    pod_specs: tuple[PodSpecEntry, ...] = ()
    """Where it has pod specs that are not in a template."""


def resolve_workloads(entries: Iterable[WorkloadEntry]) -> tuple[Mapping[WorkloadKey, Workload], list[FieldError]]:
    """Return all reviewed kinds, and the errors of the entries; an invalid entry adds nothing."""
    kinds = {workload.key: workload for workload in BUILT_IN}
    errors: list[FieldError] = []
    first_paths: dict[WorkloadKey, str] = {}
    for index, entry in enumerate(entries):
        path = f"workloads[{index}]"
        workload = _listed_kind(entry)
        wrong = _listed_kind_errors(entry, path, workload) if workload else _unlisted_kind_errors(entry, path)
        key = workload.key if workload else (entry.group, entry.kind)
        if key in first_paths:
            wrong.append(
                FieldError(RULE, path, entry.kind, f"is listed twice, first at {first_paths[key]}; keep one")
            )
        first_paths.setdefault(key, path)
        errors += wrong
        if not wrong:
            kinds[key] = replace(workload or _own_kind(entry), action=entry.action)
    return kinds, errors


def _own_kind(entry: WorkloadEntry) -> Workload:
    templates = (TemplatePath.of(path) for path in entry.templates)
    pod_specs = (TemplatePath.of_spec(spec.path, spec.metadata) for spec in entry.pod_specs)
    return Workload(entry.group, entry.kind, entry.resource, (*templates, *pod_specs))


def _listed_kind(entry: WorkloadEntry) -> Workload | None:
    """Return the first listed kind of the entry's name, with its group or without; None if there is none."""
    for workload in (*BUILT_IN, *READY):
        if workload.kind == entry.kind and entry.group in ("", workload.group):
            return workload
    return None


def _listed_kind_errors(entry: WorkloadEntry, path: str, workload: Workload) -> list[FieldError]:
    fields = (
        ("resource", entry.resource),
        ("templates", ", ".join(entry.templates)),
        ("podSpecs", ", ".join(spec.path for spec in entry.pod_specs)),
    )
    message = f"is known for {workload.kind}; leave it out"
    return [FieldError(RULE, f"{path}.{field}", value, message) for field, value in fields if value]


def _unlisted_kind_errors(entry: WorkloadEntry, path: str) -> list[FieldError]:
    fields = {"group": entry.group, "resource": entry.resource, "templates": entry.templates or entry.pod_specs}
    missing = [field for field, value in fields.items() if not value]
    if len(missing) == len(fields):
        kinds = ", ".join(dict.fromkeys(workload.kind for workload in (*READY, *BUILT_IN)))
        message = f"is not known by its name ({kinds} are); correct it, or set its group, resource and templates"
        return [FieldError(RULE, f"{path}.kind", entry.kind, message)]
    message = f"is required, because {entry.kind} is not a kind that is known"
    return [
        *(FieldError(RULE, f"{path}.{field}", None, message) for field in missing),
        *(
            FieldError(RULE, f"{path}.templates[{index}]", text, _PATH_RULE)
            for index, text in enumerate(entry.templates)
            if not TEMPLATE_PATH.fullmatch(text)
        ),
        *(
            error
            for index, spec in enumerate(entry.pod_specs)
            for error in _pod_spec_errors(spec, f"{path}.podSpecs[{index}]")
        ),
    ]


def _pod_spec_errors(spec: PodSpecEntry, path: str) -> Iterator[FieldError]:
    if spec.path != "spec" and not TEMPLATE_PATH.fullmatch(spec.path):
        yield FieldError(RULE, f"{path}.path", spec.path, _SPEC_RULE)
        return
    if not spec.metadata:
        return
    place, steps = TemplatePath.of_spec(spec.path), steps_of(spec.metadata)
    begin = place.steps[: place.common]
    is_path = spec.metadata == "spec" or TEMPLATE_PATH.fullmatch(spec.metadata)
    if not is_path or steps[: place.common] != begin or {ITEMS, VALUES} & set(steps[place.common :]):
        start = ".".join(begin).replace(f".{ITEMS}", ITEMS)
        message = (
            f"must be {start} or lead on from there by names of fields, to the object with the pod's annotations"
        )
        yield FieldError(RULE, f"{path}.metadata", spec.metadata, message)
