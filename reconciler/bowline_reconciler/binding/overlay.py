"""What this process knows of a request beyond its cache, until the watch delivers it."""

from bowline.api.bindrequest import BindRequest
from bowline.api.meta import ResourceVersion, is_older


class CacheOverlay:
    """What this process has written or read live of a request, until the watch delivers it."""

    def __init__(self) -> None:
        # Once completed or failed by this process: its last version; whatever the cache still shows is stale.
        self.final_version: ResourceVersion | None = None
        self.needs_live_read = False  # the cached request is known to be stale
        self._shown = ResourceVersion("")
        self._latest: BindRequest | None = None
        self._older: set[ResourceVersion] = set()  # versions known to precede the latest

    @property
    def known_version(self) -> ResourceVersion:
        """The highest version of the name that this process knows and the watch may not have shown; or empty."""
        latest = self._latest.resource_version if self._latest is not None else None
        return latest or self.final_version or ResourceVersion("")

    def precedes(self, cached_request: BindRequest) -> bool:
        """Return whether the cached request is older than what is known of its name: another one was replaced."""
        return is_older(cached_request.resource_version, self.known_version)

    def latest(self, cached_request: BindRequest | None) -> BindRequest | None:
        """Return the cached request, or a newer known version while the watch is behind."""
        is_behind = cached_request is not None and self._latest is not None and self._is_behind(cached_request)
        return self._latest if is_behind else cached_request

    def observe(self, cached_request: BindRequest | None) -> None:
        """Drop the overlay if the watch has delivered it.

        If the cached version is unknown, it may precede or follow the latest one: then a live read is needed.
        """
        if self._latest is None or cached_request is None or self._is_behind(cached_request):
            return
        if cached_request.resource_version != self._latest.resource_version:
            self.needs_live_read = True
        self._clear()

    def show(self, version: ResourceVersion) -> None:
        """Record the version that the watch has delivered last, perhaps before the reply of its write."""
        self._shown = version
        if self._latest is not None and version == self._latest.resource_version:
            self._clear()

    def replace(self, before: BindRequest | None, after: BindRequest) -> None:
        """Remember a version that was written or read live. ``before``: the one that it replaces, if one is known."""
        if after.resource_version == self._shown:
            self._clear()
        elif before is None or before.resource_version != after.resource_version:
            self._latest = after
            self._older.update([before.resource_version] if before is not None else ())

    def invalidate(self) -> None:
        """Require a live read: another client has written, or a policy denies a write."""
        self.needs_live_read = True

    def confirm(self) -> None:
        """Record that the request is as current as its decision requires."""
        self.needs_live_read = False

    def finish(self, version: ResourceVersion) -> None:
        """Record that the request is finished, whatever the watch still delivers."""
        self.final_version = version
        self._clear()

    def _is_behind(self, cached_request: BindRequest) -> bool:
        return cached_request.resource_version in self._older or self.precedes(cached_request)

    def _clear(self) -> None:
        self._latest = None
        self._older.clear()
