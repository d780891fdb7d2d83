"""Where an object describes pods, and the pods that it describes there. Pure.

A path begins at ``spec``: field names joined by dots, ``[*]`` after one for each item of a list, ``*`` in place of
one for each value of an object. A path that ends early, or at a value of another type, matches nothing: the object's
own schema decides whether that is valid.

A path leads to a pod template, or to a pod's spec alone; then a second path leads to the object that has the pod's
labels and annotations. Both forms become a ``Template``, which maps a path in the pod to the path in the object.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final, Literal

from bowline.api import names
from bowline.api.field_error import FieldError, join_path
from bowline.api.meta import Object
from bowline.framework.structure import POD_SPEC_FIELDS

Action = Literal["Deny", "Warn"]
WorkloadKey = tuple[str, str]  # API group and kind; the version is irrelevant: no template has moved between versions

ITEMS, VALUES = "[*]", "*"
_TOKEN: Final = re.compile(r"\[\*\]|\*|[A-Za-z0-9_]+")
_CONTAINER: Final = re.compile(r"spec\.containers\[(\d+)\](.*)")
_ANNOTATION: Final = re.compile(r"metadata\.annotations\[(.*)\]")
# Of the annotations of an object, that each of its pods gets: the policy of devices permits a pod no more.
_MAX_INHERITED: Final = 256
# Of an object that is more than a pod's spec only these fields are the pod's; numbers of replicas are not.
_SPEC_FIELDS: Final = frozenset(POD_SPEC_FIELDS)


@dataclass(frozen=True, slots=True)
class TemplatePath:
    """Path of pod templates, or with ``metadata`` of pod specs: as text, and as steps.

    ``metadata``: steps to the object with the labels and annotations of a pod spec's pod; none if it has none. They
    begin with those steps of the spec that end with its last ``[*]`` or ``*``. ``containers``: steps below a pod spec
    to containers that are not in its list, and the name that each gets if it has none. ``resources``: steps below it
    to the resources of a container that the object does not describe otherwise; the last is ``resources``.
    """

    text: str
    steps: tuple[str, ...]
    metadata: tuple[str, ...] | None = None
    containers: tuple[tuple[tuple[str, ...], str], ...] = ()
    resources: tuple[tuple[str, ...], ...] = ()

    @classmethod
    def of(cls, text: str) -> "TemplatePath":
        """Parse the path of a template; ``resolve_workloads`` validates it."""
        return cls(text, steps_of(text))

    @classmethod
    def of_spec(
        cls,
        text: str,
        metadata: str = "",
        containers: Mapping[str, str] | None = None,
        resources: Sequence[str] = (),
    ) -> "TemplatePath":
        """Parse the path of a pod spec, and those of its metadata, its containers, and resources of containers."""
        entries = tuple((steps_of(path), name) for path, name in (containers or {}).items())
        return cls(text, steps_of(text), steps_of(metadata), entries, tuple(map(steps_of, resources)))

    @property
    def has_own_containers(self) -> bool:
        """Whether containers, or their resources, are elsewhere than in the pod spec's list."""
        return bool(self.containers or self.resources)

    @property
    def common(self) -> int:
        """The number of steps up to the last ``[*]`` or ``*``, at least one; metadata begins with the same."""
        return max((index + 1 for index, step in enumerate(self.steps) if step in (ITEMS, VALUES)), default=1)


def steps_of(text: str) -> tuple[str, ...]:
    """Return the steps of a path."""
    return tuple(_TOKEN.findall(text))


