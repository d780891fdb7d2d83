"""Events for users, shown by ``kubectl describe pod`` and ``kubectl get events``. Best effort: never rely on them.

Recording never blocks and never fails: events pass through a bounded queue to a few workers, the newest is dropped
when the queue is full, and an event that cannot be written after a few attempts is dropped. Repeats of an event (same
object, reason, action, note and type) become a series with a count, as the API intends; while one is still queued
they cost no request.
"""

import asyncio
import logging
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random
from typing import Any, Literal

from bowline.api import names
from bowline.api.meta import ObjectKey, ObjectRef, format_micro_time
from bowline.kube.client import KubeClient
from bowline.kube.errors import AlreadyExists, ApiError, Forbidden, InfrastructureError, KubeError, NotFound
from bowline.kube.resources import EVENTS
from bowline.runtime.backoff import full_jitter
from bowline.runtime.workqueue import WorkQueue

log = logging.getLogger(__name__)

# The identity of a series of events; the first value is the object's key.
Series = tuple[ObjectKey, *tuple[str, ...]]

# The API server's limits.
MAX_NOTE_BYTES = 1024
MAX_WORD = 128
MAX_NAME = 253
# Enough for a burst of a few seconds at the highest binding rate.
CAPACITY = 4096
# Series kept for counting; a repeat of an evicted one starts a new event.
_SERIES = 4096
# Half the default number of concurrent binds: a bind is two calls, an event one. With fewer the queue only grows
# while a backlog is drained, until events are dropped.
_WORKERS = 32
_TRIES = 4
_RETRY_BASE = timedelta(milliseconds=250)
_RETRY_CAP = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class EventNote:
    """An event on an object. ``related`` is a second object involved."""

    regarding: ObjectRef
    reason: str
    note: str
    type: Literal["Normal", "Warning"] = "Normal"
    related: ObjectRef | None = None
    action: str = "Binding"

    @property
    def series(self) -> Series:
        """The identity of the series: events with the same value are repeats. Object versions are not part of it."""
        return (self.regarding.key, self.regarding.uid, self.reason, self.action, self.note, self.type)

    @property
    def namespace(self) -> str:
        """The event's namespace: its object's, or ``default`` for a cluster-scoped object."""
        return self.regarding.key.namespace or "default"


@dataclass(slots=True)
class _Waiting:
    """A queued event, and how often it has occurred meanwhile."""

    event: EventNote
    first: datetime
    last: datetime
    name: str
    count: int = 1


@dataclass(slots=True)
class _Series:
    """A stored event and its count."""

    name: str
    count: int


def name_suffix(random: Random) -> str:
    """Return a random suffix for ``event_name``."""
    return f"{random.getrandbits(64):016x}"


def event_name(regarding: str, suffix: str) -> str:
    """Return ``<object>.<suffix>``, with the object's name cut to the maximum length of a name."""
    return f"{regarding[: MAX_NAME - len(suffix) - 1].rstrip('.-')}.{suffix}"


def event_body(event: EventNote, name: str, instance: str, first: datetime) -> dict[str, Any]:
    """Return an events.k8s.io/v1 Event, every text cut to the API server's limits."""
    body: dict[str, Any] = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": event.namespace},
        "eventTime": format_micro_time(first),
        "type": event.type,
        "reason": event.reason[:MAX_WORD],
        "action": event.action[:MAX_WORD],
        "note": event.note.encode()[:MAX_NOTE_BYTES].decode(errors="ignore"),
        "reportingController": names.EVENT_SOURCE,
        "reportingInstance": instance[:MAX_WORD],
        "regarding": _reference(event.regarding),
    }
    if event.related is not None:
        body["related"] = _reference(event.related)
    return body


def series_block(count: int, last: datetime) -> dict[str, Any]:
    """Return the ``series`` of an event that has occurred ``count`` times; the API server requires at least two."""
    return {"count": count, "lastObservedTime": format_micro_time(last)}


def _reference(ref: ObjectRef) -> dict[str, str]:
    fields = {
        "apiVersion": ref.api_version,
        "kind": ref.kind,
        "namespace": ref.key.namespace,
        "name": ref.key.name,
        "uid": ref.uid,
        "resourceVersion": ref.resource_version,
    }
    return {key: value for key, value in fields.items() if value}


