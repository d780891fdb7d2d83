"""Identity of Kubernetes objects, as values.

A name is reused, a UID never is: code that refers to an object over time keeps its UID. Raw objects from the API
server stay plain dictionaries (``Object``), so unknown fields are never lost.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple, NewType

ObjectUID = NewType("ObjectUID", str)
ResourceVersion = NewType("ResourceVersion", str)

# The kind of replies of API servers that contain metadata only.
METADATA_KIND = "PartialObjectMetadata"

# A JSON object as sent by the API server. Read-only by convention: copy it before changing it.
Object = Mapping[str, Any]


class ObjectKey(NamedTuple):
    """Namespace and name; the namespace is empty for cluster-scoped objects."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


# apiVersion, kind and key of an object.
ObjectID = tuple[str, str, ObjectKey]


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """A reference to an object. ``resource_version`` is the version that was read, if known."""

    api_version: str
    kind: str
    key: ObjectKey
    uid: ObjectUID = ObjectUID("")
    resource_version: ResourceVersion = ResourceVersion("")

    @property
    def id(self) -> ObjectID:
        """The object without its UID and version."""
        return self.api_version, self.kind, self.key

    def __str__(self) -> str:
        return f"{self.kind} {self.key}"


def key_of(obj: Object) -> ObjectKey:
    """Return the key of a raw object. As in the API server, a null namespace is an absent one."""
    metadata = obj["metadata"]
    # Interned: caches hold tens of thousands of keys of a few namespaces.
    return ObjectKey(sys.intern(metadata.get("namespace") or ""), metadata["name"])


def uid_of(obj: Object) -> ObjectUID:
    """Return the UID of a raw object; empty if it was never stored."""
    return ObjectUID(obj["metadata"].get("uid") or "")


def is_older(version: ResourceVersion, other: ResourceVersion) -> bool:
    """Return whether one version of an object precedes another; False if that is unknown.

    Versions are decimal numbers that grow with each write (KEP-5504); kube-scheduler's assume cache relies on it too.
    """
    return version.isdecimal() and other.isdecimal() and int(version) < int(other)


def version_of(obj: Object) -> ResourceVersion:
    """Return the resourceVersion of a raw object; empty if it was never stored."""
    return ResourceVersion(obj["metadata"].get("resourceVersion") or "")


def is_deleting(obj: Object) -> bool:
    """Return whether the object is being deleted."""
    return bool(obj["metadata"].get("deletionTimestamp"))


def pod_owner(name: str, uid: str) -> dict[str, Any]:
    """Return the owner reference to a pod."""
    return {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}


def identity_of(obj: Object) -> dict[str, Any]:
    """Return the metadata that identify a raw object and its version, for a cache that keeps little else."""
    metadata = obj["metadata"]
    fields = ("name", "namespace", "uid", "resourceVersion")
    return {field: metadata[field] for field in fields if field in metadata}


def has_ended(obj: Object) -> bool:
    """Return whether a raw pod or BindRequest is in a terminal phase; a pod may end without a node."""
    return status_of(obj).get("phase") in ("Succeeded", "Failed")


def status_of(obj: Object) -> Object:
    """Return the ``.status`` of a raw object; empty if it is absent or, as a foreign CRD may store it, not an
    object.
    """
    status = obj.get("status")
    return status if isinstance(status, Mapping) else {}


def is_reduced(obj: Object) -> bool:
    """Return whether the object is metadata alone: asked for so, or because the rest is not decoded."""
    return obj.get("kind") == METADATA_KIND


def parse_time(text: Any) -> datetime | None:
    """Parse a metav1.Time or MicroTime (RFC 3339); None if absent, unreadable or of another type."""
    if not text or not isinstance(text, str):
        return None
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        return None  # OverflowError: in UTC in the year 0 or 10000


def format_time(moment: datetime) -> str:
    """Format as metav1.Time: UTC, whole seconds, rounded down."""
    return _iso(moment, "seconds")


def format_micro_time(moment: datetime) -> str:
    """Format as metav1.MicroTime: UTC, microseconds."""
    return _iso(moment, "microseconds")


def _iso(moment: datetime, timespec: str) -> str:
    # Called several times per bind; strftime() takes five times as long.
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec=timespec) + "Z"
