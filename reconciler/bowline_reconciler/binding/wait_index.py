"""The wait index: which requests wait for which objects.

A change of an object requeues the requests that wait for it immediately. The object may have changed between the
attempt's read and the registration; that is detected by comparing the version that the attempt read with the cached
one, so no change is missed. An event that shows the version which was read, or which the attempt wrote, is no change.
Nothing is decided here: a requeued request is reconciled from a new snapshot. Decision 11.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from enum import Enum

from bowline.api.meta import Object, ObjectID, ObjectKey, ObjectRef, ResourceVersion, is_older, version_of
from bowline.kube.resources import Resource
from bowline.kube.store import Store


class Registration(Enum):
    """Result of registering a wait."""

    STALE = "stale"  # an object has changed since it was read: not registered, reconcile again
    WATCHED = "watched"  # watches show all objects
    NEEDS_POLL = "needs poll"  # a watch may not show an object


@dataclass(frozen=True, slots=True)
class WaitSource:
    """A watch's store, and whether a cached object's state may end a request's wait for it (a queueing hint)."""

    store: Store
    may_end_wait: Callable[[ObjectKey, Object], bool] = lambda _, __: True


class WaitIndex:
    """The index. ``sources`` maps each resource to all its watches."""

    def __init__(self, sources: Mapping[Resource, Sequence[WaitSource]]) -> None:
        self._sources: dict[tuple[str, str], list[WaitSource]] = {}
        for resource, watches in sources.items():
            self._sources.setdefault((resource.api_version, resource.kind), []).extend(watches)
        self._by_object: dict[ObjectID, set[ObjectKey]] = {}
        self._objects: dict[ObjectKey, Mapping[ObjectID, ResourceVersion]] = {}  # with the versions that were read
        self._by_namespace: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._objects)

    def count(self, namespace: str) -> int:
        """Return the number of requests of the namespace that wait."""
        return self._by_namespace[namespace]

    def waiters_of(self, resource: Resource, key: ObjectKey) -> Collection[ObjectKey]:
        """Return the keys of the requests that wait for the object, and whose wait its cached state may end."""
        object_id = (resource.api_version, resource.kind, key)
        waiters = self._by_object.get(object_id)
        if not waiters:
            return ()
        entry = self._cached_entry(object_id)
        if entry is None:
            return list(waiters)
        source, cached_object = entry
        version = version_of(cached_object)
        return [
            request
            for request in waiters
            if self._objects[request][object_id] != version and source.may_end_wait(request, cached_object)
        ]

    def register(
        self, request: ObjectKey, refs: Sequence[ObjectRef], last_versions: MutableMapping[ObjectID, ResourceVersion]
    ) -> Registration:
        """Register a request until one of the objects changes.

        ``last_versions`` is the request's own record of the versions at which it began to wait; it is updated. So a
        plugin that gives no version causes one extra reconcile instead of a hot loop. A cached version older than the
        one that was read is a lagging watch, which will show it.
        """
        self.unregister(request)
        versions_read = {(ref.api_version, ref.kind, ref.key): ref.resource_version for ref in refs}
        cached_versions = {
            object_id: self._version(object_id) for object_id in versions_read if object_id[:2] in self._sources
        }
        for object_id, version in cached_versions.items():
            read_version = versions_read[object_id]
            is_current = version in (read_version, last_versions.get(object_id)) or is_older(version, read_version)
            if not is_current and self._may_end_wait(request, object_id):
                last_versions[object_id] = version
                return Registration.STALE
        last_versions.update(cached_versions)
        self._objects[request] = versions_read
        self._by_namespace[request.namespace] += 1
        for object_id in versions_read:
            self._by_object.setdefault(object_id, set()).add(request)
        is_watched = bool(versions_read) and all(cached_versions.get(object_id) for object_id in versions_read)
        return Registration.WATCHED if is_watched else Registration.NEEDS_POLL

    def unregister(self, request: ObjectKey) -> None:
        """Remove a request from the index, if present."""
        if request in self._objects:
            self._by_namespace[request.namespace] -= 1
            if not self._by_namespace[request.namespace]:
                del self._by_namespace[request.namespace]
        for object_id in self._objects.pop(request, ()):
            waiters = self._by_object[object_id]
            waiters.discard(request)
            if not waiters:
                del self._by_object[object_id]

    def clear(self) -> None:
        """Drop everything: this process is no longer the leader."""
        self._by_object.clear()
        self._objects.clear()
        self._by_namespace.clear()

    def _version(self, object_id: ObjectID) -> ResourceVersion:
        """Return the cached version of the object; empty if no watch shows it."""
        entry = self._cached_entry(object_id)
        return version_of(entry[1]) if entry is not None else ResourceVersion("")

    def _may_end_wait(self, request: ObjectKey, object_id: ObjectID) -> bool:
        """Return whether the object's cached state may end the request's wait; that it is not cached always may."""
        entry = self._cached_entry(object_id)
        return entry is None or entry[0].may_end_wait(request, entry[1])

    def _cached_entry(self, object_id: ObjectID) -> tuple[WaitSource, Object] | None:
        for source in self._sources[object_id[:2]]:
            cached_object = source.store.get(object_id[2])
            if cached_object is not None:
                return source, cached_object
        return None
