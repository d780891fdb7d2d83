"""Waiting requests: a wait uses no worker and no attempt, and is reported only if it lasts.

A wait of a few seconds leaves no trace. A longer one is written to the status and reported in one event per message,
so that ``kubectl describe`` shows what the request waits for, without a flood of events.

The wait index maps objects to the requests that wait for them: a change of one requeues its requests immediately. The
object may have changed between the attempt's read and the registration; that is detected by comparing the version
that the attempt read with the cached one, so no change is missed. An event that shows the version which was read, or
which the attempt wrote, is no change. Objects that no watch shows are polled. Nothing is decided here: a requeued
request is reconciled from a new snapshot. Decision 11.
"""

from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum

from reconciler.binding.requeue import REQUEUE, Result
from reconciler.binding.state import ObjectID, RequestState
from reconciler.binding.timing import Timing
from reconciler.binding.writer import Writer
from reconciler.decide.decide import Wait
from reconciler.decide.status import Event, waiting_status
from shared.api import names
from shared.api.bindrequest import BindRequest
from shared.api.meta import Object, ObjectKey, ObjectRef, ResourceVersion, is_older, version_of
from shared.kube.resources import Resource
from shared.kube.store import Store
from shared.runtime.limiter import Limiter

# A shorter wait causes no write and no event.
REPORT_WAIT_AFTER = timedelta(seconds=5)
# Wait reports per second. Each is two writes without urgency; thousands of requests that begin to wait together must
# not delay those that can be bound.
REPORT_QPS = 20
# Objects that no watch shows are polled after POLL to twice that, randomly spread to avoid bursts.
POLL = timedelta(seconds=30)


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

    def __len__(self) -> int:
        return len(self._objects)

    @property
    def object_count(self) -> int:
        """The number of objects that requests wait for."""
        return len(self._by_object)

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
        for object_id in versions_read:
            self._by_object.setdefault(object_id, set()).add(request)
        is_watched = bool(versions_read) and all(cached_versions.get(object_id) for object_id in versions_read)
        return Registration.WATCHED if is_watched else Registration.NEEDS_POLL

    def unregister(self, request: ObjectKey) -> None:
        """Remove a request from the index, if present."""
        for object_id in self._objects.pop(request, ()):
            waiters = self._by_object[object_id]
            waiters.discard(request)
            if not waiters:
                del self._by_object[object_id]

    def clear(self) -> None:
        """Drop everything: this process is no longer the leader."""
        self._by_object.clear()
        self._objects.clear()

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


class Waits:
    """Registers waiting requests and reports long waits. ``jitter`` returns a random number in [0, 1)."""

    def __init__(self, writer: Writer, index: WaitIndex, timing: Timing, jitter: Callable[[], float]) -> None:
        self._writer = writer
        self._index = index
        self._timing = timing
        self._jitter = jitter
        self._slots = Limiter(REPORT_QPS)

    async def wait(self, request: BindRequest, state: RequestState, wait: Wait) -> Result:
        """Register the request in the wait index; report the wait if it lasts. Returns when to reconcile again."""
        self._timing.begin_wait(request, state, wait.cause)
        wait_state, now = state.wait, self._writer.clock.monotonic()
        quiet_until = wait_state.report_at
        if quiet_until is None:
            # Spread the first report over the time that reporting all waiters takes, so that they are not all
            # reconciled together.
            quiet_until = now + REPORT_WAIT_AFTER.total_seconds() + self._jitter() * len(self._index) / REPORT_QPS
            wait_state.schedule_report(quiet_until, has_slot=False)
        if now >= quiet_until and wait_state.last_report != wait.why:
            if not wait_state.has_slot:
                quiet_until = now + self._slots.reserve()
                wait_state.schedule_report(quiet_until, has_slot=True)
            if now >= quiet_until:
                await self._report(request, state, wait)
        # Last, with no await after it: a change from here on finds the request in the index.
        registration = self._index.register(request.key, wait.on, wait_state.versions)
        if registration is Registration.STALE:
            return REQUEUE
        latest = wait.left
        if now < quiet_until:
            latest = min(latest, timedelta(seconds=quiet_until - now))
        if registration is Registration.NEEDS_POLL:
            latest = min(latest, POLL * (1 + self._jitter()))
        if wait.poll is not None:
            latest = min(latest, wait.poll)
        return Result(max(latest, timedelta(milliseconds=1)))

    async def _report(self, request: BindRequest, state: RequestState, wait: Wait) -> None:
        status = waiting_status(request, wait.why, self._timing.waiting_since(state), self._writer.clock.now())
        # Otherwise reported by the previous process, with its event.
        is_new = request.status.get("reason") != status["reason"]
        await self._writer.patch_status(request, status)
        state.wait.report(wait.why)
        if is_new:
            self._writer.record_event(request, Event("Normal", names.EVENT_WAITING, wait.why))
