"""The newest known version of each unfinished request: as the watch shows it, or newer.

What this process writes or reads live counts at once, and the watch delivers it later. Until then the older versions
that it delivers are ignored. **What is known of a name outlives its request**: one that a live read has shown to be
gone is not cached again, and none that precedes a known version of its name, however far the watch is behind.

It makes no calls.
"""

from collections.abc import Callable, Container, Iterable, ValuesView
from dataclasses import dataclass

from bowline.api.bindrequest import BindRequest
from bowline.api.meta import ObjectKey, ObjectUID, ResourceVersion, is_older


@dataclass(frozen=True, slots=True)
class _Ahead:
    """What is known of a name before the watch has delivered it.

    ``version``: what the watch delivers of the name is older until then. ``gone``: the request that no longer exists.
    """

    version: ResourceVersion
    gone: ObjectUID | None = None


class RequestCache:
    """The requests by key.

    ``shown``: the keys of those that the watch shows. ``position``: up to which version it has delivered the changes;
    empty while it lists. A *stale* one may be older than the API
    server's: nothing is decided on it before a live read.
    """

    def __init__(self, shown: Container[ObjectKey], position: Callable[[], ResourceVersion]) -> None:
        self._shown = shown
        self._position = position
        self._requests: dict[ObjectKey, BindRequest] = {}
        self._ahead: dict[ObjectKey, _Ahead] = {}
        self._stale: set[ObjectKey] = set()

    def __contains__(self, key: ObjectKey) -> bool:
        return key in self._requests

    def get(self, key: ObjectKey) -> BindRequest | None:
        """Return the request; absence proves nothing."""
        return self._requests.get(key)

    def values(self) -> ValuesView[BindRequest]:
        """Return a live view of the requests."""
        return self._requests.values()

    @property
    def sizes(self) -> dict[str, int]:
        """The numbers of what is kept until the watch has delivered it, and of stale requests."""
        return {"ahead": len(self._ahead), "stale": len(self._stale)}

    def deliver(self, key: ObjectKey, request: BindRequest | None, *, is_trusted: bool = True) -> None:
        """Take what the watch shows of a key; None: nothing any more.

        ``is_trusted``: versions can be compared. If not, etcd may have been restored from a backup.
        """
        ahead = self._ahead.get(key)
        if ahead is not None:
            if is_trusted and self._is_past(ahead, request):
                return
            del self._ahead[key]
            self._stale.update(() if is_trusted or request is None else (key,))
        if request is None:
            self._requests.pop(key, None)
            self._stale.discard(key)  # it is read live, if anything is left of it
        else:
            self._requests[key] = request

    def drop_passed(self) -> None:
        """Forget that a version is newer than the watch, where the watch has passed it without an event.

        The watch shows that version already, or it does not select the request. To be called after each list and
        bookmark.
        """
        for key, ahead in list(self._ahead.items()):
            if self._has_passed(ahead.version) and (ahead.gone is None or key not in self._shown):
                del self._ahead[key]
                if key not in self._shown:
                    self._requests.pop(key, None)

    def learn(self, request: BindRequest) -> None:
        """Take the reply to a write. One that comes after the reply to a newer write is no news."""
        key, version = request.key, request.resource_version
        cached_request = self._requests.get(key)
        if cached_request is None or cached_request.uid != request.uid:
            return  # the watch does not select it, or it is known to be gone
        if request.deleting and not request.finalizers:
            self.end(key, cached_request)  # the write has removed the last finalizer
            return
        if not self._has_passed(version) and not is_older(version, cached_request.resource_version):
            self._requests[key], self._ahead[key] = request, _Ahead(version)

    def confirm(self, request: BindRequest, before: BindRequest | None) -> BindRequest:
        """Take a live read, and return the newest version. ``before``: what was cached when the read began.

        A request that is older than that counts as well: etcd was restored from a backup.
        """
        key, version = request.key, request.resource_version
        cached_request = self._requests.get(key)
        self._stale.discard(key)
        is_news = cached_request is not None and cached_request is not before
        if cached_request is not None and is_news and is_older(version, cached_request.resource_version):
            return cached_request
        self.drop_passed()
        self._ahead.pop(key, None)
        if not self._has_passed(version):
            self._ahead[key] = _Ahead(version)
        elif key not in self._shown:
            self._requests.pop(key, None)  # the watch does not select it
            return request
        self._requests[key] = request
        return request

    def end(self, key: ObjectKey, before: BindRequest | None) -> None:
        """Record that a request is gone, whatever the watch still shows; ``before``: as for ``confirm``."""
        self._stale.discard(key)
        self.drop_passed()
        request = self._requests.get(key)
        if request is None or before is None or request.uid != before.uid:
            return
        del self._requests[key]
        if key in self._shown or not self._has_passed(request.resource_version):
            self._ahead[key] = _Ahead(request.resource_version, request.uid)

    def mark_stale(self, keys: Iterable[ObjectKey]) -> None:
        """Require a live read: other processes have written, or a policy denies a write."""
        self._stale.update(keys)

    def is_stale(self, key: ObjectKey) -> bool:
        """Return whether the request must be read live."""
        return key in self._stale

    def end_term(self) -> None:
        """Forget which are stale: a term begins with a comparison, and nothing is decided between two terms."""
        self._stale.clear()

    def _has_passed(self, version: ResourceVersion) -> bool:
        """Return whether the watch has delivered everything up to that version."""
        position = self._position()
        return bool(position) and not is_older(position, version)

    def _is_past(self, ahead: _Ahead, request: BindRequest | None) -> bool:
        """Return whether what the watch shows is older than what is known."""
        if request is None:
            return not self._has_passed(ahead.version)
        return request.uid == ahead.gone or is_older(request.resource_version, ahead.version)
