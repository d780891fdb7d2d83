"""List and watch: keeps a store equal to the API server's state and reports every change.

A reflector cycles through three states:

- *list* the whole selection and store it page by page, so that at most one page is held twice; objects that have
  vanished are reported as deleted at the end, unchanged ones are not reported;
- *watch* from the list's resourceVersion on; a watch that the API server ends regularly is resumed where it ended,
  and bookmarks keep that resourceVersion fresh while nothing changes;
- *recover* from anything else, after a jittered backoff: resume the watch if only the connection failed; relist if
  the API server no longer has the resourceVersion (410), rejects the request itself, or answers several watches in a
  row with errors only.

It retries indefinitely: a missing permission, a CRD that is not installed yet or an unreachable API server is logged
once, reported in ``last_error`` and retried. Handlers are called synchronously, in order, after the store changed;
they only enqueue. An exception of a handler or of ``transform`` affects that object alone (see ``callbacks``): an
object that cannot be transformed is not cached, a change that cannot be handled is skipped.
"""

import asyncio
import logging
import math
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from bowline.api.meta import Object, ObjectKey, ResourceVersion, is_reduced, key_of, uid_of, version_of
from bowline.kube.callbacks import PROCESS, Callback, Callbacks
from bowline.kube.client import KubeClient
from bowline.kube.denial import Denial
from bowline.kube.errors import (
    ApiError,
    BadRequest,
    ConnectionFailed,
    Expired,
    FieldSelectorUnsupported,
    Forbidden,
    InfrastructureError,
    KubeError,
    NoJSON,
    NoResponse,
    ServerError,
)
from bowline.kube.object_client import PAGE_SIZE
from bowline.kube.resources import Selection
from bowline.kube.store import Store
from bowline.kube.unreadable import identity_event
from bowline.runtime.backoff import Backoff

log = logging.getLogger(__name__)

# At worst about twenty requests a minute during an outage, and a quick recovery after it.
_BACKOFF_BASE = timedelta(seconds=0.5)
_BACKOFF_CAP = timedelta(seconds=5)
# Of an optional selection, which may be missing for as long as the process runs.
_OPTIONAL_CAP = timedelta(minutes=1)
# As in client-go: randomized, so that the watches of a cluster do not all end together.
_WATCH_S = (300, 600)
# A watch that ends this soon without an event is a failure, or it would be reopened in a hot loop.
_SOON_S = 1.0
# This many consecutive watches with an error and without an event cause a relist.
_FRUITLESS_WATCHES = 3
# Bookmarks arrive every minute.
_MAX_SILENCE_S = 120.0
# A connection that was cut, as load balancers do with idle ones, and restored this soon was no outage.
_SHORT_DISCONNECT_S = 10.0
# The beginning of an event's line, as API servers write it.
_DELETION = b'{"type":"DELETED",'


