"""What the reconciler keeps of pods and BindRequests: the rest takes memory, and nothing reads it.

The functions change the decoded object that they are given, which nobody else holds.
"""

from typing import Any

from bowline.api import names
from bowline.api.meta import Object
from bowline.api.request_facts import MAX_CARRIED

# Of a request's labels, and of its annotations, the characters that are kept at most.
_MAX_METADATA = 8192


def reduced_pod(pod: dict[str, Any]) -> Object:
    """Return the pod without the writers' bookkeeping; everything else of an unbound pod is kept."""
    metadata = pod["metadata"]
    metadata.pop("managedFields", None)
    annotations = metadata.get("annotations")
    if annotations:
        annotations.pop(names.LAST_APPLIED, None)
    return pod


def reduced_request(request: dict[str, Any]) -> dict[str, Any]:
    """Return the request without what no plugin reads: bookkeeping, and the longest labels and annotations beyond
    ``_MAX_METADATA`` characters.
    """
    metadata = request["metadata"]
    metadata.pop("managedFields", None)
    (metadata.get("annotations") or {}).pop(names.LAST_APPLIED, None)
    for field in ("labels", "annotations"):
        values = metadata.get(field) or {}
        room = _MAX_METADATA
        for key in sorted(values, key=lambda key: len(key) + len(values[key])):
            if key == names.CARRIED_STATUS and len(values[key]) <= MAX_CARRIED:
                continue
            room -= len(key) + len(values[key])
            if room < 0:
                del values[key]
    return request
