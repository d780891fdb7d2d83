"""A model of the API server's storage: what a write does, who is told, and which preconditions reject it.

One call of ``handle`` is one transaction; the network around it is ``network``'s. What is modelled, because the
product depends on it: resourceVersions and UIDs, optimistic concurrency of PUT and PATCH, preconditions of DELETE,
finalizers, graceful deletion of pods, status as a subresource, ``pods/binding``, writes that change nothing, pages of
a list, watches with selections, bookmarks and expired versions. ``validate`` compares it with a real API server.

Not modelled: admission, schemas, JSON patches, server-side apply, dry run, authorization, managed fields.
"""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import orjson

from tests.simulation.objects import Object, field_selector, label_selector, merge_patch, strategic_patch

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"


@dataclass(frozen=True, slots=True)
class Kind:
    """One resource. ``is_custom``: its objects are of a CustomResourceDefinition."""

    api_version: str
    plural: str
    kind: str
    namespaced: bool = True
    has_status: bool = True
    is_custom: bool = False
    returns_deleted: bool = True  # DELETE answers with the object, not with a Status


KINDS = (
    Kind("v1", "pods", "Pod"),
    Kind("v1", "nodes", "Node", namespaced=False, returns_deleted=False),
    Kind("v1", "namespaces", "Namespace", namespaced=False),
    Kind("v1", "configmaps", "ConfigMap", has_status=False, returns_deleted=False),
    Kind("v1", "persistentvolumes", "PersistentVolume", namespaced=False),
    Kind("v1", "persistentvolumeclaims", "PersistentVolumeClaim"),
    Kind("storage.k8s.io/v1", "storageclasses", "StorageClass", namespaced=False, has_status=False),
    Kind("node.k8s.io/v1", "runtimeclasses", "RuntimeClass", namespaced=False, has_status=False),
    Kind("coordination.k8s.io/v1", "leases", "Lease", has_status=False, returns_deleted=False),
    Kind("events.k8s.io/v1", "events", "Event", has_status=False, returns_deleted=False),
    Kind("resource.k8s.io/v1", "resourceclaims", "ResourceClaim"),
    Kind("resource.k8s.io/v1", "resourceslices", "ResourceSlice", namespaced=False, has_status=False),
    Kind("resource.k8s.io/v1", "devicetaintrules", "DeviceTaintRule", namespaced=False),
    Kind("nvidia.com/v1", "clusterpolicies", "ClusterPolicy", namespaced=False, is_custom=True),
    Kind("bowline.dev/v1alpha1", "bindchecks", "BindCheck", is_custom=True, returns_deleted=False),
    Kind("scheduling.run.ai/v1alpha2", "bindrequests", "BindRequest", is_custom=True, returns_deleted=False),
    Kind("scheduling.run.ai/v2alpha2", "podgroups", "PodGroup", is_custom=True, returns_deleted=False),
)
_BY_PATH = {(kind.api_version, kind.plural): kind for kind in KINDS}
Key = tuple[str, str]


class RejectedError(Exception):
    """The API server's decision: a Status."""

    def __init__(self, code: int, reason: str, message: str, causes: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(f"{code} {reason}: {message}")
        self.code, self.reason, self.message, self.causes = code, reason, message, causes


@dataclass(frozen=True, slots=True)
class Change:
    """A committed write. ``old`` is None for a creation, ``new`` for a removal; ``version`` is the transaction's."""

    version: int
    kind: Kind
    key: Key
    old: Object | None
    new: Object | None
    user: str
    verb: str
    subresource: str
    body: Any


@dataclass(slots=True)
class Answer:
    code: int
    body: Object
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Watcher:
    """One watch: ``deliver`` is called with the line of each event after the version ``since``, in order.

    After a restore a version may be one that is not reached again yet: nothing is delivered until then.
    """

    kind: Kind
    selects: Callable[[Object], bool]
    as_metadata: bool
    deliver: Callable[[bytes], None]
    since: int

    def line(self, change: Change) -> bytes | None:
        if change.version <= self.since:
            return None
        was = change.old is not None and self.selects(change.old)
        matches = change.new is not None and self.selects(change.new)
        if not was and not matches:
            return None
        what = "ADDED" if not was else "MODIFIED" if matches else "DELETED"
        obj: Any = change.new if matches else change.old
        # Of an object that leaves the selection, the version is that of the write.
        obj = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(change.version)}}
        return orjson.dumps({"type": what, "object": self.shown(obj)}) + b"\n"

    def shown(self, obj: Object) -> Object:
        return partial(obj) if self.as_metadata else obj


