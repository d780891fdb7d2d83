"""What the reconciler remembers of a request between reconciles. Losing it is safe: the state is in the API objects.

It holds only what cannot be read from the API objects and must not be forgotten within the process: by key, each
entry valid for one UID. An entry has six values, and only their methods change them: the attempt (used by
``attempt``), the side effects and their rollback (``complete``), the wait and the failures (``requeue``), the part in
a gang (``gangs``), and what is newer than the cache (``reads``). Times are monotonic, in seconds. Decision 2.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from weakref import WeakValueDictionary

from bowline.api.bindrequest import BindRequest, PodID
from bowline.api.meta import ObjectID, ObjectKey, ObjectRef, ObjectUID, ResourceVersion
from bowline.framework.binding.context import BindingPosts
from bowline.framework.plugin_status import Status
from bowline.kube.late_writes import LateWrites
from bowline_reconciler.binding.overlay import CacheOverlay
from bowline_reconciler.bound_pods import AwaitedBind
from bowline_reconciler.decide.actions import Fail
from bowline_reconciler.decide.snapshot import GATES, Outcome, order_key
from bowline_reconciler.decide.transient import NOTICE_AFTER_S, QUIET_FAILURES, Streak, classify, extend, next_mark_in

# After a failed attempt: not waiting, and no wait is restored from the status.
NO_WAIT = "nothing"


@dataclass(slots=True)
class Running:
    """An attempt in progress. Past the point of no return it is not cancelled; if withdrawn, it repeats no POST."""

    request: BindRequest
    node_uid: ObjectUID | None = None  # as cached when the attempt began
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    posts: BindingPosts = field(default_factory=BindingPosts)
    past_point: bool = False

    def pass_point(self) -> None:
        """Pass the point of no return: everything is prepared, and the Binding follows."""
        self.past_point = True

    def withdraw(self) -> None:
        """Cancel the attempt before the point of no return; after it, send no POST a second time."""
        if self.past_point:
            self.posts.stopping.set()
        else:
            self.cancelled.set()


@dataclass(frozen=True, slots=True)
class PendingOutcome:
    """An outcome whose write is not confirmed. If ``failed_attempts`` exceeds ``failed_before``, it was stored."""

    outcome: Outcome
    failed_before: int


@dataclass(slots=True)
class AttemptState:
    """The attempt in progress, and what remains of the last one."""

    is_open: bool = False  # an attempt has begun and has no result yet
    running: Running | None = None
    pending_outcome: PendingOutcome | None = None
    unacknowledged_at: float | None = None  # a Binding POST without a reply: may still take effect for a minute
    writes: LateWrites = field(default_factory=LateWrites)  # of plugins, in attempts and rollbacks
    retry_at: float | None = None  # no attempt before this time
    awaited_bind: AwaitedBind | None = None  # an acknowledged Binding whose pod was not read yet

    @property
    def may_have_late_writes(self) -> bool:
        """Whether a write of this process may still take effect."""
        return self.unacknowledged_at is not None or len(self.writes) > 0

    def start(self) -> None:
        """Begin an attempt."""
        self.is_open = True

    def hold(self, running: Running) -> None:
        """Record that plugins are being called."""
        self.running = running

    def withdraw(self) -> None:
        """Withdraw the attempt in progress, if there is one. See ``Running.withdraw``."""
        if self.running is not None:
            self.running.withdraw()

    def stop(self) -> None:
        """Record that no plugin is being called any more, and when a Binding was last sent without a reply."""
        if self.running is not None and self.running.posts.last_unknown is not None:
            self.unacknowledged_at = self.running.posts.last_unknown
        self.running = None

    def finish(self) -> bool:
        """End the attempt, because its result is known; returns whether one had begun."""
        was_open, self.is_open = self.is_open, False
        return was_open

    def pass_point(self, awaited: AwaitedBind) -> None:
        """Pass the point of no return: the Binding follows, and its pod is read before the bind is reported."""
        if self.running is not None:
            self.running.pass_point()
        self.awaited_bind = awaited

    def end_bind(self) -> None:
        """Record that no bind is to be reported from the watch: there is none, or the pod is read live."""
        self.awaited_bind = None

    def mark_unacknowledged(self, now: float) -> None:
        """Record that a Binding may have been sent, or be on its way."""
        self.unacknowledged_at = now

    def keep(self, outcome: Outcome, failed_before: int) -> None:
        """Remember the outcome until its write is confirmed."""
        self.pending_outcome = PendingOutcome(outcome, failed_before)

    def confirm(self) -> None:
        """The outcome is stored, or has become void."""
        self.pending_outcome = None

    def delay_until(self, moment: float) -> None:
        """Start no attempt before that time."""
        self.retry_at = moment


@dataclass(slots=True)
class RollbackState:
    """The side effects of the attempts so far, and their rollback."""

    side_effects: BindRequest | None = None  # as of the last attempt that may have left some; None: none has
    # The terminal failure that has begun to be executed: it is finished whatever call fails and whatever changes.
    ending: Fail | None = None
    has_begun: bool = False  # since the last attempt, a plugin has been asked to undo something
    is_prepared: bool = False  # an attempt of this process has prepared everything, and no rollback has begun since
    is_complete: bool = False  # all side effects of the attempts so far are rolled back
    is_reported: bool = False
    transient_failures: int = 0
    held_since: float | None = None  # since when it waits for writes in flight
    blocked_by: str = ""  # the last event's cause of why the request cannot complete

    def expect(self, request: BindRequest) -> None:
        """Record that an attempt for the request, as stored, may leave side effects from here on."""
        self.side_effects, self.has_begun, self.is_complete = request, False, False

    def end_with(self, fail: Fail) -> None:
        """Record that the request ends with that failure, until it is stored."""
        self.ending = fail

    def begin(self) -> None:
        """Record that plugins undo the side effects from here on."""
        self.has_begun, self.is_prepared = True, False

    def prepare(self) -> None:
        """Record that an attempt has prepared everything."""
        self.is_prepared = True

    def complete(self) -> None:
        """Record that all side effects are rolled back."""
        self.side_effects, self.is_complete = None, True

    def count_transient_failure(self) -> bool:
        """Count a transient failure; returns whether there are so many that they are reported."""
        self.transient_failures += 1
        return self.transient_failures > QUIET_FAILURES

    def note_report(self) -> None:
        """Record that the status reports the rollback as incomplete."""
        self.is_reported = True

    def hold(self, now: float) -> float:
        """Record that the rollback waits for writes in flight; returns in how many seconds that is reported."""
        self.held_since = now if self.held_since is None else self.held_since
        return self.held_since + NOTICE_AFTER_S - now

    def block(self, why: str) -> bool:
        """Record why the request cannot complete; returns whether that is another cause than before."""
        is_new, self.blocked_by = why != self.blocked_by, why
        return is_new


@dataclass(slots=True)
class WaitState:
    """What a request waits for, or last waited for, and what was reported of it."""

    cause: str = ""
    began: float = 0.0  # of the series: of its first wait with a limit, if it has had one
    restored_at: float = 0.0  # when the wait was restored from the status; 0 if it was not
    first_waits: MutableMapping[str, float] = field(default_factory=dict)  # of each cause that has a limit
    longest: timedelta = timedelta()  # limit of the series
    last_report: str = ""  # the message that was last reported in status and event
    report_at: float | None = None
    reports: int = 0  # of the series
    nominated: BindRequest | None = None  # the request with whose node the pod was last nominated
    versions: MutableMapping[ObjectID, ResourceVersion] = field(default_factory=dict)  # at the last registration

    def start(self, cause: str, limits: Mapping[str, timedelta], now: float, stored_wait: timedelta | None) -> None:
        """Begin to wait, or go on in the present series of waits, whose start no other cause moves.

        ``limits``: of each cause, how long it may last. ``stored_wait``: for how long the status has reported a wait;
        it counts for the first wait in this process.
        """
        if GATES in self.first_waits and GATES not in limits:
            self.first_waits.clear()  # they do not come back: another series begins
            self.longest = timedelta()
        first_wait = now
        if not self.cause and stored_wait is not None:
            first_wait = self.began = now - stored_wait.total_seconds()
            self.restored_at = now
        elif self.cause in ("", NO_WAIT) or (limits and not self.first_waits):
            self.began, self.restored_at = now, 0.0
        self.cause = cause
        for limited_cause, limit in limits.items():
            self.first_waits.setdefault(limited_cause, first_wait)
            self.longest = max(self.longest, limit)

    def schedule_report(self, moment: float) -> None:
        """Report the wait from that time on."""
        self.report_at = moment

    def note_report(self, why: str) -> None:
        """Record the message that was reported."""
        self.last_report = why
        self.reports += 1

    def nominate(self, request: BindRequest) -> None:
        """Record that the pod is nominated to the request's node."""
        self.nominated = request

    def finish(self) -> None:
        """End the wait by a failed attempt: a wait in the next attempt is a new one."""
        self.cause, self.began, self.restored_at = NO_WAIT, 0.0, 0.0
        self.first_waits.clear()
        self.longest = timedelta()
        self.last_report, self.report_at, self.reports = "", None, 0