class EventType(StrEnum):
    """The kind of change of an object of the selection."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"  # or it no longer matches the selection


# Type, key, old, new: ``old`` is None for ADDED, ``new`` is None for DELETED.
OnEvent = Callable[[EventType, ObjectKey, Object | None, Object | None], None]
# Returns the part of a raw object to cache; may modify the raw object. Must keep metadata's namespace, name, uid and
# resourceVersion. None: exclude the object, as a selector would; if it was cached, it is reported as deleted, with
# its old content.
Transform = Callable[[dict[str, Any]], Object | None]


@dataclass(frozen=True, slots=True)
class Listener:
    """What a reflector calls: for each change; when all changes up to a list or a bookmark are delivered.

    ``concerns`` returns, by the identity of an event's object, whether its content matters: others are not decoded.
    """

    on_event: OnEvent = lambda *_: None
    on_passed: Callable[[], None] = lambda: None
    concerns: Callable[[Object], bool] | None = None


SILENT = Listener()


class _ClosedSoon(NoResponse):
    """The API server accepted a watch and closed it without an event."""


def rejects_fields(error: KubeError) -> bool:
    """Return whether the API server cannot select a resource by the fields of a selection.

    Any other 400 is about this call, such as a continue token of another API server.
    """
    return isinstance(error, BadRequest) and Denial.of(error.message).has_no_such_field


def needs_list(error: KubeError) -> bool:
    """Return whether the watch cannot be resumed at its resourceVersion."""
    if isinstance(error, InfrastructureError):
        # etcd was restored from a backup: the resourceVersion is in the future, and waiting for it is useless.
        causes = error.status.causes if error.status else ()
        return error.code == 404 or any(cause.reason == "ResourceVersionTooLarge" for cause in causes)
    return True


class Reflector:
    """Mirrors one selection into ``store``. ``synced`` is set after the first complete list.

    - ``fallback``: where the API server cannot select by the fields of ``selection``, list without them;
      ``transform`` must exclude the difference. Each list tries ``selection`` first.
    - ``owner``: the plugin that the watch belongs to, for metrics and logs.
    - ``page_size``: the objects of a page of a list, which are decoded together.

    Objects that are not decoded (``kube.unreadable``) are not cached, and of a cached one the last content that was
    read stays; unless the store keeps identities.

    Of an optional selection any failure ends the first list, the next try follows within a minute, and no metric
    reports its contact.
    """

    def __init__(
        self,
        client: KubeClient,
        selection: Selection,
        *,
        listener: Listener = SILENT,
        transform: Transform | None = None,
        fallback: bool = False,
        owner: str = PROCESS,
        store: Store | None = None,
        page_size: int = PAGE_SIZE,
    ) -> None:
        self.selection = selection
        self.store = store if store is not None else Store()
        self.synced = asyncio.Event()
        # Also set when the API server does not serve the resource: then it has no objects. If optional, by any error.
        self.first_list_ended = asyncio.Event()
        # Why there is no contact with the API server; None while there is.
        self.last_error: str | None = "not listed yet"
        self.last_contact: datetime | None = None
        # Since when contact has been uninterrupted, by the monotonic clock; None without contact.
        self.contact_since: float | None = None
        # When contact was lost, and since when it had lasted.
        self._contact_loss: tuple[float, float] | None = None
        self._heard_at = 0.0
        self._client = client
        self.listener = listener
        self._transform = transform
        self._configured_selection = selection
        self._fallback = fallback
        self._page_size = page_size
        self._ignores_reduced = not (self.store.keeps_identities or selection.resource.metadata_only)
        self.callbacks = Callbacks(owner, selection.resource.plural, client.clock, client.metrics)
        self._fruitless = 0
        self._unreachable_since: float | None = None  # monotonic
        self.trusts_versions = True  # an object with the cached UID and version is the cached one
        self._version = ResourceVersion("")
        cap = _OPTIONAL_CAP if selection.is_optional else _BACKOFF_CAP
        self._backoff = Backoff(_BACKOFF_BASE, cap, client.random.random)
        if not selection.is_optional:
            client.metrics.follow(selection.resource.plural, self)

    @property
    def version(self) -> ResourceVersion:
        """The resourceVersion up to which the store follows the API server; empty before a (re)list has completed."""
        return self._version

    def discard(self, key: ObjectKey) -> None:
        """Remove an object that ``transform`` would exclude now. No event: the object has not changed."""
        self.store.drop(key)

    async def run(self) -> None:
        """Keep the store up to date until cancelled."""
        while True:
            try:
                if self.may_be_restored:
                    self._version, self.trusts_versions = ResourceVersion(""), False
                if not self._version:
                    await self._list()
                await self._watch()
            except (InfrastructureError, ApiError) as error:
                await self._recover(error)

    async def _list(self) -> None:
        self.selection = self._configured_selection
        try:
            version = await self._read()
        except FieldSelectorUnsupported as error:
            if not self._fallback:
                raise
            log.warning("cannot select by these fields", extra={"selection": str(self.selection), "why": str(error)})
            self.selection = replace(self._configured_selection, field_selector="")
            version = await self._read()
        self._version, self.trusts_versions = version, True
        self._fruitless = 0
        self.last_error = None
        self.synced.set()
        self.first_list_ended.set()
        self.listener.on_passed()
        self._client.metrics.relists.labels(self.selection.resource.plural).inc()

    async def _read(self) -> ResourceVersion:
        """List the selection into the store; return the list's resourceVersion.

        Raises FieldSelectorUnsupported if the first page is rejected for it. An interrupted list leaves newer objects
        in the store and misses deletions; the next one starts from its first page.
        """
        listed_keys: set[ObjectKey] = set()
        version = ResourceVersion("")
        try:
            async with aclosing(self._client.pages(self.selection, self._page_size)) as pages:
                async for page in pages:
                    self._record_contact()
                    version = version_of(page)
                    for item in page["items"] or ():
                        key = key_of(item)
                        if self._store_listed(key, item):
                            listed_keys.add(key)
        except BadRequest as error:
            if not version and self.selection.field_selector and rejects_fields(error):
                raise FieldSelectorUnsupported(error.status) from error
            raise
        for key in [key for key in self.store if key not in listed_keys]:
            self._drop_object(key, None)
        return version

    def _store_listed(self, key: ObjectKey, item: dict[str, Any]) -> bool:
        """Store an object of a list; return whether it is cached."""
        is_cached = self.store.version(key) == version_of(item) and self.store.uid(key) == uid_of(item)
        if is_cached and self.trusts_versions:
            return True  # unchanged: replacing the cached copy would only create garbage
        if self._is_ignored(key, item):
            return self.store.uid(key) == uid_of(item)
        result = self._transform_object(key, item)
        if result is not None:
            self._put(key, result)
        return result is not None

    async def _watch(self) -> None:
        """Follow one watch to its regular end."""
        opened_at = asyncio.get_running_loop().time()
        events = 0
        timeout_s = self._client.random.randint(*_WATCH_S)
        watch = self._client.watch(
            self.selection, self._version, timeout_s, on_open=self._record_contact, skip=self._skipped
        )
        try:
            async with aclosing(watch):
                async for event in watch:
                    events += 1
                    if events == 1:
                        self._backoff.reset()
                        self._fruitless = 0
                    self._take(event)
        except InfrastructureError as error:
            if events or asyncio.get_running_loop().time() - opened_at < _MAX_SILENCE_S:
                raise
            # The resourceVersion may be one that etcd, restored from a backup, has not reached again: relist instead.
            self._version = ResourceVersion("")
            raise NoResponse("nothing was received for minutes, not even a bookmark") from error
        if not events and asyncio.get_running_loop().time() - opened_at < _SOON_S:
            raise _ClosedSoon("the watch was closed as soon as it was opened")

    def _skipped(self, line: bytes) -> dict[str, Any] | None:
        """Return the event of an object whose content does not matter, which is not decoded; None for others.

        That is what the listener is not concerned with, and the last content of a cached object that is deleted.
        """
        is_deletion, concerns = line.startswith(_DELETION), self.listener.concerns
        event = identity_event(line) if is_deletion or concerns is not None else None
        if event is None or (is_deletion and key_of(event["object"]) in self.store):
            return event
        return event if concerns is not None and not concerns(event["object"]) else None

    def _take(self, event: dict[str, Any]) -> None:
        self._record_contact()
        item = event["object"]
        self._version = version_of(item)  # first: a callback may ask for it
        match event["type"]:
            case "ADDED" | "MODIFIED":
                key = key_of(item)
                if not self._is_ignored(key, item):
                    result = self._transform_object(key, item)
                    if result is not None:
                        self._put(key, result)
                    elif key in self.store:
                        self._drop_object(key, None)
            case "DELETED":
                self._drop_object(key_of(item), item)
            case "BOOKMARK":
                self.listener.on_passed()

    def _is_ignored(self, key: ObjectKey, item: dict[str, Any]) -> bool:
        if not (self._ignores_reduced and is_reduced(item)):
            return False
        uid = self.store.uid(key)
        if uid is not None and uid != uid_of(item):
            self._drop_object(key, None)
        return True

    def _put(self, key: ObjectKey, new: Object) -> None:
        uid = self.store.uid(key)
        if uid is not None and uid != uid_of(new):
            # Deleted and recreated between two lists: report it as a watch would.
            self._drop_object(key, None)
        old = self.store.put(key, new)
        self._report(EventType.MODIFIED if old is not None else EventType.ADDED, key, old, new)

    def _drop_object(self, key: ObjectKey, last: dict[str, Any] | None) -> None:
        old = self.store.drop(key)
        if old is None and last is not None:
            old = None if self._ignores_reduced and is_reduced(last) else self._transform_object(key, last)
        if old is not None:
            self._report(EventType.DELETED, key, old, None)

    def _report(self, event: EventType, key: ObjectKey, old: Object | None, new: Object | None) -> None:
        self.callbacks.guard(Callback.ON_CHANGE, key, lambda: self.listener.on_event(event, key, old, new), None)

    def _transform_object(self, key: ObjectKey, raw: dict[str, Any]) -> Object | None:
        transform = self._transform
        if transform is None:
            return raw
        uid, version = uid_of(raw), version_of(raw)

        def transform_checked() -> Object | None:
            result = transform(raw)
            if result is not None and (key_of(result), uid_of(result), version_of(result)) != (key, uid, version):
                raise ValueError("the transform must keep namespace, name, uid and resourceVersion of the metadata")
            return result

        return self.callbacks.guard(Callback.TRANSFORM, key, transform_checked, None)

    def _record_contact(self) -> None:
        now = self._client.clock.monotonic()
        if self.contact_since is None:
            self.contact_since = self._start_of_contact(now)
        self._heard_at, self.last_contact = now, self._client.clock.now()
        self._unreachable_since = None
        if self._version:
            self.last_error = None

    def in_contact(self) -> timedelta:
        """Return how long contact with the API server has been uninterrupted; zero without contact."""
        since, now = self.contact_since, self._client.clock.monotonic()
        return timedelta(seconds=now - since) if since is not None else timedelta()

    @property
    def may_be_restored(self) -> bool:
        """Whether the API server has been unreachable for so long that its etcd may have been restored since.

        That needs every API server stopped. A version then says nothing of what was read before: it may have been
        assigned a second time, and a watch from one that is not reached again delivers nothing up to there.
        """
        lost_at = self._unreachable_since
        return lost_at is not None and self._client.clock.monotonic() - lost_at >= _SHORT_DISCONNECT_S

    def _start_of_contact(self, now: float) -> float:
        """Return since when contact lasts that is there again: a short disconnect does not interrupt it."""
        lost_at, since = self._contact_loss or (-math.inf, now)
        # A connection that was silent for longer than the bookmark interval may have hung all that time.
        was_alive = lost_at - self._heard_at < _MAX_SILENCE_S
        return since if was_alive and now - lost_at < _SHORT_DISCONNECT_S else now

    async def _recover(self, error: InfrastructureError | ApiError) -> None:
        """Log and report the error if it is new, decide between resume and relist, and wait for the backoff."""
        if isinstance(error, ServerError | _ClosedSoon | NoJSON):
            self._fruitless += 1
        if isinstance(error, ConnectionFailed | NoResponse) and self._unreachable_since is None:
            self._unreachable_since = self._client.clock.monotonic()
        if needs_list(error) or self._fruitless >= _FRUITLESS_WATCHES:
            self._version = ResourceVersion("")
        is_absent = await self._is_absent(error)
        if is_absent or self.selection.is_optional:
            self.first_list_ended.set()
        if isinstance(error, Expired):
            # Not a failure: the API server compacts its history after some minutes.
            log.info("listing again", extra={"selection": str(self.selection), "why": str(error)})
        else:
            if self.contact_since is not None:
                self._contact_loss = self._client.clock.monotonic(), self.contact_since
            self.contact_since = None
            is_of_proxy = error.code == 404 and not is_absent
            problem = str(error) if is_of_proxy else describe_error(self.selection, error)
            if problem != self.last_error:
                # An optional resource that is not served is the usual case, with nothing to do about it.
                level = logging.INFO if self.selection.is_optional else logging.WARNING
                log.log(level, "watch interrupted", extra={"selection": str(self.selection), "problem": problem})
            self.last_error = problem
        retry_after = error.retry_after if isinstance(error, InfrastructureError) else None
        await asyncio.sleep(self._backoff.next_delay(retry_after).total_seconds())

    async def _is_absent(self, error: InfrastructureError | ApiError) -> bool:
        """Return whether the API server does not serve the resource.

        It answers such a path in plain text, as a proxy may answer any path. So it is asked what it serves: its reply
        also shows that it is available, which such a 404 does not.
        """
        with suppress(KubeError):
            return error.code == 404 and not await self._client.serves(self.selection.resource)
        return False


def describe_error(selection: Selection, error: InfrastructureError | ApiError) -> str:
    """Return a message about a failing selection, with the remedy where there is one."""
    resource = selection.resource
    if error.code == 404 and selection.is_optional:
        return f"the API server does not serve {resource} {resource.version}; it is optional"
    if error.code == 404:
        return f"the API server does not serve {resource} {resource.version}; install its CustomResourceDefinition"
    if isinstance(error, Forbidden):
        where = f"in namespace {selection.namespace}" if selection.namespace else "in all namespaces"
        return (
            f"the verbs list and watch on {resource} {where} are not granted; add them to the role: {error.message}"
        )
    return str(error)
