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
from reconciler.binding.state import RequestState, Watched
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
        for resource, several in sources.items():
            self._sources.setdefault((resource.api_version, resource.kind), []).extend(several)
        self._by_object: dict[Watched, set[ObjectKey]] = {}
        self._objects: dict[ObjectKey, Mapping[Watched, ResourceVersion]] = {}  # with the versions that were read

    def __len__(self) -> int:
        return len(self._objects)

    @property
    def watched(self) -> int:
        """The number of objects that requests wait for."""
        return len(self._by_object)

    def waiters_of(self, resource: Resource, key: ObjectKey) -> Collection[ObjectKey]:
        """Return the keys of the requests that wait for the object, and whose wait its cached state may end."""
        watched = (resource.api_version, resource.kind, key)
        waiters = self._by_object.get(watched)
        if not waiters:
            return ()
        found = self._cached(watched)
        if found is None:
            return list(waiters)
        source, seen = found
        version = version_of(seen)
        return [
            request
            for request in waiters
            if self._objects[request][watched] != version and source.may_end_wait(request, seen)
        ]

    def register(
        self, request: ObjectKey, refs: Sequence[ObjectRef], awaited: MutableMapping[Watched, ResourceVersion]
    ) -> Registration:
        """Register a request until one of the objects changes.

        ``awaited`` is the request's own record of the versions at which it began to wait; it is updated. So a
        plugin that gives no version causes one extra reconcile instead of a hot loop. A cached version older than the
        one that was read is a lagging watch, which will show it.
        """
        self.unregister(request)
        wanted = {(ref.api_version, ref.kind, ref.key): ref.resource_version for ref in refs}
        cached = {watched: self._version(watched) for watched in wanted if watched[:2] in self._sources}
        for watched, version in cached.items():
            is_known = version in (wanted[watched], awaited.get(watched)) or is_older(version, wanted[watched])
            if not is_known and self._may_end_wait(request, watched):
                awaited[watched] = version
                return Registration.STALE
        awaited.update(cached)
        self._objects[request] = wanted
        for watched in wanted:
            self._by_object.setdefault(watched, set()).add(request)
        is_watched = bool(wanted) and all(cached.get(watched) for watched in wanted)
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
        found = self._cached(watched)
        return version_of(found[1]) if found is not None else ResourceVersion("")

    def _may_end_wait(self, request: ObjectKey, watched: Watched) -> bool:
        """Return whether the object's cached state may end the request's wait; that it is not cached always may."""
        found = self._cached(watched)
        return found is None or found[0].may_end_wait(request, found[1])

    def _cached(self, watched: Watched) -> tuple[WaitSource, Object] | None:
        for source in self._sources[watched[:2]]:
            seen = source.store.get(watched[2])
            if seen is not None:
                return source, seen
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
        own, now = state.wait, self._writer.clock.monotonic()
        if own.report_at is None:
            # Spread the first report over the time that reporting all waiters takes, so that they are not all
            # reconciled together.
            own.report_at = now + REPORT_WAIT_AFTER.total_seconds() + self._jitter() * len(self._index) / REPORT_QPS
        quiet_until = own.report_at
        if now >= quiet_until and own.reported != wait.why:
            if not own.slot_reserved:
                own.slot_reserved = True
                own.report_at = quiet_until = now + self._slots.reserve()
            if now >= quiet_until:
                await self._report(request, state, wait)
        # Last, with no await after it: a change from here on finds the request in the index.
        registration = self._index.register(request.key, wait.on, state.awaited_versions)
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
        state.wait.reported = wait.why
        if is_new:
            self._writer.record_event(request, Event("Normal", names.EVENT_WAITING, wait.why))