@dataclass(slots=True)
class FailureState:
    """Consecutive transient failures of calls for the request."""

    streak: Streak | None = None
    noticed_until: float = 0.0  # no further report of the streak before this time

    @property
    def is_own(self) -> bool:
        """Whether the failures are the request's own, so that they are reported and counted."""
        return self.streak is not None and self.streak.is_own

    @property
    def is_quiet(self) -> bool:
        """Whether there are so few failures that they are normal."""
        return self.streak is None or self.streak.count <= QUIET_FAILURES

    def extend(self, now: float, last_success: float, *, is_deferred: bool) -> None:
        """Add a failure; called once for each failed reconcile. See ``decide.transient.extend``."""
        self.streak = extend(self.streak, now, last_success, is_deferred)

    def classify(self, status: Status) -> Status:
        """Return what a result that may be transient counts as. See ``decide.transient.classify``."""
        return classify(status, self.streak) if self.streak is not None else status

    def next_mark_in(self, now: float) -> float | None:
        """Return in how many seconds another failure is reported or counted; None if no time is set for that."""
        return next_mark_in(self.streak, now) if self.streak is not None else None

    def is_noticeable(self, now: float) -> bool:
        """Return whether the failures have lasted so long that they are reported, though they are not counted."""
        return self.streak is not None and now >= max(self.streak.first + NOTICE_AFTER_S, self.noticed_until)

    def notice(self, until: float) -> None:
        """Record that the failures are reported, or are not reported before that time."""
        self.noticed_until = until

    def reset(self) -> None:
        """End the streak: the calls for the request succeed, or failed because of an outage."""
        self.streak, self.noticed_until = None, 0.0


