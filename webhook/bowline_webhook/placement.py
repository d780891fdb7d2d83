"""What is in a workload at a place where its pods do not have it: annotations of a share, and schedulers. Pure.

Such a field changes nothing, and nothing reports it. The whole object is searched for the few keys that have a
meaning in a pod; what is in the pods themselves is the plugins' to judge. GPUs elsewhere are no mistake: those of
Kubernetes' own kinds the API server judges, those of other projects' may be for their controller.

Must find every key in an object of ordinary size. The number of values that are read, the length of their paths and
the number of warnings are bounded, and no step depends on another one's number.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from bowline.api import names
from bowline.api.field_error import FieldError, join_path
from bowline.api.meta import Object
from bowline.api.rule import Rule, Severity
from bowline.framework.admission import AdmissionChain
from bowline.framework.scope import SCHEDULER_PLACE
from bowline.framework.structure import MAX_ERRORS
from bowline.framework.templates import Template, Workload
from bowline.framework.workload_kinds import BUILT_IN_KEYS

ANNOTATION: Final = Rule(
    "workload/annotation-place",
    "an annotation of a share is on a workload, not on its pod template: its pods do not have it",
    severity=Severity.WARNS,
    invalid="apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: w, annotations: {gpu-fraction: '0.5'}}\n"
    "spec:\n  selector: {matchLabels: {app: w}}\n  template:\n    metadata: {labels: {app: w}}\n"
    "    spec: {schedulerName: kai-scheduler, containers: [{name: main, image: x}]}",
    valid="apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: w}\n"
    "spec:\n  selector: {matchLabels: {app: w}}\n  template:\n"
    "    metadata: {labels: {app: w}, annotations: {gpu-fraction: '0.5'}}\n"
    "    spec: {schedulerName: kai-scheduler, containers: [{name: main, image: x}]}",
)
RULES: Final = (ANNOTATION,)

_MOST: Final = 20_000
# Of the path of a value that is read: no project describes a pod as deep as that.
_LONGEST_PATH: Final = 512
_SCHEDULER: Final = "schedulerName"
_KEYS: Final = frozenset((*names.OWNED_ANNOTATIONS, _SCHEDULER, names.RESOURCE_GPU))
# A short word that other projects' objects have as a field.
_ONLY_IN_METADATA: Final = (names.MPS,)
# The group is the path of the pod's spec.
_RESOURCES: Final = re.compile(
    r"(.*?)(?:\.(?:initContainers|containers|ephemeralContainers)\[\d+\])?\.resources\.(?:limits|requests)"
)
# There a GPU's name is about nodes, or about a group of pods that request it.
_OF_OTHERS: Final = ("nodeSelector", "matchLabels", "overhead", "minResources")


@dataclass(frozen=True, slots=True)
class Occurrence:
    """A key with a meaning in a pod: the path of the object that has it, and its value."""

    place: str
    key: str
    value: Any

    @property
    def path(self) -> str:
        """The field path of the value."""
        is_field = self.key.isidentifier() and not self.place.endswith(("annotations", "labels"))
        return join_path(self.place, self.key) if is_field else f"{self.place}[{self.key}]"

    @property
    def is_device(self) -> bool:
        """Whether it is a number of GPUs."""
        return self.key == names.RESOURCE_GPU or self.key.startswith(names.RESOURCE_MIG_PREFIX)


def misplaced(
    chain: AdmissionChain, workload: Workload, raw: Object, templates: Sequence[Template]
) -> Iterator[FieldError]:
    """Yield a warning for each key that the pods do not have. ``templates``: every pod of the object, unchanged.

    What some pod has at its own place is not reported elsewhere: tools copy annotations to the objects around it.
    """
    yield from islice(_warnings(chain, workload, raw, templates), MAX_ERRORS if templates else 0)


def _warnings(
    chain: AdmissionChain, workload: Workload, raw: Object, templates: Sequence[Template]
) -> Iterator[FieldError]:
    keys_of_pods = {key for t in templates for key in _KEYS & _annotations(t.content).keys()}
    others = ((t, _exclusion(chain, t)) for t in templates)
    other_template, exclusion = next(((t, why) for t, why in others if why), (None, ""))
    for entry in elsewhere(workload, raw, templates):
        if entry.key == _SCHEDULER:
            if other_template is not None and chain.settings.schedules(entry.value):
                message = f"has no effect here, the pod has {exclusion}; set {other_template.spec_path}.schedulerName"
                yield FieldError(SCHEDULER_PLACE, entry.path, entry.value, message)
        elif not entry.is_device and entry.key not in keys_of_pods:
            place = f"{workload.pod_metadata or _nearest(templates, entry.place).metadata_path}.annotations"
            message = f"has no effect here, the pods do not have it; set it in {place}"
            yield FieldError(ANNOTATION, entry.path, entry.value, message)


def _exclusion(chain: AdmissionChain, template: Template) -> str:
    spec = template.content.get("spec") if isinstance(template.content, dict) else None
    return chain.exclusion(spec, "") if isinstance(spec, dict) else ""


def unknown_devices(workload: Workload, raw: Object, templates: Sequence[Template]) -> list[str]:
    """Return where an object of another project's kind has GPUs that are in no pod of it, as far as is known."""
    entries = () if workload.key in BUILT_IN_KEYS else elsewhere(workload, raw, templates)
    return [entry.place for entry in entries if entry.is_device and "labels" not in entry.place]


