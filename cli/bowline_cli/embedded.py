"""Objects within objects: what a controller creates from a part of another one, reviewed like those in a file. Pure.

Of an AppWrapper the components, of an Argo Workflow the manifests of its resource templates. A manifest with
variables of Argo that is no YAML before they are replaced is not read.
"""

import copy
from collections.abc import Iterator
from typing import Any

from bowline.framework.templates import steps_of, values_at
from bowline_cli.manifests import Manifest, UnreadableError, parse_manifests

_COMPONENTS = {("workload.codeflare.dev", "AppWrapper"): "spec.components[*].template"}
_TEXTS = {
    **dict.fromkeys(
        (("argoproj.io", kind) for kind in ("Workflow", "WorkflowTemplate", "ClusterWorkflowTemplate")),
        "spec.templates[*].resource.manifest",
    ),
    ("argoproj.io", "CronWorkflow"): "spec.workflowSpec.templates[*].resource.manifest",
}


EMBEDDING_KINDS = frozenset((*_TEXTS, *_COMPONENTS))


def embedded_manifests(manifest: Manifest) -> Iterator[Manifest]:
    """Yield the objects within an object; those that cannot be read are left out."""
    path = _COMPONENTS.get(manifest.key)
    for where, value in values_at(manifest.object, steps_of(path)) if path else ():
        if _is_object(value):
            text = manifest.text and manifest.text.below(where)
            yield Manifest(manifest.file, manifest.line_of(where), copy.deepcopy(value), text)
    for where, objects in _texts(manifest):
        for embedded in objects or ():
            yield Manifest(manifest.file, manifest.line_of(where), embedded.object)


def has_unread_text(manifest: Manifest) -> bool:
    """Return whether the object has a text with a manifest that cannot be read."""
    return any(objects is None for _, objects in _texts(manifest))


def _texts(manifest: Manifest) -> Iterator[tuple[str, list[Manifest] | None]]:
    path = _TEXTS.get(manifest.key)
    for where, value in values_at(manifest.object, steps_of(path)) if path else ():
        try:
            yield where, parse_manifests(manifest.file, value) if isinstance(value, str) else None
        except UnreadableError:
            yield where, None


def _is_object(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(key), str) for key in ("apiVersion", "kind"))