class PreparedPods(dict[ObjectUID, ObjectKey]):
    """The prepared pods of a gang, the longest prepared one first, each with its request."""


@dataclass(slots=True)
class GangState:
    """The pod's part in its gang."""

    pod_uid: ObjectUID | None = None
    # Those of its gang while the pod is prepared: an attempt has prepared everything, no later one has failed to.
    prepared_pods: PreparedPods | None = None
    is_admitted: bool = False  # the gang was complete: the pod may be bound without another count

    def prepare(self, request: BindRequest, prepared_pods: PreparedPods) -> None:
        """Record that the request's pod is prepared, in the gang with these pods."""
        if prepared_pods is not self.prepared_pods:
            self.leave()
        self.pod_uid, self.prepared_pods = request.pod_uid, prepared_pods
        prepared_pods[request.pod_uid] = request.key

    def admit(self) -> None:
        """Record that the gang is complete."""
        self.is_admitted = True

    def leave(self) -> None:
        """The pod is not prepared any more, or is bound."""
        if self.prepared_pods is not None and self.pod_uid is not None:
            self.prepared_pods.pop(self.pod_uid, None)
        self.prepared_pods, self.is_admitted = None, False


@dataclass(slots=True)
class RequestState:
    """The in-memory state of one request (one UID)."""

    uid: ObjectUID
    since: float = 0.0  # when this process first observed the request
    holding: BindRequest | None = None  # the request, while it holds its pod: see ``RequestStates.acquire_pod``
    attempt: AttemptState = field(default_factory=AttemptState)
    rollback: RollbackState = field(default_factory=RollbackState)
    wait: WaitState = field(default_factory=WaitState)
    failures: FailureState = field(default_factory=FailureState)
    gang: GangState = field(default_factory=GangState)
    overlay: CacheOverlay = field(default_factory=CacheOverlay)

    def hold(self, request: BindRequest | None) -> None:
        """Record that the request holds its pod; None: it does no more."""
        self.holding = request

    @property
    def is_finished(self) -> bool:
        """Whether this process has completed or failed the request."""
        return self.overlay.final_version is not None

    def finish(self, version: ResourceVersion) -> None:
        """Mark the request as finished; keep only what identifies stale events of the watch."""
        self.attempt, self.rollback, self.wait = AttemptState(), RollbackState(), WaitState()
        self.failures.reset()
        self.gang.leave()
        self.overlay.finish(version)

    def view(self) -> dict[str, Any]:
        """Return the state for the debug pages."""
        running = self.attempt.running
        return {
            "uid": self.uid,
            "done": self.is_finished,
            "bindStarted": running is not None and running.past_point,
            "unpersistedOutcome": self.attempt.pending_outcome is not None,
            "waitCause": self.wait.cause or None,
            "reportedWait": self.wait.last_report or None,
            "unacknowledgedBinding": self.attempt.unacknowledged_at is not None,
            "needsLiveRead": self.overlay.needs_live_read,
        }


