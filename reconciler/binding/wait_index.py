"""Wait index: from objects to the requests that wait for them.

A waiting request holds no worker: its key is kept here, and a change of one of its objects requeues it immediately.
The object may have changed between the attempt's read and the registration; that is detected by comparing the version
that the attempt read with the cached one, so no change is missed. Objects that no watch shows are polled. Nothing is
decided here: a requeued request is reconciled from a new snapshot. Decision 11.
"""

from collections.abc import Collection, Mapping, MutableMapping, Sequence
from enum import Enum

from shared.api.meta import ObjectKey, ObjectRef, ResourceVersion
from shared.kube.resources import Resource
from shared.kube.store import Store

# apiVersion, kind and key of an object.
Watched = tuple[str, str, ObjectKey]


class Registration(Enum):
    """Result of registering a wait."""

    STALE = "stale"  # an object has changed since it was read: not registered, reconcile again
    WATCHED = "watched"  # watches show all objects
    NEEDS_POLL = "needs poll"  # a watch may not show an object


class WaitIndex:
    """The index. ``stores`` maps each resource to the stores of all its watches."""

    def __init__(self, stores: Mapping[Resource, Sequence[Store]]) -> None:
        self._stores: dict[tuple[str, str], list[Store]] = {}
        for resource, several in stores.items():
            self._stores.setdefault((resource.api_version, resource.kind), []).extend(several)
        self._by_object: dict[Watched, set[ObjectKey]] = {}
        self._objects: dict[ObjectKey, tuple[Watched, ...]] = {}

    def __len__(self) -> int:
        return len(self._objects)

    @property
    def watched(self) -> int:
        """The number of objects that requests wait for."""
        return len(self._by_object)

    def waiters_of(self, resource: Resource, key: ObjectKey) -> Collection[ObjectKey]:
        """Return the keys of the requests that wait for the object."""
        return tuple(self._by_object.get((resource.api_version, resource.kind, key), ()))

    def register(
        self, request: ObjectKey, refs: Sequence[ObjectRef], awaited: MutableMapping[Watched, ResourceVersion]
    ) -> Registration:
        """Register a request until one of the objects changes.

        ``awaited`` is the request's own record of the versions at which it began to wait; it is updated. So a
        lagging watch, or a plugin that gives no version, causes one extra reconcile instead of a hot loop.
        """
        self.unregister(request)
        wanted = {(ref.api_version, ref.kind, ref.key): ref.resource_version for ref in refs}
        shown = {watched: self._version(watched) for watched in wanted if watched[:2] in self._stores}
        for watched, version in shown.items():
            if version != wanted[watched] and awaited.get(watched) != version:
                awaited[watched] = version
                return Registration.STALE
        awaited.update(shown)
        self._objects[request] = tuple(wanted)
        for watched in wanted:
            self._by_object.setdefault(watched, set()).add(request)
        is_watched = bool(wanted) and all(shown.get(watched) for watched in wanted)
        return Registration.WATCHED if is_watched else Registration.NEEDS_POLL

    def unregister(self, request: ObjectKey) -> None:
        """Remove a request from the index, if present."""
        for watched in self._objects.pop(request, ()):
            waiters = self._by_object[watched]
            waiters.discard(request)
            if not waiters:
                del self._by_object[watched]

    def clear(self) -> None:
        """Drop everything: this process is no longer the leader."""
        self._by_object.clear()
        self._objects.clear()

    def _version(self, watched: Watched) -> ResourceVersion:
        """Return the cached version of the object; empty if no watch shows it."""
        for store in self._stores[watched[:2]]:
            version = store.version(watched[2])
            if version is not None:
                return version
        return ResourceVersion("")
