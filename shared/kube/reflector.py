"""List, then watch: keeps a store equal to what the API server has, and tells of every change.

The life of a reflector is a circle of three states:

- *list* the whole selection and store it page by page, so that never more than a page is held twice; what has
  vanished meanwhile is reported as deleted at the end, what is unchanged is not reported;
- *watch* from the list's resourceVersion on; a watch that the API server ends in its own time is opened again where
  it ended, and bookmarks keep that place fresh while nothing happens;
- *recover* from anything else, after a jittered wait: resume the watch if only the connection failed; list again if
  the API server has forgotten the resourceVersion (410), rejects the request itself, or answers several watches in a
  row with errors alone.

It retries indefinitely: a missing right, a CRD that is not installed yet or an unreachable API server is logged once,
reported in ``problem`` and retried. Handlers are called synchronously, in order, after the store has changed; they
only enqueue. An exception of a handler or of ``slim`` concerns that object alone (see ``callbacks``): an object that
cannot be transformed is not kept, a change that cannot be handled is skipped.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import aclosing
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from shared.api.meta import Object, ObjectKey, ResourceVersion, key_of, uid_of, version_of
from shared.kube.callbacks import PROCESS, Callback, Callbacks
from shared.kube.client import KubeClient
from shared.kube.errors import (
    ApiError,
    BadRequest,
    Expired,
    FieldSelectorUnsupported,
    Forbidden,
    InfrastructureError,
    KubeError,
    LostReply,
    ServerError,
)
from shared.kube.resources import Selection
from shared.kube.store import Store
from shared.runtime.backoff import Backoff

log = logging.getLogger(__name__)

# Some twenty requests a minute at worst, however long the trouble lasts; and soon back when it is over.
_BACKOFF_BASE = timedelta(seconds=0.5)
_BACKOFF_CAP = timedelta(seconds=5)
# As client-go: spread over a while, so that the watches of a cluster do not all end at once.
_WATCH_S = (300, 600)
# A watch that ends so soon and says nothing is a failure, or it would be opened again in a tight loop.
_SOON_S = 1.0
# So many watches in a row that the API server answers with an error, and without an event, end in a list.
_FRUITLESS_WATCHES = 3
# Bookmarks come every minute.
_QUIET_S = 120.0
# A connection that was cut, as load balancers do to one that is idle, and is back so soon, was no outage.
_BLINK = timedelta(seconds=10)


class EventType(StrEnum):
    """What has happened to an object of the selection."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"  # or it has left the selection


# Type, key, old, new: ``old`` is None for ADDED, ``new`` is None for DELETED.
OnEvent = Callable[[EventType, ObjectKey, Object | None, Object | None], None]
# Returns what is kept of a raw object, which it may change in place. metadata's namespace, name, uid and
# resourceVersion must stay. None: the object is not of interest, as if a selector had left it out; one that was kept
# until then is reported as deleted, with its old content.
Slim = Callable[[dict[str, Any]], Object | None]


class _ClosedSoon(LostReply):
    """The API server opened a watch and closed it without an event."""


def rejects_fields(error: KubeError) -> bool:
    """Return whether the API server cannot select a resource by the fields of a selection.

    By the texts of apimachinery: of a custom resource without selectable fields, and of a resource without its own
    conversion. Any other 400 concerns this call, such as a continue token from another API server.
    """
    texts = ("field label not supported", "is not a known field selector")
    return isinstance(error, BadRequest) and any(text in error.message for text in texts)


def needs_list(error: KubeError) -> bool:
    """Return whether the watch cannot go on where it was."""
    if isinstance(error, InfrastructureError):
        # etcd was restored from a backup: our resourceVersion is in the future, and waiting for it is no use.
        causes = error.status.causes if error.status else ()
        return error.code == 404 or any(cause.reason == "ResourceVersionTooLarge" for cause in causes)
    return True


