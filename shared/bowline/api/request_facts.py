"""Facts of a BindRequest's status that programs read: what it waits for, and its failure. Pure.

They are fields of Bowline's own CRD. KAI-Scheduler's CRD prunes them: then the annotation ``bowline.dev/status``
holds the pruned part of the status as JSON, and ``reported_status`` merges the two. A status that another version or
another writer has stored is read as far as it is understood; what is not understood is absent. Decision 275.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import orjson

from bowline.api import names
from bowline.api.meta import Object, ObjectKey, ObjectRef, format_time, parse_time, status_of

# References that are stored, at most: a pod mounts a few claims.
MAX_OBJECTS: Final = 16
# A longer annotation is not the reconciler's.
MAX_CARRIED: Final = 16_384


@dataclass(frozen=True, slots=True)
class WaitFact:
    """What the request waits for. ``cause``: whose wait it is; ``deadline``: when it fails, None: never."""

    cause: str
    objects: tuple[ObjectRef, ...] = ()
    deadline: datetime | None = None

    def is_same(self, other: "WaitFact | None") -> bool:
        """Return whether both are for the same objects and of the same cause; their deadlines may differ."""
        same_cause = other is not None and other.cause == self.cause
        return other is not None and same_cause and stored_refs(other.objects) == stored_refs(self.objects)

    def as_field(self) -> dict[str, Any]:
        """Return ``status.wait``."""
        field: dict[str, Any] = {"cause": self.cause, "objects": stored_refs(self.objects)}
        return field if self.deadline is None else {**field, "deadline": format_time(self.deadline)}


@dataclass(frozen=True, slots=True)
class FailureFact:
    """A terminal failure: of a Failed request, or announced while a Pending one is rolled back.

    ``reason``: one of the closed list; ``plugin``: whose failure it is, or empty; ``plugin_reason``: its own reason,
    as ``plugin/Word``, or empty.
    """

    reason: str
    plugin: str = ""
    plugin_reason: str = ""
    objects: tuple[ObjectRef, ...] = ()

    def as_field(self) -> dict[str, Any]:
        """Return ``status.failure``."""
        field: dict[str, Any] = {"reason": self.reason, "objects": stored_refs(self.objects)}
        named = {"plugin": self.plugin, "pluginReason": self.plugin_reason}
        return {**field, **{key: name for key, name in named.items() if name}}


def wait_of(status: Object) -> WaitFact | None:
    """Return what a status says of a wait; None if there is none."""
    field = status.get("wait")
    if not isinstance(field, Mapping):
        return None
    return WaitFact(str(field.get("cause") or ""), refs_of(field.get("objects")), parse_time(field.get("deadline")))


def failure_of(status: Object) -> FailureFact | None:
    """Return what a status says of a terminal failure; None if there is none."""
    field = status.get("failure")
    if not isinstance(field, Mapping) or not field.get("reason"):
        return None
    plugin, plugin_reason = str(field.get("plugin") or ""), str(field.get("pluginReason") or "")
    return FailureFact(str(field["reason"]), plugin, plugin_reason, refs_of(field.get("objects")))


def reported_status(request: Object) -> Object:
    """Return the status of a raw BindRequest, with what a foreign CRD has pruned from it."""
    stored_status, carried = status_of(request), carried_status(request)
    return {**carried, **stored_status} if carried else stored_status


def carried_status(request: Object) -> Object:
    """Return the part of the status that the annotation holds; empty without one, and for a Succeeded request.

    Never the phase, which the status itself has: whoever may write annotations would keep it from being stored.
    """
    text = (request["metadata"].get("annotations") or {}).get(names.CARRIED_STATUS)
    if not isinstance(text, str) or len(text) > MAX_CARRIED or status_of(request).get("phase") == "Succeeded":
        return {}
    try:
        content = orjson.loads(text)
    except ValueError:
        return {}
    return {key: value for key, value in content.items() if key != "phase"} if isinstance(content, dict) else {}


def as_annotation(status: Mapping[str, Any]) -> str:
    """Return the annotation that holds a part of a status."""
    return orjson.dumps(status, option=orjson.OPT_SORT_KEYS).decode()


def stored_refs(objects: Iterable[ObjectRef]) -> list[dict[str, str]]:
    """Return references as a status has them, MAX_OBJECTS at most."""
    stored = []
    for ref in dict.fromkeys((ref.api_version, ref.kind, ref.key) for ref in objects):
        api_version, kind, key = ref
        namespace = {"namespace": key.namespace} if key.namespace else {}
        stored.append({"apiVersion": api_version, "kind": kind, **namespace, "name": key.name})
    return stored[:MAX_OBJECTS]


def refs_of(value: Any) -> tuple[ObjectRef, ...]:
    """Return the references that a field has; any JSON value is one."""
    entries = value if isinstance(value, list) else ()
    return tuple(
        ObjectRef(
            str(entry.get("apiVersion") or ""),
            str(entry.get("kind") or ""),
            ObjectKey(str(entry.get("namespace") or ""), str(entry.get("name") or "")),
        )
        for entry in entries[:MAX_OBJECTS]
        if isinstance(entry, Mapping)
    )