@dataclass(frozen=True, slots=True)
class Backup:
    """A copy of etcd: its revision and all objects."""

    version: int
    objects: Mapping[Kind, Mapping[Key, Object]]


def partial(obj: Object) -> Object:
    return {"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": obj["metadata"]}


class Server:
    """The storage. ``now`` returns seconds since EPOCH."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._version = 1000
        self._uids = itertools.count(1)
        self._objects: dict[Kind, dict[Key, Object]] = {kind: {} for kind in KINDS}
        self._log: list[Change] = []
        self._oldest = 1000  # versions below are compacted
        self._pages: dict[str, tuple[list[Object], str]] = {}
        self._tokens = itertools.count(1)
        self.is_down = False
        self.page_limit = 500  # however much a client asks for
        self.strips_bindings = False  # a policy removes what Bindings carry
        self.terminating: set[str] = set()  # namespaces
        self.watchers: list[Watcher] = []
        self.observers: list[Callable[[Change], None]] = []

    @property
    def version(self) -> str:
        return str(self._version)

    # --- for the world and the checks: no copies, read only ---

    def objects(self, plural: str) -> list[Object]:
        return list(self._objects[self._kind_of(plural)].values())

    def find(self, plural: str, name: str, namespace: str = "") -> Object | None:
        return self._objects[self._kind_of(plural)].get((namespace, name))

    def call(self, user: str, method: str, path: str, body: Any = None, content_type: str = MERGE) -> Object | None:
        """A call of the world, atomic and without a network; None if it is rejected, or nothing answers."""
        if self.is_down:
            return None
        answer = self.handle(user, method, path, body, content_type, "application/json")
        return answer.body if answer.code < 300 else None

    def compact(self) -> None:
        """Forget the history: watches from older versions expire."""
        self._oldest = self._version
        self._log.clear()
        self._pages.clear()

    def backup(self) -> Backup:
        """Copy the storage. Objects are never changed in place."""
        return Backup(self._version, {kind: dict(objects) for kind, objects in self._objects.items()})

    def restore(self, backup: Backup) -> None:
        """Put a copy back, as etcd does without ``--bump-revision``: versions are counted from the copy's on."""
        self._objects = {kind: dict(objects) for kind, objects in backup.objects.items()}
        self._version = backup.version
        self.compact()

    # --- one request ---

    def handle(self, user: str, method: str, path: str, body: Any, content_type: str, accept: str) -> Answer:
        """Execute one request that is not a watch."""
        url = urlsplit(path)
        params = {key: values[0] for key, values in parse_qs(url.query).items()}
        if url.path == "/apis":
            groups = {kind.api_version for kind in KINDS if "/" in kind.api_version}
            return Answer(200, {"groups": [{"versions": [{"groupVersion": group}]} for group in sorted(groups)]})
        if url.path.removeprefix("/apis/") in {kind.api_version for kind in KINDS}:
            plurals = [kind.plural for kind in KINDS if url.path == f"/apis/{kind.api_version}"]
            return Answer(200, {"resources": [{"name": plural} for plural in plurals]})
        if url.path.endswith("/selfsubjectreviews"):
            return Answer(201, {"status": {"userInfo": {"username": "system:serviceaccount:sim:r", "uid": "sa"}}})
        location = self._parse(url.path)
        if location is None:
            # As for a path that is not served: plain text.
            return Answer(404, {}, {"Content-Type": "text/plain"})
        kind, namespace, name, subresource = location
        as_metadata = "as=PartialObjectMetadata" in accept
        try:
            if method == "GET" and not name:
                return Answer(200, self._list(kind, namespace, params, as_metadata))
            if method == "GET":
                obj = self._get(kind, (namespace, name))
                return Answer(200, partial(obj) if as_metadata else obj)
            if method == "POST" and subresource == "binding":
                self._bind(user, kind, (namespace, name), body)
                return Answer(201, {"kind": "Status", "apiVersion": "v1", "status": "Success", "metadata": {}})
            if method == "POST":
                return Answer(201, self._create(user, kind, namespace, body))
            if method == "DELETE":
                return Answer(200, self._delete(user, kind, (namespace, name), body or {}))
            is_unguarded = method == "PUT" and not body["metadata"].get("resourceVersion")
            if is_unguarded and kind.plural == "leases" and (namespace, name) not in self._objects[kind]:
                return Answer(201, self._create(user, kind, namespace, body))
            return Answer(200, self._write(user, method, kind, (namespace, name), subresource, body, content_type))
        except RejectedError as rejection:
            return Answer(rejection.code, _status(rejection, kind, name))

    def watch(self, path: str, accept: str, deliver: Callable[[bytes], None]) -> Watcher | Answer:
        """Open a watch; the answer is a rejection. Events after the version are delivered at once."""
        url = urlsplit(path)
        params = {key: values[0] for key, values in parse_qs(url.query).items()}
        location = self._parse(url.path)
        if location is None:
            return Answer(404, {}, {"Content-Type": "text/plain"})
        kind, namespace = location[0], location[1]
        since = int(params["resourceVersion"])
        if since < self._oldest:
            return Answer(410, _status(RejectedError(410, "Expired", "too old resource version"), kind, ""))
        watcher = Watcher(kind, _selection(namespace, params), "as=PartialObjectMetadata" in accept, deliver, since)
        for change in self._log:
            if change.kind is kind:
                line = watcher.line(change)
                if line is not None:
                    deliver(line)
        self.watchers.append(watcher)
        return watcher

    def unwatch(self, watcher: Watcher) -> None:
        if watcher in self.watchers:
            self.watchers.remove(watcher)

    def bookmark(self, watcher: Watcher) -> bytes | None:
        """Return the line of a bookmark; None before the watch's version is reached."""
        if self._version < watcher.since:
            return None
        kind = watcher.kind
        obj = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"resourceVersion": self.version}}
        return orjson.dumps({"type": "BOOKMARK", "object": obj}) + b"\n"

    # --- verbs ---

    def _kind_of(self, plural: str) -> Kind:
        return next(kind for kind in KINDS if kind.plural == plural)

    def _parse(self, path: str) -> tuple[Kind, str, str, str] | None:
        parts = [unquote(part) for part in path.strip("/").split("/")]
        api_version, rest = (parts[1], parts[2:]) if parts[0] == "api" else ("/".join(parts[1:3]), parts[3:])
        namespace = ""
        if rest[0] == "namespaces" and len(rest) > 2:
            namespace, rest = rest[1], rest[2:]
        kind = _BY_PATH.get((api_version, rest[0]))
        if kind is None:
            return None
        rest += [""] * (3 - len(rest))
        return kind, namespace, rest[1], rest[2]

    def _get(self, kind: Kind, key: Key) -> Object:
        obj = self._objects[kind].get(key)
        if obj is None:
            raise RejectedError(404, "NotFound", f'{kind.plural} "{key[1]}" not found')
        return obj

    def _list(self, kind: Kind, namespace: str, params: Mapping[str, str], as_metadata: bool) -> Object:
        token = params.get("continue", "")
        if token:
            if token not in self._pages:
                raise RejectedError(410, "Expired", "The provided continue parameter is too old")
            items, version = self._pages.pop(token)
        else:
            selects = _selection(namespace, params)
            items = [obj for _, obj in sorted(self._objects[kind].items()) if selects(obj)]
            version = self.version
        limit = min(int(params.get("limit") or 0) or len(items), self.page_limit)
        page, rest, metadata = items[:limit], items[limit:], {"resourceVersion": version}
        if rest:
            metadata["continue"] = token = f"token-{next(self._tokens)}"
            self._pages[token] = rest, version
        entries = [partial(obj) for obj in page] if as_metadata else page
        return {"kind": f"{kind.kind}List", "apiVersion": kind.api_version, "metadata": metadata, "items": entries}

    def _create(self, user: str, kind: Kind, namespace: str, body: Any) -> Object:
        metadata = dict(body["metadata"])
        uid = next(self._uids)
        if not metadata.get("name"):
            metadata["name"] = f"{metadata['generateName']}{uid:05x}"
        if kind.namespaced:
            metadata["namespace"] = namespace
        key = (namespace if kind.namespaced else "", metadata["name"])
        if kind.namespaced and namespace in self.terminating:
            raise RejectedError(403, "Forbidden", f"unable to create new content in namespace {namespace}")
        if key in self._objects[kind]:
            raise RejectedError(409, "AlreadyExists", f'{kind.plural} "{key[1]}" already exists')
        metadata |= {
            "uid": f"{uid:08x}-0000-4000-8000-000000000000",
            "creationTimestamp": self.timestamp(),
            "generation": 1,
        }
        metadata.pop("deletionTimestamp", None)
        new = {"apiVersion": kind.api_version, "kind": kind.kind, **body, "metadata": _clean(metadata)}
        if kind.has_status and kind.plural not in ("nodes", "persistentvolumes", "persistentvolumeclaims", "pods"):
            new.pop("status", None)
        if kind.plural == "pods" and "status" not in body:
            gated = [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]
            is_gated = bool(body["spec"].get("schedulingGates"))
            new["status"] = {"phase": "Pending", **({"conditions": gated} if is_gated else {})}
        return self._commit(user, "create", kind, key, None, new, "", body)

    def _write(
        self, user: str, method: str, kind: Kind, key: Key, subresource: str, body: Any, content_type: str
    ) -> Object:
        """PUT and PATCH."""
        old = self._get(kind, key)
        if method == "PUT":
            self._check_uid_of_update(body, old)
            new = body
        else:
            new = (strategic_patch if content_type == STRATEGIC else merge_patch)(old, body)
        before, after = old["metadata"], dict(new["metadata"])
        version = after.get("resourceVersion")
        if version and version != before["resourceVersion"]:
            raise RejectedError(
                409, "Conflict", f"the object {key[1]} has been modified; apply your changes to the latest"
            )
        if method == "PUT" and not version and (kind.is_custom or kind.plural == "leases"):
            raise RejectedError(422, "Invalid", "metadata.resourceVersion: must be specified for an update")
        # Of a custom resource's status patch, the API server takes the resourceVersion and no other metadata.
        is_uid_read = not (kind.is_custom and subresource == "status")
        if is_uid_read and after.get("uid", before["uid"]) != before["uid"]:
            raise RejectedError(422, "Invalid", "metadata.uid: field is immutable", (("metadata.uid", "immutable"),))
        if before.get("deletionTimestamp"):
            added = set(after.get("finalizers") or ()) - set(before.get("finalizers") or ())
            if added:
                why = "metadata.finalizers: no new finalizers can be added if the object is being deleted"
                raise RejectedError(422, "Invalid", why, (("metadata.finalizers", "forbidden"),))
        for field_name in (
            "uid",
            "creationTimestamp",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "generation",
        ):
            after.pop(field_name, None)
            if field_name in before:
                after[field_name] = before[field_name]
        after |= {"name": key[1], **({"namespace": key[0]} if kind.namespaced else {})}
        if subresource == "status":
            new = {**old, "status": new.get("status") or {}}
            if not new["status"]:
                del new["status"]
            if not kind.is_custom:
                new["metadata"] = {**after, "finalizers": before.get("finalizers")}
        else:
            new = {**new, "metadata": after}
            if kind.has_status:
                new = {name: value for name, value in new.items() if name != "status"}
                if "status" in old:
                    new["status"] = old["status"]
        new = {"apiVersion": kind.api_version, "kind": kind.kind, **new, "metadata": _clean(new["metadata"])}
        if kind.plural == "resourceclaims":
            _validate_claim(old, new)
        if new.get("spec") != old.get("spec"):
            new["metadata"] = {**new["metadata"], "generation": before.get("generation", 1) + 1}
        return self._commit(user, "update" if method == "PUT" else "patch", kind, key, old, new, subresource, body)

    def _check_uid_of_update(self, body: Any, old: Object) -> None:
        uid = body["metadata"].get("uid")
        if uid and uid != old["metadata"]["uid"]:
            raise RejectedError(409, "Conflict", f"Precondition failed: UID in precondition: {uid}")

    def _delete(self, user: str, kind: Kind, key: Key, body: Any) -> Object:
        old = self._get(kind, key)
        metadata, guards = old["metadata"], body.get("preconditions") or {}
        for name in ("uid", "resourceVersion"):
            if guards.get(name) and guards[name] != metadata[name]:
                raise RejectedError(409, "Conflict", f"Precondition failed: {name} in precondition: {guards[name]}")
        grace = body.get("gracePeriodSeconds")
        if kind.plural == "pods":
            is_immediate = not old["spec"].get("nodeName") or old["status"].get("phase") in ("Succeeded", "Failed")
            seconds = 0 if is_immediate else grace if grace is not None else 30
        else:
            seconds = 0
        if metadata.get("finalizers") or seconds:
            if metadata.get("deletionTimestamp") and seconds >= metadata.get("deletionGracePeriodSeconds", 0):
                return old
            deletion_metadata = {
                **metadata,
                "deletionTimestamp": metadata.get("deletionTimestamp") or self.timestamp(seconds),
                "deletionGracePeriodSeconds": seconds,
            }
            if not metadata.get("deletionTimestamp"):
                deletion_metadata["generation"] = metadata.get("generation", 0) + 1
            return self._commit(user, "delete", kind, key, old, {**old, "metadata": deletion_metadata}, "", body)
        if kind.plural == "pods":
            # Two writes: watches see the deletion first.
            deletion_metadata = {**metadata, "deletionTimestamp": self.timestamp(), "deletionGracePeriodSeconds": 0}
            old = self._commit(
                user, "delete", kind, key, old, {**old, "metadata": deletion_metadata}, "", body, is_final=False
            )
        self._commit(user, "delete", kind, key, old, None, "", body)
        return old if kind.returns_deleted else {"kind": "Status", "apiVersion": "v1", "status": "Success"}

    def _bind(self, user: str, kind: Kind, key: Key, body: Any) -> None:
        old, binding_metadata = self._get(kind, key), body["metadata"]
        metadata, spec = old["metadata"], old["spec"]
        if binding_metadata.get("uid") and binding_metadata["uid"] != metadata["uid"]:
            raise RejectedError(
                409, "Conflict", f"Precondition failed: UID in precondition: {binding_metadata['uid']}"
            )
        if metadata.get("deletionTimestamp"):
            raise RejectedError(409, "Conflict", f"pod {key[1]} is being deleted, cannot be assigned to a host")
        if spec.get("nodeName"):
            raise RejectedError(409, "Conflict", f'pod {key[1]} is already assigned to node "{spec["nodeName"]}"')
        if spec.get("schedulingGates"):
            raise RejectedError(409, "Conflict", f"pod {key[1]} has non-empty .spec.schedulingGates")
        added = {
            name: {**(metadata.get(name) or {}), **binding_metadata[name]}
            for name in ("annotations", "labels")
            if binding_metadata.get(name) and not self.strips_bindings
        }
        scheduled = {"type": "PodScheduled", "status": "True"}
        status = strategic_patch(old["status"], {"conditions": [scheduled]})
        new = {
            **old,
            "metadata": {**metadata, **added},
            "spec": {**spec, "nodeName": body["target"]["name"]},
            "status": status,
        }
        self._commit(user, "create", kind, key, old, new, "binding", body)

    # --- storage ---

    def timestamp(self, seconds: float = 0.0) -> str:
        moment = EPOCH + timedelta(seconds=self._now() + seconds)
        return moment.replace(microsecond=0, tzinfo=None).isoformat() + "Z"

    def _commit(
        self,
        user: str,
        verb: str,
        kind: Kind,
        key: Key,
        old: Object | None,
        new: Object | None,
        subresource: str,
        body: Any,
        *,
        is_final: bool = True,
    ) -> Object:
        last = new if new is not None else old
        if new is not None and old is not None:
            if {**new, "metadata": _without_version(new)} == {**old, "metadata": _without_version(old)}:
                return old  # nothing has changed: no new version, and nobody is told
            is_deleted = is_final and new["metadata"].get("deletionTimestamp")
            is_held = new["metadata"].get("finalizers") or new["metadata"].get("deletionGracePeriodSeconds")
            if is_deleted and not is_held:
                new = None  # the last finalizer of a deleted object
        self._version += 1
        if new is not None:
            new = {**new, "metadata": {**new["metadata"], "resourceVersion": self.version}}
            self._objects[kind][key] = new
        else:
            del self._objects[kind][key]
        change = Change(self._version, kind, key, old, new, user, verb, subresource, body)
        self._log.append(change)
        for observer in self.observers:
            observer(change)
        for watcher in self.watchers:
            if watcher.kind is kind:
                line = watcher.line(change)
                if line is not None:
                    watcher.deliver(line)
        return new or last or {}