def elsewhere(workload: Workload, raw: Object, templates: Sequence[Template]) -> Iterator[Occurrence]:
    """Yield what is neither in a pod nor in a part of the object that is not read."""
    spec_paths = {_canonical(template.spec_path) for template in templates}
    # What is in the annotations, the labels and the node selector of a pod is judged as a part of the pod.
    template_paths = {
        f"{_canonical(t.metadata_path)}.{part}" for t in templates for part in ("annotations", "labels")
    }
    template_paths |= {f"{path}.nodeSelector" for path in spec_paths}
    if workload.pod_metadata:
        template_paths.add(f"{workload.pod_metadata}.annotations")
    container_places = {
        f"{_canonical(path)}.resources.{part}"
        for template in templates
        for path in template.container_paths
        for part in ("limits", "requests")
    }
    for entry in _occurrences(raw):
        place = entry.place
        if entry.is_device:
            is_own = place in template_paths or place in container_places or _spec_path(place) in spec_paths
        elif entry.key == _SCHEDULER:
            is_own = place in spec_paths or entry.path == workload.scheduler_field or place in template_paths
        else:
            is_own = place in template_paths
        if not (is_own or _is_unread(workload, place) or _is_of_others(entry)):
            yield entry


def _spec_path(place: str) -> str | None:
    """Return the path of the pod's spec that has resources at the place; None if resources are never there."""
    match = _RESOURCES.fullmatch(place)
    return match[1] if match is not None else None


def _canonical(path: str) -> str:
    """Return a path in which each key of an object that is a word has the form of a field."""
    return re.sub(r"\[([A-Za-z_]\w*)\]", r".\1", path)


def _is_unread(workload: Workload, place: str) -> bool:
    """Return whether the place is in a part of the object that users are told is not read."""
    for path, _ in workload.unread:
        pattern = re.escape(path).replace(r"\[\*\]", r"\[\d+\]").replace(r"\.\*", r"(?:\.\w+|\[[^\]]*\])")
        if path != "spec" and re.match(rf"{pattern}(?:[.\[]|$)", place):
            return True
    return False


def _is_of_others(entry: Occurrence) -> bool:
    last = entry.place.rpartition(".")[2]
    if entry.key in _ONLY_IN_METADATA:
        return last not in ("annotations", "labels")
    if not entry.is_device:
        return last == "matchLabels"  # of labels that are reported
    is_count = str(entry.value).isdigit()
    return last in _OF_OTHERS or (last in ("labels", "annotations") and not is_count)


def _nearest(templates: Iterable[Template], place: str) -> Template:
    """Return the template whose path has the most in common with the place."""

    def likeness(template: Template) -> int:
        pairs = zip(_canonical(template.metadata_path).split("."), place.split("."), strict=False)
        return next((index for index, (a, b) in enumerate(pairs) if a != b), len(place))

    return max(templates, key=likeness)


def _annotations(content: Any) -> Object:
    """Return the annotations of a pod's content; empty if it is malformed."""
    metadata = content.get("metadata") if isinstance(content, dict) else None
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    return annotations if isinstance(annotations, dict) else {}


def _occurrences(raw: Object) -> Iterator[Occurrence]:
    """Yield the keys that have a meaning in a pod, with simple values, in the order of the object."""
    stack: list[tuple[Any, str]] = [(raw, "")]
    left = _MOST
    while stack and left:
        value, place = stack.pop()
        left -= 1
        children: list[tuple[Any, str]] = []
        is_object = isinstance(value, dict)
        for key, content in value.items() if is_object else enumerate(value):
            if isinstance(content, dict | list):
                is_field = isinstance(key, str) and key.isidentifier()
                path = join_path(place, str(key)) if is_field else f"{place}[{key}]"
                if key not in ("status", "managedFields") and len(path) <= _LONGEST_PATH:
                    children.append((content, path))
            elif is_object and content is not None and _has_meaning(key):
                yield Occurrence(place, str(key), content)
        stack += reversed(children)


def _has_meaning(key: Any) -> bool:
    return key in _KEYS or (isinstance(key, str) and key.startswith(names.RESOURCE_MIG_PREFIX))
