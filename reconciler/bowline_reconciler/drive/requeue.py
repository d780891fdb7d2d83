"""When a request is processed next: after an event, a wait or a failed attempt, or after others that are more urgent.

After an error of a call it is the work queue's rate limit that decides, within the bounds that ``failure`` returns; a
watch event that may change the result comes first, except before the API server's Retry-After or a rest is over.

**Waits** use no worker and no attempt, and are reported only if they last: a wait of a few seconds leaves no trace. A
longer one is reported, in status and one event per message: ``kubectl describe`` shows what the pod waits for, but no
flood of events. Objects that no watch shows are polled.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum

from bowline.api.meta import Object, ObjectID, ObjectKey, ObjectRef, ResourceVersion, is_older, version_of
from bowline.kube.availability import Availability
from bowline.kube.resources import Resource
from bowline.kube.store import Store
from bowline.runtime.clock import Clock
from bowline.runtime.turns import Turns
from bowline.runtime.workers import REQUEUE, Priority, ReconcileError, Result
from bowline.runtime.workqueue import WorkQueue
from bowline_reconciler.decide.actions import RetryAt, Wait
from bowline_reconciler.decide.snapshot import Snapshot, is_finished, stored_wait
from bowline_reconciler.decide.transient import NO_FAILURES, extend
from bowline_reconciler.drive.reporter import Reporter
from bowline_reconciler.drive.state import Awaiting, Deferred, RequestState, RequestStates
from bowline_reconciler.observe import Observation
from bowline_reconciler.watch.bound_pods import SentBind
from bowline_reconciler.watch.informers import Informers

# The shortest delay until a report is due.
_TICK = timedelta(milliseconds=1)
# A shorter wait causes no write and no event.
REPORT_WAIT_AFTER = timedelta(seconds=5)
# Another message of the same series of waits is reported after this, twice as much after each further report.
REPORT_AGAIN_AFTER, REPORT_AGAIN_MAX = timedelta(seconds=5), timedelta(minutes=5)
# Wait reports per second, in turn for each namespace. Each is two writes without urgency; thousands of requests that
# begin to wait together must not delay those that can be bound.
REPORT_QPS = 20
# Objects that no watch shows are polled after POLL to twice that, randomly spread to avoid bursts.
POLL = timedelta(seconds=30)
# Between two attempts of a request whose awaited objects have not changed, whatever else changes: tenants patch their
# pods as often as they like. A plugin's own shorter poll ends it.
ATTEMPT_PAUSE = timedelta(seconds=1)


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
    """Which requests wait for which objects. ``sources`` maps each resource to all its watches.

    A change of an object requeues the requests that wait for it immediately. The object may have changed between the
    attempt's read and the registration; that is detected by comparing the version that the attempt read with the
    cached one, so no change is missed. An event that shows the version which was read, or which the attempt wrote, is
    no change. Nothing is decided here: a requeued request is reconciled from a new snapshot.
    """

    def __init__(self, sources: Mapping[Resource, Sequence[WaitSource]]) -> None:
        self._sources: dict[tuple[str, str], list[WaitSource]] = {}
        for resource, watches in sources.items():
            self._sources.setdefault((resource.api_version, resource.kind), []).extend(watches)
        # Of each object the waiting requests, with the version that was read for them.
        self._by_object: dict[ObjectID, dict[ObjectKey, ResourceVersion]] = {}
        self._by_namespace: Counter[str] = Counter()

    def count(self, namespace: str) -> int:
        """Return the number of requests of the namespace that wait."""
        return self._by_namespace[namespace]

    def waiters_of(self, resource: Resource, key: ObjectKey) -> Collection[ObjectKey]:
        """Return the keys of the requests that wait for the object, and whose wait its cached state may end."""
        object_id = (resource.api_version, resource.kind, key)
        waiters = self._by_object.get(object_id)
        if not waiters:
            return ()
        entries = self._cached_entries(object_id)
        return [request for request, version in waiters.items() if _may_end_wait(request, version, entries)]

    def register(
        self, request: ObjectKey, refs: Sequence[ObjectRef], last_versions: MutableMapping[ObjectID, ResourceVersion]
    ) -> Registration:
        """Register a request, which is in no other wait, until one of the objects changes.

        ``last_versions`` is the request's own record of the versions at which it began to wait; it is updated. So a
        plugin that gives no version causes one extra reconcile instead of a hot loop. A cached version older than the
        one that was read is a lagging watch, which will show it.
        """
        versions_read = {(ref.api_version, ref.kind, ref.key): ref.resource_version for ref in refs}
        cached_versions: dict[ObjectID, ResourceVersion] = {}
        for object_id, read_version in versions_read.items():
            if object_id[:2] not in self._sources:
                continue
            entries = self._cached_entries(object_id)
            version = version_of(entries[0][1]) if entries else ResourceVersion("")
            is_current = version in (read_version, last_versions.get(object_id)) or is_older(version, read_version)
            if not is_current and _may_end_wait(request, read_version, entries):
                last_versions[object_id] = version
                return Registration.STALE
            cached_versions[object_id] = version
        last_versions.update(cached_versions)
        self._by_namespace[request.namespace] += 1
        for object_id, read_version in versions_read.items():
            self._by_object.setdefault(object_id, {})[request] = read_version
        is_watched = bool(versions_read) and all(cached_versions.get(object_id) for object_id in versions_read)
        return Registration.WATCHED if is_watched else Registration.NEEDS_POLL

    def unregister(self, request: ObjectKey, objects: Collection[ObjectID]) -> None:
        """Remove a request from the index, which waits for these objects."""
        self._by_namespace[request.namespace] -= 1
        if not self._by_namespace[request.namespace]:
            del self._by_namespace[request.namespace]
        for object_id in objects:
            waiters = self._by_object[object_id]
            del waiters[request]
            if not waiters:
                del self._by_object[object_id]

    def clear(self) -> None:
        """Drop everything: this process is no longer the leader."""
        self._by_object.clear()
        self._by_namespace.clear()

    def _cached_entries(self, object_id: ObjectID) -> list[tuple[WaitSource, Object]]:
        """Return the object from each watch that shows it, with the watch."""
        sources, key = self._sources[object_id[:2]], object_id[2]
        return [(source, cached) for source in sources if (cached := source.store.get(key)) is not None]


def _may_end_wait(
    request: ObjectKey, version: ResourceVersion, entries: Collection[tuple[WaitSource, Object]]
) -> bool:
    """Return whether an object's cached state may end the request's wait; that it is not cached always may.

    ``version``: that was read for the request; an event that shows it is no change.
    """
    if not entries:
        return True
    changes = ((source, cached) for source, cached in entries if version_of(cached) != version)
    return any(source.may_end_wait(request, cached) for source, cached in changes)


@dataclass(frozen=True, slots=True)
class WatchEvents:
    """Handles the events of the watches; see ``informers.EventHandlers``. On a standby the queue takes no key.

    A handler withdraws attempts and enqueues the requests that an event can change; it reads nothing but the caches,
    and decides nothing about a request.
    """

    queue: WorkQueue[ObjectKey]
    states: RequestStates
    informers: Informers
    index: WaitIndex

    def on_cached(self, key: ObjectKey) -> None:
        """Withdraw the attempt of a request if, by the caches, the request was withdrawn."""
        state = self.states.get(key)
        running = state.attempt.running if state is not None else None
        if running is not None and not self.informers.still_wanted(running.request, running.node_uid):
            self.states.withdraw(key)

    def sent_bind(self, key: ObjectKey) -> SentBind | None:
        """Return the last bind of the pod by this process, as long as its request has not ended."""
        state = self.states.get(key)
        return state.attempt.bind if state is not None else None

    def on_change(self, key: ObjectKey) -> None:
        """Enqueue a request after a change of it, its pod or its node, unless that cannot require a reconcile."""
        self.on_cached(key)
        state, request = self.states.get(key), self.informers.request_cache.get(key)
        if state is not None and isinstance(state.stage, Deferred):
            return  # bound by this process, and queued with low priority
        if request is None or not is_finished(request) or state is not None:
            self.queue.add(key, ends_rest=request is not None and request.deleting)

    def on_delete(self, key: ObjectKey) -> None:
        """Enqueue a request that has left the watch, because it Succeeded or was deleted: it may still exist."""
        self.states.withdraw(key)
        self.queue.add(key, ends_rest=self.states.get(key) is not None)

    def on_object(self, resource: Resource, key: ObjectKey) -> None:
        """Enqueue the requests that wait for a changed object; they do not rest."""
        for request in self.index.waiters_of(resource, key):
            self.queue.add(request, ends_rest=True)


@dataclass(frozen=True, slots=True)
class Requeue:
    """Answers when a request is processed next. ``jitter`` returns a random number in [0, 1)."""

    index: WaitIndex
    reporter: Reporter
    observation: Observation
    availability: Availability
    clock: Clock
    jitter: Callable[[], float]
    report_turns: Turns[ObjectKey] = field(default_factory=lambda: Turns(REPORT_QPS))

    # --- failures ---

    def extend_streak(self, state: RequestState, retry_after: timedelta | None) -> None:
        """Add a transient failure to the request's streak; called once for each failed reconcile."""
        now, last_success = self.clock.monotonic(), self.availability.last_success
        state.failures = extend(state.failures, now, last_success, is_deferred=retry_after is not None)

    def failure(
        self, key: ObjectKey, state: RequestState | None, why: str, retry_after: timedelta | None = None
    ) -> ReconcileError:
        """Return the error that requeues a request whose reconcile has failed, with the queue's rate limit."""
        self.observation.on_transient_failure(key, why, is_quiet=state is None or state.failures.is_quiet)
        rest = ATTEMPT_PAUSE if state is not None and not state.failures.is_quiet else timedelta()
        return ReconcileError(why, retry_after=retry_after, rest=rest)

    async def after_attempt(self, snapshot: Snapshot, state: RequestState, action: RetryAt) -> Result:
        """Report a failed attempt; returns when the next one begins."""
        attempt, request = state.attempt, snapshot.request
        attempt.pending_outcome, attempt.failed_before = action.outcome, request.failed_attempts
        await self.reporter.retrying(snapshot, action.report)
        attempt.pending_outcome = None
        state.wait.finish(request)
        return self.retry(state, action.pause)

    def retry(self, state: RequestState, pause: timedelta) -> Result:
        """Start the next attempt when ``pause`` is over. From here on the monotonic clock counts."""
        state.attempt.retry_at = self.clock.monotonic() + pause.total_seconds()
        return Result(pause)

    # --- waits ---

    async def after_wait(self, snapshot: Snapshot, state: RequestState, wait: Wait) -> Result:
        """Register the request in the wait index; report the wait if it lasts. Returns when to reconcile again."""
        request, wait_state, now = snapshot.request, state.wait, self.clock.monotonic()
        reported_wait = stored_wait(request, self.clock.now(), is_limited=bool(wait.limits))
        wait_state.start(wait.cause, wait.limits, now, reported_wait)
        if wait_state.report_at is None:
            # Spread the first report over the time that reporting all waiters of the namespace takes, so that they
            # are not all reconciled together.
            spread_s = self.jitter() * self.index.count(request.key.namespace) / REPORT_QPS
            wait_state.report_at = now + REPORT_WAIT_AFTER.total_seconds() + spread_s
        if wait_state.last_report != wait.why and now >= (wait_state.report_at or 0.0):
            turn_s = self.report_turns.reserve(request.key, request.key.namespace, now)
            wait_state.report_at = now + turn_s
            if not turn_s:
                await self.reporter.waiting(snapshot, state, wait)
                wait_state.report_at = now + report_pause(wait_state.reports).total_seconds()
        quiet_until = wait_state.report_at if wait_state.last_report != wait.why else None
        # Last, with no await after it: a change from here on finds the request in the index.
        registration = self.index.register(request.key, wait.on, wait_state.versions)
        if registration is Registration.STALE:
            return REQUEUE
        state.stage = Awaiting({(ref.api_version, ref.kind, ref.key) for ref in wait.on}, wait.plugin)
        latest = wait.left
        if quiet_until is not None:
            latest = min(latest, max(_TICK, timedelta(seconds=quiet_until - now)))
        if registration is Registration.NEEDS_POLL:
            latest = min(latest, POLL * (1 + self.jitter()))
        if wait.poll is not None:
            latest = min(latest, wait.poll)
        state.failures = NO_FAILURES
        rest = min(latest, ATTEMPT_PAUSE) if wait.is_of_attempt else timedelta()
        return Result(latest, Priority.LOW, rest)


def report_pause(reports: int) -> timedelta:
    """Return after how long another message of a wait is reported, after that many reports."""
    doubled: int = 2 ** min(max(reports - 1, 0), 16)
    return min(REPORT_AGAIN_AFTER * doubled, REPORT_AGAIN_MAX)
