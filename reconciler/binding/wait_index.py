"""Who sleeps until which objects change: an index from objects to waiting requests.

A wait holds no worker: its key lies here, and a change of one of its objects puts it back in line at once. Between an
attempt's look and its going to sleep the object may have changed already; that is noticed by comparing what was
looked at with what the watches show, so that no change is slept through. What no watch shows is looked at again after
a while. Nothing here decides anything: whoever is woken looks and judges anew.
"""

from collections.abc import Collection, Mapping, MutableMapping, Sequence
from enum import Enum

from shared.api.meta import ObjectKey, ObjectRef, ResourceVersion
from shared.kube.resources import Resource
from shared.kube.store import Store

# apiVersion, kind and key of an object.
Watched = tuple[str, str, ObjectKey]


class Sleep(Enum):
    """How somebody who wants to sleep may do so."""

    NOT = "not"  # something has changed since it was looked at
    UNTIL_WOKEN = "until woken"  # watches show all that is waited for
    WITH_A_CLOCK = "with a clock"  # a watch may not show it


class Sleepers:
    """The index. ``stores`` are those of all watches there are, by resource."""

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
        """How many objects somebody waits for."""
        return len(self._by_object)

    def waiting_for(self, resource: Resource, key: ObjectKey) -> Collection[ObjectKey]:
        """Return the keys of the requests that wait for the object."""
        return tuple(self._by_object.get((resource.api_version, resource.kind, key), ()))

    def sleep(
        self, request: ObjectKey, refs: Sequence[ObjectRef], slept_on: MutableMapping[Watched, ResourceVersion]
    ) -> Sleep:
        """Put a request to sleep until one of the objects changes.

        ``slept_on`` is the request's own record of the versions it has fallen asleep on before. A watch that lags
        behind what the plugin itself has read, or a plugin that names no version, therefore costs one look more and
        not one after the other.
        """
        self.wake(request)
        wanted = {(ref.api_version, ref.kind, ref.key): ref.resource_version for ref in refs}
        shown = {watched: self._version(watched) for watched in wanted if watched[:2] in self._stores}
        for watched, version in shown.items():
            if version != wanted[watched] and slept_on.get(watched) != version:
                slept_on[watched] = version
                return Sleep.NOT
        slept_on.update(shown)
        self._objects[request] = tuple(wanted)
        for watched in wanted:
            self._by_object.setdefault(watched, set()).add(request)
        seen = bool(wanted) and all(shown.get(watched) for watched in wanted)
        return Sleep.UNTIL_WOKEN if seen else Sleep.WITH_A_CLOCK

    def wake(self, request: ObjectKey) -> None:
        """Take a request out of the index; nothing if it is not in it."""
        for watched in self._objects.pop(request, ()):
            sleepers = self._by_object[watched]
            sleepers.discard(request)
            if not sleepers:
                del self._by_object[watched]

    def clear(self) -> None:
        """Forget everybody: this process no longer leads."""
        self._by_object.clear()
        self._objects.clear()

    def _version(self, watched: Watched) -> ResourceVersion:
        """Return the version that a watch shows; empty if none shows the object."""
        for store in self._stores[watched[:2]]:
            version = store.version(watched[2])
            if version is not None:
                return version
        return ResourceVersion("")