@dataclass(frozen=True, slots=True)
class Template:
    """A pod that an object describes: ``content`` is its metadata and spec, of any type if they are malformed.

    ``container_paths``: of the containers, where they are not in the list of the spec. ``inherited``: the keys of
    annotations that the pod has from metadata of the object, at ``inherited_path``.
    """

    path: str
    content: Any
    spec_path: str
    metadata_path: str
    container_paths: tuple[str, ...] = ()
    inherited: frozenset[str] = frozenset()
    is_wrong_path: bool = False
    inherited_path: str = "metadata"

    @classmethod
    def at(cls, path: str, content: Any) -> "Template":
        """Return the pod template at a path of the object."""
        return cls(path, content, f"{path}.spec", f"{path}.metadata", is_wrong_path=_is_pod_spec(content))

    def place(self, error: FieldError) -> FieldError:
        """Return an error of the pod with its path in the object."""
        path = error.path
        annotation, container = _ANNOTATION.fullmatch(path), _CONTAINER.fullmatch(path)
        if annotation is not None and annotation[1] in self.inherited:
            return _moved(error, self.inherited_path + path.removeprefix("metadata"))
        if container is not None and int(container[1]) < len(self.container_paths):
            return _moved(error, self.container_paths[int(container[1])] + container[2])
        for root, target in (("metadata", self.metadata_path), ("spec", self.spec_path)):
            if path == root or path.startswith((f"{root}.", f"{root}[")):
                return _moved(error, target + path.removeprefix(root))
        return error.under(self.path)


def _moved(error: FieldError, path: str) -> FieldError:
    return replace(error, path=path)


@dataclass(frozen=True, slots=True)
class Workload:
    """A kind whose pod templates are reviewed. ``resource`` is its plural in URLs and in webhook rules.

    What the kind's controller adds to its pods: ``scheduler_field``, the field with the scheduler of pods that name
    none; ``queue_scheduler``, that scheduler if the object has the label of a queue; ``pod_metadata``, the path of
    metadata whose annotations all its pods get; ``is_partial``, containers from elsewhere. ``unread``: paths of what
    changes the pods and is not reviewed here, each with its name for users; the pods themselves are reviewed with it.
    """

    group: str
    kind: str
    resource: str
    templates: tuple[TemplatePath, ...]
    action: Action = "Deny"
    scheduler_field: str = ""
    queue_scheduler: str = ""
    pod_metadata: str = ""
    is_partial: bool = False
    unread: tuple[tuple[str, str], ...] = ()

    @property
    def key(self) -> WorkloadKey:
        """The key of the kind: group and kind."""
        return self.group, self.kind

    def templates_in(self, raw: Object) -> Iterator[Template]:
        """Yield each pod that the object describes, in a fixed order."""
        for path in self.templates:
            for template in _templates_at(raw, path):
                if (
                    not path.has_own_containers or self.is_partial or template.container_paths
                ):  # else a step without a pod
                    yield self._completed(raw, template)

    def unread_in(self, raw: Object) -> list[str]:
        """Return the names of what this object has of ``unread``, without repetitions."""
        present = (text for path, text in self.unread if any(values_at(raw, steps_of(path))))
        return list(dict.fromkeys(present))

    def _completed(self, raw: Object, template: Template) -> Template:
        """Return the template with what the kind's controller adds."""
        content = template.content
        spec = content.get("spec") if isinstance(content, dict) else None
        if not isinstance(spec, dict) or template.is_wrong_path:
            return template
        scheduler = spec.get("schedulerName") or self._default_scheduler(raw)
        if scheduler and not spec.get("schedulerName"):
            content = {**content, "spec": {**spec, "schedulerName": scheduler}}
        origin = self.pod_metadata
        metadata_of_pods: Any = next((value for _, value in values_at(raw, steps_of(origin))), {}) if origin else {}
        inherited = dict(islice(_mapping(_mapping(metadata_of_pods).get("annotations")).items(), _MAX_INHERITED))
        if inherited:
            metadata = _mapping(content.get("metadata"))
            own = _mapping(metadata.get("annotations"))
            content = {**content, "metadata": {**metadata, "annotations": {**inherited, **own}}}
            inherited = {key: value for key, value in inherited.items() if key not in own}
        return Template(
            template.path,
            content,
            template.spec_path,
            template.metadata_path,
            template.container_paths,
            frozenset(inherited),
            inherited_path=origin,
        )

    def _default_scheduler(self, raw: Object) -> Any:
        if self.scheduler_field:
            return next((value for _, value in values_at(raw, steps_of(self.scheduler_field))), None)
        has_queue = names.QUEUE_LABEL in _mapping(_mapping(raw.get("metadata")).get("labels"))
        return self.queue_scheduler if has_queue else ""


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _templates_at(raw: Object, path: TemplatePath) -> Iterator[Template]:
    if path.metadata is None:
        for where, content in values_at(raw, path.steps):
            yield Template.at(where, content)
        return
    common = path.common
    for where, value in values_at(raw, path.steps[:common]):
        for spec_path, spec in values_at(value, path.steps[common:], where):
            steps = path.metadata[common:]
            metadata = next((content for _, content in values_at(value, steps)), None) if path.metadata else None
            metadata_path = join_path(where, ".".join(steps)) if path.metadata else spec_path
            yield _pod_of(path, spec_path, spec, metadata_path, metadata)