def _without_version(obj: Object) -> Object:
    return {name: value for name, value in obj["metadata"].items() if name != "resourceVersion"}


def _clean(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Absent and empty are the same in metadata."""
    optional = ("finalizers", "ownerReferences", "annotations", "labels")
    return {name: value for name, value in metadata.items() if value is not None and (value or name not in optional)}


def _selection(namespace: str, params: Mapping[str, str]) -> Callable[[Object], bool]:
    fields, labels = field_selector(params.get("fieldSelector", "")), label_selector(params.get("labelSelector", ""))

    def selects(obj: Object) -> bool:
        return (not namespace or obj["metadata"].get("namespace") == namespace) and fields(obj) and labels(obj)

    return selects


def _validate_claim(old: Object, new: Object) -> None:
    """The rules for a ResourceClaim's status that concurrent writers can violate."""
    before, after = old.get("status") or {}, new.get("status") or {}
    consumers = [entry["uid"] for entry in after.get("reservedFor") or ()]
    earlier = {entry["uid"] for entry in before.get("reservedFor") or ()}
    if consumers and not after.get("allocation"):
        raise RejectedError(422, "Invalid", "status.reservedFor: may not be specified when `allocated` is not set")
    if len(set(consumers)) < len(consumers):
        raise RejectedError(422, "Invalid", "status.reservedFor: Duplicate value")
    if new["metadata"].get("deletionTimestamp") and set(consumers) - earlier:
        raise RejectedError(422, "Invalid", "status.reservedFor: new users may not be added while being deleted")
    if before.get("allocation") and after.get("allocation") and before["allocation"] != after["allocation"]:
        raise RejectedError(422, "Invalid", "status.allocation: field is immutable")


def _status(rejection: RejectedError, kind: Kind, name: str) -> Object:
    causes = [{"field": where, "reason": "FieldValueInvalid", "message": why} for where, why in rejection.causes]
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "code": rejection.code,
        "reason": rejection.reason,
        "message": rejection.message,
        "details": {"name": name, "kind": kind.plural, **({"causes": causes} if causes else {})},
    }