class Reflector:
    """Mirrors one selection into ``store``. ``synced`` is set when the first list has been delivered.

    ``fallback`` is watched instead where the API server cannot select by the fields of ``selection``: a larger
    selection, of which ``slim`` leaves out the same. Each list tries ``selection`` first. ``owner`` is the plugin
    that the watch belongs to, for metrics and logs.
    """

    def __init__(
        self,
        client: KubeClient,
        selection: Selection,
        *,
        on_event: OnEvent | None = None,
        slim: Slim | None = None,
        fallback: Selection | None = None,
        owner: str = PROCESS,
        store: Store | None = None,
    ) -> None:
        self.selection = selection
        self.store = store if store is not None else Store()
        self.synced = asyncio.Event()
        # Also set when the API server does not serve the resource: then there are no objects of it.
        self.known = asyncio.Event()
        # Why there is no contact with the API server, as a sentence; None when all is well.
        self.problem: str | None = "not listed yet"
        self.last_contact: datetime | None = None
        # Since when contact has been uninterrupted; None while there is none.
        self.contact_since: datetime | None = None
        # When contact was lost, and since when there had been some.
        self._lost: tuple[datetime, datetime] | None = None
        # The same by the monotonic clock: a clock that is set makes contact neither older nor newer.
        self._contact_from: float | None = None
        self._client = client
        self.on_event = on_event
        self._slim = slim
        self._preferred = selection
        self._fallback = fallback
        self.callbacks = Callbacks(owner, selection.resource.plural, client.clock, client.metrics)
        self._fruitless = 0
        self._version = ""
        self._backoff: Backoff[str] = Backoff(_BACKOFF_BASE, _BACKOFF_CAP)
        if client.metrics is not None:
            client.metrics.follow(selection.resource.plural, self)

    @property
    def version(self) -> str:
        """The resourceVersion up to which the store follows the API server; empty while it has to be listed anew."""
        return self._version

    def discard(self, key: ObjectKey) -> None:
        """Stop keeping an object that ``slim`` would leave out now. No event: nothing has happened to the object."""
        self.store.drop(key)

    async def run(self) -> None:
        """Keep the store up to date until cancelled."""
        while True:
            try:
                if not self._version:
                    await self._list()
                await self._watch()
                self._restarted("closed")
            except (InfrastructureError, ApiError) as error:
                await self._recover(error)

    async def _list(self) -> None:
        self.selection = self._preferred
        try:
            version = await self._read()
        except FieldSelectorUnsupported as error:
            if self._fallback is None:
                raise
            log.warning("cannot select by these fields", extra={"selection": str(self.selection), "why": str(error)})
            self.selection = self._fallback
            version = await self._read()
        self._version = version
        self._fruitless = 0
        self.problem = None
        self.synced.set()
        self.known.set()
        if self._client.metrics is not None:
            self._client.metrics.relists.labels(self.selection.resource.plural).inc()

    async def _read(self) -> ResourceVersion:
        """List the selection into the store; return the list's resourceVersion.

        Raises FieldSelectorUnsupported if the first page says so. A list that breaks off leaves the store with newer
        objects and without deletions; the next one starts from its first page.
        """
        seen: set[ObjectKey] = set()
        version = ResourceVersion("")
        try:
            async with aclosing(self._client.pages(self.selection)) as pages:
                async for page in pages:
                    self._contacted()
                    version = version_of(page)
                    for item in page["items"] or ():
                        key = key_of(item)
                        if self._listed(key, item):
                            seen.add(key)
        except BadRequest as error:
            if not version and self.selection.field_selector and rejects_fields(error):
                raise FieldSelectorUnsupported(error.status) from error
            raise
        for key in [key for key in self.store if key not in seen]:
            self._deleted(key, None)
        return version

    def _listed(self, key: ObjectKey, item: dict[str, Any]) -> bool:
        """Store an object of a list; return whether it is kept."""
        if self.store.version(key) == version_of(item) and self.store.uid(key) == uid_of(item):
            return True  # the old copy stays: the new one would only be more garbage
        kept = self._slimmed(key, item)
        if kept is not None:
            self._put(key, kept)
        return kept is not None

    async def _watch(self) -> None:
        """Follow one watch to its regular end."""
        opened = asyncio.get_running_loop().time()
        events = 0
        timeout_s = random.randint(*_WATCH_S)  # noqa: S311 - spreads load, guards nothing
        watch = self._client.watch(self.selection, self._version, timeout_s, on_open=self._contacted)
        try:
            async with aclosing(watch):
                async for event in watch:
                    events += 1
                    if events == 1:
                        self._backoff.succeeded("")
                        self._fruitless = 0
                    self._take(event)
        except InfrastructureError as error:
            if events or asyncio.get_running_loop().time() - opened < _QUIET_S:
                raise
            # The place may be one that etcd, restored from a backup, has yet to reach again: no use in going back.
            self._version = ""
            raise LostReply("not even a bookmark has come for minutes") from error
        if not events and asyncio.get_running_loop().time() - opened < _SOON_S:
            raise _ClosedSoon("the watch was closed as soon as it was opened")

    def _take(self, event: dict[str, Any]) -> None:
        self._contacted()
        item = event["object"]
        version = version_of(item)
        match event["type"]:
            case "ADDED" | "MODIFIED":
                key = key_of(item)
                kept = self._slimmed(key, item)
                if kept is not None:
                    self._put(key, kept)
                elif key in self.store:
                    self._deleted(key, None)
            case "DELETED":
                self._deleted(key_of(item), item)
        self._version = version

    def _put(self, key: ObjectKey, new: Object) -> None:
        uid = self.store.uid(key)
        if uid is not None and uid != uid_of(new):
            # Deleted and created again between two lists: as a watch would have reported it.
            self._deleted(key, None)
        old = self.store.put(key, new)
        self._report(EventType.MODIFIED if old is not None else EventType.ADDED, key, old, new)

    def _deleted(self, key: ObjectKey, last: dict[str, Any] | None) -> None:
        old = self.store.drop(key)
        if old is None and last is not None:
            old = self._slimmed(key, last)
        if old is not None:
            self._report(EventType.DELETED, key, old, None)

    def _report(self, event: EventType, key: ObjectKey, old: Object | None, new: Object | None) -> None:
        on_event = self.on_event
        if on_event is not None:
            self.callbacks.guard(Callback.ON_CHANGE, key, lambda: on_event(event, key, old, new), None)

    def _slimmed(self, key: ObjectKey, raw: dict[str, Any]) -> Object | None:
        slim = self._slim
        if slim is None:
            return raw
        uid, version = uid_of(raw), version_of(raw)

        def transform() -> Object | None:
            kept = slim(raw)
            if kept is not None and (key_of(kept), uid_of(kept), version_of(kept)) != (key, uid, version):
                raise ValueError("the transform must keep namespace, name, uid and resourceVersion of the metadata")
            return kept

        return self.callbacks.guard(Callback.TRANSFORM, key, transform, None)

    def _contacted(self) -> None:
        now = self._client.clock.now()
        if self.contact_since is None:
            before = self._before_a_blink(now)
            self.contact_since = before or now
            if before is None or self._contact_from is None:
                self._contact_from = self._client.clock.monotonic()
        self.last_contact = now
        if self._version:
            self.problem = None

    def in_contact(self) -> timedelta:
        """Return for how long contact with the API server has been uninterrupted; zero without contact."""
        if self.contact_since is None or self._contact_from is None:
            return timedelta()
        return timedelta(seconds=self._client.clock.monotonic() - self._contact_from)

    def _before_a_blink(self, now: datetime) -> datetime | None:
        """Return since when there had been contact, if it was lost only for a moment; None if not."""
        if self._lost is None or self.last_contact is None:
            return None
        lost, since = self._lost
        # One that had said nothing for longer than bookmarks take may have hung all that time.
        was_alive = (lost - self.last_contact).total_seconds() < _QUIET_S
        return since if was_alive and now - lost < _BLINK else None

    async def _recover(self, error: InfrastructureError | ApiError) -> None:
        """Say once what is wrong, and wait."""
        if isinstance(error, ServerError | _ClosedSoon):
            self._fruitless += 1
        if needs_list(error) or self._fruitless >= _FRUITLESS_WATCHES:
            self._version = ""
        if error.code == 404:
            # In whatever form: a path that is not served is answered in plain text.
            self.known.set()
        if isinstance(error, Expired):
            # Nothing is wrong: the API server forgets after some minutes.
            self._restarted("expired")
            log.info("listing again", extra={"selection": str(self.selection), "why": str(error)})
        else:
            self._restarted("lost")
            if self.contact_since is not None:
                self._lost = (self._client.clock.now(), self.contact_since)
            self.contact_since = None
            problem = trouble(self.selection, error)
            if problem != self.problem:
                log.warning("watch interrupted", extra={"selection": str(self.selection), "problem": problem})
            self.problem = problem
        asked = error.retry_after if isinstance(error, InfrastructureError) else None
        await asyncio.sleep(self._backoff.failed("", asked).total_seconds())

    def _restarted(self, cause: str) -> None:
        if self._client.metrics is not None:
            self._client.metrics.watch_restarts.labels(self.selection.resource.plural, cause).inc()


def trouble(selection: Selection, error: InfrastructureError | ApiError) -> str:
    """Return what keeps a selection from being read, with the remedy where there is one."""
    resource = selection.resource
    if error.code == 404:
        return f"the API server does not serve {resource} {resource.version}; install its CustomResourceDefinition"
    if isinstance(error, Forbidden):
        where = f"in namespace {selection.namespace}" if selection.namespace else "in all namespaces"
        return (
            f"the verbs list and watch on {resource} {where} are not granted; add them to the role: {error.message}"
        )
    return str(error)
