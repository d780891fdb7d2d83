"""Annotations that request nothing because of their spelling or their place, as warnings. Pure.

No component reads such an annotation, so the pod runs without its share and nothing reports it. Only names that
resemble one of the share annotations are compared, under the prefixes that GPU schedulers use: most pods have none.
"""

from collections.abc import Iterator
from difflib import get_close_matches
from itertools import islice
from typing import Any

from shared.api import names
from shared.api.field_error import FieldError, annotation_path
from shared.api.meta import Object
from shared.plugins.gpu_request.pod import mapping_of

_PREFIXES = ("", "kai.scheduler", "runai", "run.ai", "bowline.dev")
_SPELLINGS = tuple(name for name in names.OWNED_ANNOTATIONS if name.startswith("gpu-"))
# gpu-mem and gpu-fracton resemble an annotation; gpu-product does not.
_LIKENESS = 0.8
# A comparison takes a tenth of a millisecond, and a pod may have thousands of annotations.
_MOST, _LONGEST = 20, 64


def spelling_warnings(raw: Object) -> Iterator[FieldError]:
    """Yield a warning for each annotation that is misspelt and each label that should be an annotation."""
    metadata = mapping_of(mapping_of(raw).get("metadata"))
    annotations, labels = mapping_of(metadata.get("annotations")), mapping_of(metadata.get("labels"))
    for key in islice(filter(_is_candidate, annotations), _MOST):
        matches = get_close_matches(_local_name(key), _SPELLINGS, 1, _LIKENESS)
        if matches:
            message = f"has no effect: no component reads this annotation; did you mean {matches[0]}?"
            path = annotation_path(key)
            yield FieldError("gpu_request/annotation-name", path, annotations[key], message, is_warning=True)
    for key in _SPELLINGS:
        if key in labels:
            path, message = f"metadata.labels[{key}]", f"has no effect as a label; set the annotation {key}"
            yield FieldError("gpu_request/annotation-as-label", path, labels[key], message, is_warning=True)


def _is_candidate(key: Any) -> bool:
    """Return whether a key may be meant as a share annotation and is none."""
    if not isinstance(key, str) or len(key) > _LONGEST or key in names.OWNED_ANNOTATIONS:
        return False
    return "gpu" in key.lower() and key.rpartition("/")[0] in _PREFIXES


def _local_name(key: str) -> str:
    return key.rpartition("/")[2].lower().replace("_", "-")