class RequestStates:
    """States by key. A request re-created under the same name gets a new state, once the old one is released.

    Of the requests for one pod, one *holds* it from its first attempt or rollback until nothing of it is left: a
    lock, and no order (decision 213). ``rivals`` returns the cached requests for a pod that have not ended; the first
    of them is requeued with ``wake`` when no request holds the pod any more.
    """

    def __init__(
        self,
        monotonic: Callable[[], float] = time.monotonic,
        rivals: Callable[[ObjectKey, ObjectUID], Sequence[BindRequest]] = lambda *_: (),
        wake: Callable[[ObjectKey], None] = lambda _: None,
    ) -> None:
        self._monotonic = monotonic
        self._rivals = rivals
        self._wake = wake
        self._by_key: dict[ObjectKey, RequestState] = {}
        self._holders: dict[PodID, ObjectKey] = {}
        # Those of a gang are dropped with the last state that refers to them.
        self._prepared_pods: WeakValueDictionary[ObjectRef, PreparedPods] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._by_key)

    def get(self, key: ObjectKey, uid: ObjectUID | None = None) -> RequestState | None:
        """Return the state under the key, of that UID if one is given; None if there is none."""
        state = self._by_key.get(key)
        return state if state is not None and uid in (None, state.uid) else None

    def items(self) -> Collection[tuple[ObjectKey, RequestState]]:
        """Return all states, with their keys."""
        return self._by_key.items()

    def ensure(self, request: BindRequest) -> RequestState:
        """Return the request's state; creates it if there is none for this UID."""
        state = self.get(request.key, request.uid)
        if state is None:
            self.drop(request.key)
            state = self._by_key[request.key] = RequestState(request.uid, self._monotonic())
        return state

    def holder(self, request: BindRequest) -> ObjectKey | None:
        """Return the request that holds the request's pod, possibly this one; None if no request does."""
        return self._holders.get(request.pod_id)

    def acquire_pod(self, request: BindRequest) -> bool:
        """Let the request hold its pod; False if another one does."""
        pod, state = request.pod_id, self._by_key[request.key]
        if self._holders.setdefault(pod, request.key) != request.key:
            return False
        if state.holding is not None and state.holding.pod_id != pod:
            self.release_pod(request.key, state)
        state.hold(request)
        return True

    def release_pod(self, key: ObjectKey, state: RequestState) -> None:
        """Let the request hold its pod no more: nothing of it is left. No change if it holds none."""
        request = state.holding
        state.hold(None)
        if request is not None and self._holders.pop(request.pod_id):
            waiting = [rival for rival in self.unfinished(request) if rival.key != key]
            if waiting:
                self._wake(min(waiting, key=order_key).key)

    def unfinished(self, request: BindRequest) -> Sequence[BindRequest]:
        """Return the cached requests for the request's pod, without those that this process has finished."""
        states = [(rival, self.get(rival.key, rival.uid)) for rival in self._rivals(*request.pod_id)]
        return [rival for rival, state in states if state is None or not state.is_finished]

    def join(self, request: BindRequest, state: RequestState, pod_group: ObjectRef) -> None:
        """Record that the request's pod is prepared, in its gang."""
        state.gang.prepare(request, self._prepared_pods.setdefault(pod_group, PreparedPods()))

    def prepared(self, pod_group: ObjectRef) -> PreparedPods:
        """Return the prepared pods of the gang."""
        return self._prepared_pods.get(pod_group) or PreparedPods()

    def wrote(self, before: BindRequest, after: BindRequest) -> None:
        """Remember the stored result of a write until the watch has delivered it."""
        state = self.get(before.key, before.uid)
        if state is not None:
            state.overlay.replace(before, after)

    def drop(self, key: ObjectKey) -> None:
        """Drop the key's state."""
        state = self._by_key.pop(key, None)
        if state is not None:
            state.gang.leave()
            self.release_pod(key, state)

    def clear(self) -> Sequence[tuple[ObjectKey, ObjectUID]]:
        """Drop all states; returns their keys and UIDs."""
        entries = [(key, state.uid) for key, state in self._by_key.items()]
        self._by_key.clear()
        self._prepared_pods.clear()
        self._holders.clear()
        return entries
