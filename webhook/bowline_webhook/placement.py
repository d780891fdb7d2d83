"""Annotations of a share on the metadata of a workload around its pods, which do not get them. Pure.

Such an annotation changes nothing, and nothing reports it; a field that a kind does not have, the API server reports.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from bowline.api import names
from bowline.api.field_error import FieldError, join_path
from bowline.api.meta import Object
from bowline.api.rule import Rule, Severity
from bowline.framework.structure import MAX_ERRORS
from bowline.framework.templates import Template, Workload, steps_of, values_at

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


def misplaced(workload: Workload, raw: Object, templates: Sequence[Template]) -> Iterator[FieldError]:
    """Yield a warning for each annotation that no pod has. ``templates``: every pod of the object, unchanged.

    What some pod has is not reported: tools copy annotations to the objects around it.
    """
    yield from islice(_warnings(workload, raw, templates), MAX_ERRORS)


def _warnings(workload: Workload, raw: Object, templates: Sequence[Template]) -> Iterator[FieldError]:
    keys_of_pods = {key for template in templates for key in _annotations(_metadata(template.content))}
    own_places = {workload.pod_metadata, *(template.metadata_path for template in templates)}
    nearest: dict[str, Template] = {}  # by the path of metadata around it
    for template in templates:
        fields = template.spec_path.split(".")
        for depth in range(len(fields)):
            nearest.setdefault(join_path(".".join(fields[:depth]), "metadata"), template)
    for place, template in nearest.items():
        for _, metadata in values_at(raw, steps_of(place)) if place not in own_places else ():
            annotations = _annotations(metadata)
            for key in names.OWNED_ANNOTATIONS:
                if annotations.get(key) is not None and key not in keys_of_pods:
                    target = workload.pod_metadata or template.metadata_path
                    message = f"has no effect here, the pods do not have it; set it in {target}.annotations"
                    yield FieldError(ANNOTATION, f"{place}.annotations[{key}]", annotations[key], message)


def _metadata(content: Any) -> Any:
    return content.get("metadata") if isinstance(content, dict) else None


def _annotations(metadata: Any) -> Mapping[str, Any]:
    """Return the annotations; empty if they are malformed."""
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    return annotations if isinstance(annotations, dict) else {}
