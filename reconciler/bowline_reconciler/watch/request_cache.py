"""The newest known version of each unfinished request: as the watch shows it, or newer.

What this process writes or reads live counts at once, and the watch delivers it later. Until then the older versions
that it delivers are ignored. **What is known of a name outlives its request**: one that a live read has shown to be
gone is not cached again, and none that precedes a known version of its name, however far the watch is behind.

It makes no calls.
"""

from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass

from bowline.api.bindrequest import BindRequest
from bowline.api.meta import ObjectKey, ObjectUID, ResourceVersion, is_older

_NONE = ResourceVersion("")


@dataclass(slots=True)
class _Name:
    """What is known of a name.

    ``ahead``: the watch has not delivered this version yet, and what it delivers until then is older. ``gone``: the
    request that no longer exists, whatever it delivers. ``is_stale``: see ``RequestCache``.
    """

    request: BindRequest | None = None
    ahead: ResourceVersion = _NONE
    gone: ObjectUID | None = None
    is_stale: bool = False


class RequestCache:
    """The requests by key.

    ``shown``: the keys of those that the watch shows. ``position``: up to which version it has delivered the changes;
    empty while it lists. A *stale* one may be older than the API
    server's: nothing is decided on it before a live read.
    """

    def __init__(self, shown: Container[ObjectKey], position: Callable[[], ResourceVersion]) -> None:
        self._shown = shown
        self._position = position
        self._names: dict[ObjectKey, _Name] = {}

    def __contains__(self, key: ObjectKey) -> bool:
        return self.get(key) is not None

    def get(self, key: ObjectKey) -> BindRequest | None:
        """Return the request; absence proves nothing."""
        name = self._names.get(key)
        return name.request if name is not None else None

    def values(self) -> Iterator[BindRequest]:
        """Yield the requests."""
        return (name.request for name in self._names.values() if name.request is not None)

    @property
    def sizes(self) -> dict[str, int]:
        """The numbers of what is kept until the watch has delivered it, and of stale requests."""
        names = self._names.values()
        return {"ahead": sum(bool(name.ahead) for name in names), "stale": sum(name.is_stale for name in names)}

    def deliver(self, key: ObjectKey, request: BindRequest | None, *, is_trusted: bool = True) -> None:
        """Take what the watch shows of a key; None: nothing any more.

        ``is_trusted``: versions can be compared. If not, etcd may have been restored from a backup.
        """
        name = self._names.setdefault(key, _Name())
        if name.ahead:
            if is_trusted and self._is_past(name, request):
                return
            name.is_stale |= not is_trusted
        name.request, name.ahead, name.gone = request, _NONE, None
        if request is None:
            del self._names[key]  # a stale one too: it is read live, if anything is left of it

    def drop_passed(self) -> None:
        """Forget that a version is newer than the watch, where the watch has passed it without an event.

        The watch shows that version already, or it does not select the request. To be called after each list and
        bookmark.
        """
        for key, name in list(self._names.items()):
            if name.ahead and self._has_passed(name.ahead) and (name.gone is None or key not in self._shown):
                name.ahead, name.gone = _NONE, None
                name.request = name.request if key in self._shown else None
                self._drop_empty(key, name)

    def learn(self, request: BindRequest) -> None:
        """Take the reply to a write. One that comes after the reply to a newer write is no news."""
        key, version = request.key, request.resource_version
        name = self._names.get(key)
        if name is None or name.request is None or name.request.uid != request.uid:
            return  # the watch does not select it, or it is known to be gone
        if request.deleting and not request.finalizers:
            self.end(key, name.request)  # the write has removed the last finalizer
        elif not self._has_passed(version) and not is_older(version, name.request.resource_version):
            name.request, name.ahead = request, version

    def confirm(self, request: BindRequest, before: BindRequest | None) -> BindRequest:
        """Take a live read, and return the newest version. ``before``: what was cached when the read began.

        A request that is older than that counts as well: etcd was restored from a backup.
        """
        key, version = request.key, request.resource_version
        name = self._names.setdefault(key, _Name())
        name.is_stale = False
        is_news = name.request is not None and name.request is not before
        if name.request is not None and is_news and is_older(version, name.request.resource_version):
            return name.request
        name.request, name.ahead, name.gone = request, _NONE, None
        if not self._has_passed(version):
            name.ahead = version
        elif key not in self._shown:
            del self._names[key]  # the watch does not select it
        return request

    def end(self, key: ObjectKey, before: BindRequest | None) -> None:
        """Record that a request is gone, whatever the watch still shows; ``before``: as for ``confirm``."""
        name = self._names.get(key)
        if name is None:
            return
        name.is_stale = False
        request = name.request
        if request is not None and before is not None and request.uid == before.uid:
            may_be_shown = key in self._shown or not self._has_passed(request.resource_version)
            name.request = None
            name.ahead, name.gone = (request.resource_version, request.uid) if may_be_shown else (_NONE, None)
        self._drop_empty(key, name)

    def mark_stale(self, keys: Iterable[ObjectKey]) -> None:
        """Require a live read: other processes have written, or a policy denies a write."""
        for key in keys:
            self._names.setdefault(key, _Name()).is_stale = True

    def is_stale(self, key: ObjectKey) -> bool:
        """Return whether the request must be read live."""
        return key in self._names and self._names[key].is_stale

    def end_term(self) -> None:
        """Forget which are stale: a term begins with a comparison, and nothing is decided between two terms."""
        for key, name in list(self._names.items()):
            name.is_stale = False
            self._drop_empty(key, name)

    def _drop_empty(self, key: ObjectKey, name: _Name) -> None:
        if name.request is None and not name.ahead and not name.is_stale:
            del self._names[key]

    def _has_passed(self, version: ResourceVersion) -> bool:
        """Return whether the watch has delivered everything up to that version."""
        position = self._position()
        return bool(position) and not is_older(position, version)

    def _is_past(self, name: _Name, request: BindRequest | None) -> bool:
        """Return whether what the watch shows is older than what is known."""
        if request is None:
            return not self._has_passed(name.ahead)
        return request.uid == name.gone or is_older(request.resource_version, name.ahead)