class EventRecorder:
    """Writes events in the background. ``run`` until cancelled; ``flush`` before that, to lose none."""

    def __init__(self, client: KubeClient, instance: str) -> None:
        self._client = client
        self._instance = instance
        self._queue: WorkQueue[Series] = WorkQueue(group=lambda series: series[0].namespace, workers=_WORKERS)
        self._waiting: dict[Series, _Waiting] = {}
        self._series_by_key: OrderedDict[Series, _Series] = OrderedDict()
        self._writing = 0
        self._idle = asyncio.Event()
        self._idle.set()
        # Error types logged since an event was last written: an outage is one line, not one per event.
        self._complaints: set[str] = set()

    def __len__(self) -> int:
        """Return the number of queued events."""
        return len(self._waiting)

    def record(self, event: EventNote) -> None:
        """Queue an event. Never blocks; drops it if the queue is full."""
        now = self._client.clock.now()
        waiting = self._waiting.get(event.series)
        if waiting is not None:
            waiting.count += 1
            waiting.last = now
        elif len(self._waiting) >= CAPACITY:
            self._client.metrics.events.labels("dropped").inc()
        else:
            # Named once: a create that is retried after a lost reply must not make a second event.
            name = event_name(event.regarding.key.name, name_suffix(self._client.random))
            self._waiting[event.series] = _Waiting(event, now, now, name)
            self._idle.clear()
            self._queue.add(event.series)

    async def flush(self) -> None:
        """Wait until every queued event is written or dropped. ``run`` must be running."""
        await self._idle.wait()

    async def run(self) -> None:
        """Write events until cancelled."""
        async with asyncio.TaskGroup() as group:
            for number in range(self._queue.capacity):
                group.create_task(self._work(), name=f"events {number}")

    async def _work(self) -> None:
        while True:
            key = await self._queue.get()
            waiting = self._waiting.pop(key)
            self._writing += 1
            try:
                await self._write(key, waiting)
            finally:
                self._writing -= 1
                self._queue.done(key)
                if not self._waiting and not self._writing:
                    self._idle.set()

    async def _write(self, key: Series, waiting: _Waiting) -> None:
        """Write one event or drop it; the queue prevents concurrent writes of its repeats."""
        for attempt in range(1, _TRIES + 1):
            try:
                await self._store(key, waiting)
            except InfrastructureError as error:
                if attempt == _TRIES:
                    self._give_up(error)
                    return
                wait = full_jitter(attempt, _RETRY_BASE, _RETRY_CAP, self._client.random.random())
                await asyncio.sleep(max(wait, error.retry_after or wait).total_seconds())
            except ApiError as error:
                self._give_up(error)
                return
            else:
                self._complaints.clear()
                self._client.metrics.events.labels("written").inc()
                return

    async def _store(self, key: Series, waiting: _Waiting) -> None:
        event = waiting.event
        series = self._series_by_key.get(key)
        if series is not None:
            count = series.count + waiting.count
            body = {"series": series_block(count, waiting.last)}
            try:
                await self._client.patch(EVENTS, event.namespace, series.name, body)
            except NotFound:
                # Events expire after an hour by default.
                del self._series_by_key[key]
            else:
                series.count = count
                self._series_by_key.move_to_end(key)
                return
        body = event_body(event, waiting.name, self._instance, waiting.first)
        if waiting.count > 1:
            body["series"] = series_block(waiting.count, waiting.last)
        with suppress(AlreadyExists):
            await self._client.create(EVENTS, event.namespace, body)
        self._series_by_key[key] = _Series(waiting.name, waiting.count)
        if len(self._series_by_key) > _SERIES:
            self._series_by_key.popitem(last=False)

    def _give_up(self, error: KubeError) -> None:
        self._client.metrics.events.labels("failed").inc()
        terminating = isinstance(error, Forbidden) and any(c.reason == "NamespaceTerminating" for c in error.causes)
        if terminating or isinstance(error, NotFound):
            return  # the namespace is being deleted, and the event with it
        complaint = type(error).__name__
        if complaint not in self._complaints:
            self._complaints.add(complaint)
            log.warning("events are not written", extra={"error": str(error)})
