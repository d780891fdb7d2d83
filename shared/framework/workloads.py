"""Kinds that pods are made from, and the paths of their pod templates. Pure.

The built-in kinds are reviewed, and those in the configuration (``workloads``): a kind listed here by its name alone,
any other with its group, resource and templates. Process and chart use the same list (``make generate``): the process
to review templates, the chart to configure which objects the API server sends.

A template's path begins at ``spec``: field names joined by dots, ``[*]`` after one for each item of a list, ``*`` in
place of one for each value of an object. A path that ends early, or at a value of another type, matches nothing: the
object's own schema decides whether that is valid. Decision 75.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from bowline.shared.api.field_error import FieldError, join_path
from bowline.shared.api.meta import Object

RULE: Final = "config/workload"
Action = Literal["Deny", "Warn"]
WorkloadKey = tuple[str, str]  # API group and kind; the version is irrelevant: no template has moved between versions

ITEMS, VALUES = "[*]", "*"
TEMPLATE_PATH: Final = re.compile(r"spec(\.([A-Za-z_][A-Za-z0-9_]*(\[\*\])?|\*))+")
_TOKEN: Final = re.compile(r"\[\*\]|\*|[A-Za-z0-9_]+")
_PATH_RULE: Final = (
    "must lead from spec to a pod template, such as spec.groups[*].template: "
    "names of fields, [*] for each item of a list, * for each value of an object"
)


@dataclass(frozen=True, slots=True)
class TemplatePath:
    """Path of pod templates: as text, and as steps."""

    text: str
    steps: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> "TemplatePath":
        """Parse a path; ``resolve_workloads`` validates it."""
        return cls(text, tuple(_TOKEN.findall(text)))


@dataclass(frozen=True, slots=True)
class Workload:
    """A kind whose pod templates are reviewed. ``resource`` is its plural in URLs and in webhook rules."""

    group: str
    kind: str
    resource: str
    templates: tuple[TemplatePath, ...]
    action: Action = "Deny"

    @property
    def key(self) -> WorkloadKey:
        """The key of the kind: group and kind."""
        return self.group, self.kind

    @property
    def is_built_in(self) -> bool:
        """Whether it is one of Kubernetes' own kinds."""
        return self.key in _BUILT_IN_KEYS

    def templates_in(self, raw: Object) -> Iterator[tuple[str, Any]]:
        """Yield path and content of each pod template in the object, in a fixed order."""
        for template in self.templates:
            yield from _values_at(raw, template.steps, "")


class Entry(Protocol):
    """A configuration entry for a kind."""

    @property
    def group(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def resource(self) -> str: ...
    @property
    def templates(self) -> Sequence[str]: ...
    @property
    def action(self) -> Action: ...


def _workload(group: str, kind: str, resource: str, *templates: str) -> Workload:
    return Workload(group, kind, resource, tuple(map(TemplatePath.of, templates)))


# Always reviewed; the chart's webhook rules contain them statically.
BUILT_IN: Final = (
    _workload("apps", "Deployment", "deployments", "spec.template"),
    _workload("apps", "StatefulSet", "statefulsets", "spec.template"),
    _workload("apps", "DaemonSet", "daemonsets", "spec.template"),
    _workload("apps", "ReplicaSet", "replicasets", "spec.template"),
    _workload("", "ReplicationController", "replicationcontrollers", "spec.template"),
    _workload("batch", "Job", "jobs", "spec.template"),
    _workload("batch", "CronJob", "cronjobs", "spec.jobTemplate.spec.template"),
)
_BUILT_IN_KEYS: Final = frozenset(workload.key for workload in BUILT_IN)
_RAY: Final = ("headGroupSpec.template", "workerGroupSpecs[*].template")
# Reviewed if the configuration names them. Groups, resources and fields are those of the projects' CRDs.
READY: Final = (
    _workload("jobset.x-k8s.io", "JobSet", "jobsets", "spec.replicatedJobs[*].template.spec.template"),
    _workload(
        "leaderworkerset.x-k8s.io",
        "LeaderWorkerSet",
        "leaderworkersets",
        "spec.leaderWorkerTemplate.leaderTemplate",
        "spec.leaderWorkerTemplate.workerTemplate",
    ),
    _workload("ray.io", "RayCluster", "rayclusters", *(f"spec.{path}" for path in _RAY)),
    _workload(
        "ray.io",
        "RayJob",
        "rayjobs",
        *(f"spec.rayClusterSpec.{path}" for path in _RAY),
        "spec.submitterPodTemplate",
    ),
    _workload("ray.io", "RayService", "rayservices", *(f"spec.rayClusterConfig.{path}" for path in _RAY)),
    _workload("kubeflow.org", "PyTorchJob", "pytorchjobs", "spec.pytorchReplicaSpecs.*.template"),
    _workload("kubeflow.org", "TFJob", "tfjobs", "spec.tfReplicaSpecs.*.template"),
    _workload("kubeflow.org", "MPIJob", "mpijobs", "spec.mpiReplicaSpecs.*.template"),
    _workload("kubeflow.org", "XGBoostJob", "xgboostjobs", "spec.xgbReplicaSpecs.*.template"),
    _workload("kubeflow.org", "PaddleJob", "paddlejobs", "spec.paddleReplicaSpecs.*.template"),
    _workload("kubeflow.org", "JAXJob", "jaxjobs", "spec.jaxReplicaSpecs.*.template"),
)


def resolve_workloads(entries: Iterable[Entry]) -> tuple[Mapping[WorkloadKey, Workload], list[FieldError]]:
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
            workload = workload or _workload(entry.group, entry.kind, entry.resource, *entry.templates)
            kinds[key] = Workload(workload.group, workload.kind, workload.resource, workload.templates, entry.action)
    return kinds, errors


def _listed_kind(entry: Entry) -> Workload | None:
    """Return the listed kind that the entry names, with its group or without; None if there is none."""
    for workload in (*BUILT_IN, *READY):
        if workload.kind == entry.kind and entry.group in ("", workload.group):
            return workload
    return None


def _listed_kind_errors(entry: Entry, path: str, workload: Workload) -> list[FieldError]:
    fields = (("resource", entry.resource), ("templates", ", ".join(entry.templates)))
    message = f"is known for {workload.kind}; leave it out"
    return [FieldError(RULE, f"{path}.{field}", value, message) for field, value in fields if value]


def _unlisted_kind_errors(entry: Entry, path: str) -> list[FieldError]:
    fields = {"group": entry.group, "resource": entry.resource, "templates": entry.templates}
    missing = [field for field, value in fields.items() if not value]
    if len(missing) == len(fields):
        kinds = ", ".join(workload.kind for workload in (*READY, *BUILT_IN))
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
    ]


def _values_at(value: Any, steps: Sequence[str], path: str) -> Iterator[tuple[str, Any]]:
    if not steps:
        if value is not None:
            yield path, value
        return
    step, rest = steps[0], steps[1:]
    if step == ITEMS:
        for index, item in enumerate(value if isinstance(value, list) else ()):
            yield from _values_at(item, rest, f"{path}[{index}]")
    elif not isinstance(value, dict):
        return
    elif step == VALUES:
        for key in sorted(value):
            yield from _values_at(value[key], rest, f"{path}[{key}]")
    else:
        yield from _values_at(value.get(step), rest, join_path(path, step))