def _pod_of(path: TemplatePath, spec_path: str, spec: Any, metadata_path: str, metadata: Any) -> Template:
    """Return the pod of a spec; of its metadata, only labels and annotations belong to it."""
    if not isinstance(spec, dict):
        return Template(spec_path, {"spec": spec}, spec_path, metadata_path)
    if "containers" not in spec and _is_pod_spec(spec.get("spec")):
        return Template(spec_path, spec, spec_path, metadata_path, is_wrong_path=True)
    elsewhere = {steps[0] for steps in path.resources}
    pod_spec = {field: value for field, value in spec.items() if field in _SPEC_FIELDS and field not in elsewhere}
    paths: tuple[str, ...] = ()
    if path.has_own_containers and isinstance(pod_spec.get("containers", []), list):
        containers = [*_containers(path.containers, spec, spec_path), *_resources(path.resources, spec, spec_path)]
        containers += [(f"{spec_path}.containers[{i}]", c) for i, c in enumerate(pod_spec.get("containers") or ())]
        paths = tuple(where for where, _ in containers)
        pod_spec["containers"] = [container for _, container in containers]
    own = {field: metadata[field] for field in ("labels", "annotations") if field in _mapping(metadata)}
    return Template(spec_path, {"metadata": own, "spec": pod_spec}, spec_path, metadata_path, paths)


def _containers(
    entries: Iterable[tuple[tuple[str, ...], str]], spec: Object, spec_path: str
) -> Iterator[tuple[str, Any]]:
    for steps, name in entries:
        for where, container in values_at(spec, steps, spec_path):
            if isinstance(container, dict):
                yield where, {"name": name, **container} if name else container


def _resources(paths: Iterable[tuple[str, ...]], spec: Object, spec_path: str) -> Iterator[tuple[str, Any]]:
    """Yield a container for each value with resources; what else belongs to it is not known."""
    for steps in paths:
        for where, resources in values_at(spec, steps, spec_path):
            if isinstance(resources, dict):
                yield where.removesuffix(".resources"), {"name": "main", "resources": resources}


def _is_pod_spec(value: Any) -> bool:
    return isinstance(value, dict) and "spec" not in value and isinstance(value.get("containers"), list)


def values_at(value: Any, steps: Sequence[str], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield path and content of each value at the steps, in a fixed order; null is absent."""
    if not steps:
        if value is not None:
            yield path, value
        return
    step, rest = steps[0], steps[1:]
    if step == ITEMS:
        for index, item in enumerate(value if isinstance(value, list) else ()):
            yield from values_at(item, rest, f"{path}[{index}]")
    elif isinstance(value, list):
        if step.isdecimal() and int(step) < len(value):
            yield from values_at(value[int(step)], rest, f"{path}[{step}]")
    elif not isinstance(value, dict):
        return
    elif step == VALUES:
        for key in sorted(value):
            yield from values_at(value[key], rest, f"{path}[{key}]")
    else:
        yield from values_at(value.get(step), rest, join_path(path, step))
