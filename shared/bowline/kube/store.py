"""A reflector's cache, by key. Read-only except for the reflector.

Absence from a store proves nothing: an object may have left the selection instead of the cluster.
"""

from collections.abc import Iterator, Mapping, ValuesView

from bowline.api.meta import Object, ObjectKey, ObjectUID, ResourceVersion, uid_of, version_of


class Store(Mapping[ObjectKey, Object]):
    """The objects of one selection. ``keeps_identities``: objects that are not decoded are in it, without content."""

    def __init__(self, *, keeps_identities: bool = False) -> None:
        self.keeps_identities = keeps_identities
        self._objects: dict[ObjectKey, Object] = {}

    def __getitem__(self, key: ObjectKey) -> Object:
        return self._objects[key]

    def __iter__(self) -> Iterator[ObjectKey]:
        return iter(self._objects)

    def __len__(self) -> int:
        return len(self._objects)

    def values(self) -> ValuesView[Object]:
        """Return a live view of the objects: copy it to iterate across an await."""
        return self._objects.values()

    def version(self, key: ObjectKey) -> ResourceVersion | None:
        """Return the resourceVersion of an object; None if it is not cached."""
        cached_object = self._objects.get(key)
        return version_of(cached_object) if cached_object is not None else None

    def uid(self, key: ObjectKey) -> ObjectUID | None:
        """Return the UID of an object; None if it is not cached."""
        cached_object = self._objects.get(key)
        return uid_of(cached_object) if cached_object is not None else None

    def put(self, key: ObjectKey, new: Object) -> Object | None:
        """Store an object; return the previous one. Only for the reflector."""
        before = self._objects.get(key)
        self._objects[key] = new
        return before

    def drop(self, key: ObjectKey) -> Object | None:
        """Remove and return an object. Only for the reflector."""
        return self._objects.pop(key, None)
