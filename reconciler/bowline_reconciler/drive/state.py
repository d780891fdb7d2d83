"""What the reconciler remembers of a request between reconciles. Losing it is safe: the state is in the API objects.

It holds only what cannot be read from the API objects: by key, one record each, valid for one UID and decision, until
the request has ended; to drop it drops all that is known. A record has its stage (what the request is in between two
results), the attempt, the side effects and their rollback (used by ``driver``), the wait and the failures
(``requeue``), the part in a gang (``gangs``), what plugins remember (the Runner). Times are monotonic, in seconds.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, MutableMapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from bowline.api.bindrequest import BindRequest, is_same_decision
from bowline.api.meta import ObjectID, ObjectKey, ObjectUID, ResourceVersion
from bowline.framework.interface.context import BindContext, BindingPosts
from bowline.kube.accounting import OpenCall
from bowline.kube.writes import LateWrites
from bowline_reconciler.decide.actions import GATES, Fail, Outcome
from bowline_reconciler.decide.report import Unfinished
from bowline_reconciler.decide.transient import NO_FAILURES, Streak
from bowline_reconciler.watch.bound_pods import SentBind

# After a failed attempt: not waiting, and no wait is restored from the status.
NO_WAIT = "nothing"
# What is unfinished for longer is reported.
REPORT_AFTER_S = 5.0


@dataclass(slots=True)
class Progress:
    """Stage: unfinished, from the first reconcile until one has a result. With the reports beside its reconciles."""

    report_at: float
    # Of the reconcile in progress; ``since`` is None between two.
    since: float | None = None
    began: datetime | None = None
    attempt: str = ""
    decision: str = ""
    calls: list[OpenCall] = field(default_factory=list)
    answer: Unfinished | None = None  # of the last reconcile
    cause: Unfinished | None = None  # whose report is queued, or being written
    last_report: str = ""
    reports: int = 0

    def is_due(self, now: float) -> bool:
        """Return whether a report may be queued."""
        return self.cause is None and now >= self.report_at


@dataclass(frozen=True, slots=True)
class Awaiting:
    """Stage: in the wait index for these objects. ``plugin``: that asked for it; empty for Bowline itself."""

    objects: Collection[ObjectID]
    plugin: str


@dataclass(frozen=True, slots=True)
class Deferred:
    """Stage: bound, and completed later. ``context``: of its attempt; ``started_at``: when that began."""

    context: BindContext | None
    started_at: datetime | None


@dataclass(frozen=True, slots=True)
class Running:
    """An attempt in progress. ``node_uid``: of the node as it was cached when the attempt began."""

    request: BindRequest
    node_uid: ObjectUID | None = None
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    posts: BindingPosts = field(default_factory=BindingPosts)


@dataclass(slots=True)
class AttemptState:
    """The attempt in progress, and what remains of the last one."""

    is_open: bool = False  # an attempt has begun and has no result yet
    running: Running | None = None
    past_point: bool = False  # of no return: everything is prepared, and the Binding follows
    pending_outcome: Outcome | None = None  # whose write is not confirmed
    failed_before: int = 0  # attempts; if the request has more, that outcome was stored
    writes: LateWrites = field(default_factory=LateWrites)  # of plugins, Bindings and rollbacks
    retry_at: float | None = None  # no attempt before this time
    bind: SentBind | None = None  # the last one of this process, whoever has bound the pod

    def begin(self, request: BindRequest, node_uid: ObjectUID | None) -> Running:
        """Begin an attempt: from here on a change of what it depends on withdraws it."""
        self.pending_outcome, self.is_open, self.past_point = None, True, False
        if self.bind is not None:
            self.bind.is_acknowledged = False
        self.running = Running(request, node_uid)
        return self.running

    def withdraw(self) -> None:
        """Cancel the attempt in progress, if there is one that is not past the point of no return."""
        if self.running is not None and not self.past_point:
            self.running.cancelled.set()


@dataclass(slots=True)
class RollbackState:
    """The side effects of the attempts so far, and their rollback."""

    side_effects: BindRequest | None = None  # as of the last attempt that may have left some; None: none has
    # The terminal failure that has begun to be executed: it is finished whatever call fails and whatever changes.
    ending: Fail | None = None
    has_begun: bool = False  # since the last attempt, a plugin has been asked to undo something
    is_complete: bool = False  # all side effects of the attempts so far are rolled back, but for ``remains``
    remains: str = ""  # what was not undone: on objects that cannot be read, or are no longer the request's
    blocked_by: str = ""  # the last event's cause of why the request cannot complete


@dataclass(slots=True)
class WaitState:
    """What a request waits for, or last waited for, and what was reported of it."""

    cause: str = ""
    began: float = 0.0  # of the series: of its first wait with a limit, if it has had one
    restored_at: float = 0.0  # when the wait was restored from the status; 0 if it was not
    first_waits: MutableMapping[str, float] = field(default_factory=dict)  # of each cause that has a limit
    longest: timedelta = timedelta()  # limit of the series
    paused_at: float | None = None  # in a wait without a limit, which is no part of the others' time
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
        if self.paused_at is not None and self.first_waits:
            self.began += now - self.paused_at
            for limited_cause in self.first_waits:
                self.first_waits[limited_cause] += now - self.paused_at
        self.paused_at = None if limits else now
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

    def supersede(self, now: float) -> None:
        """Record that the status reports something else than the wait: it is to be reported again."""
        if self.report_at is not None:
            self.last_report, self.report_at = "", now

    def finish(self, request: BindRequest) -> None:
        """End the wait by a failed attempt, which nominates the pod: a wait in the next attempt is a new one."""
        self.nominated = request
        self.cause, self.began, self.restored_at = NO_WAIT, 0.0, 0.0
        self.first_waits.clear()
        self.longest, self.paused_at = timedelta(), None
        self.last_report, self.report_at, self.reports = "", None, 0


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
    stage: Progress | Awaiting | Deferred | None = None  # None: nothing is to be done before an event or a delay
    begun_request: BindRequest | None = None  # as its last attempt, failure or rollback began with it
    attempt: AttemptState = field(default_factory=AttemptState)
    rollback: RollbackState = field(default_factory=RollbackState)
    wait: WaitState = field(default_factory=WaitState)
    failures: Streak = NO_FAILURES  # consecutive transient failures of calls for the request
    gang: GangState = field(default_factory=GangState)
    of_plugins: dict[str, dict[str, Any]] = field(default_factory=dict)  # what each plugin remembers

    def is_of(self, request: BindRequest) -> bool:
        """Return whether it is the state of that request; not if what has begun was for another decision.

        A foreign CRD lets clients change the spec: another generation is another request.
        """
        started_request = self.rollback.side_effects or self.begun_request or self.wait.nominated
        return request.uid == self.uid and (started_request is None or is_same_decision(started_request, request))


@dataclass(frozen=True, slots=True)
class TakenUp:
    """What is known when a reconcile begins. ``former``: the state under the key; ``state``: if it is the request's.

    ``stage``: of before.
    """

    former: RequestState | None
    state: RequestState | None
    progress: Progress
    stage: Progress | Awaiting | Deferred | None


class RequestStates:
    """States by key. A request re-created under the same name gets a new state, once the old one is released."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._by_key: dict[ObjectKey, RequestState] = {}
        self.deferred_count = 0

    @property
    def sizes(self) -> dict[str, int]:
        """The numbers of requests by what is remembered of them."""
        stages = Counter(type(state.stage) for state in self._by_key.values())
        return {
            "requests": len(self._by_key),
            "unfinished": stages[Progress],
            "waitIndex": stages[Awaiting],
            "deferredCompletions": stages[Deferred],
            "failing": sum(state.failures.count > 0 for state in self._by_key.values()),
            "pluginStates": sum(bool(state.of_plugins) for state in self._by_key.values()),
        }

    def waits(self, own: str) -> Counter[str]:
        """Return the numbers of waiting requests by plugin; ``own`` stands for Bowline itself."""
        stages = (state.stage for state in self._by_key.values())
        return Counter(stage.plugin or own for stage in stages if isinstance(stage, Awaiting))

    def of(self, request: BindRequest) -> RequestState | None:
        """Return the request's state, if there is one."""
        state = self._by_key.get(request.key)
        return state if state is not None and state.is_of(request) else None

    def get(self, key: ObjectKey) -> RequestState | None:
        """Return the state under the key; None if there is none."""
        return self._by_key.get(key)

    def items(self) -> Collection[tuple[ObjectKey, RequestState]]:
        """Return all states, with their keys."""
        return self._by_key.items()

    def ensure(self, request: BindRequest) -> RequestState:
        """Return the request's state; creates it if there is none for this UID and decision."""
        state = self.of(request)
        if state is None:
            self.drop(request.key)
            state = self._by_key[request.key] = RequestState(request.uid, self._monotonic())
        return state

    def defer(self, state: RequestState, completion: Deferred) -> None:
        """Complete the request later."""
        state.stage = completion
        self.deferred_count += 1

    def take_up(self, key: ObjectKey, latest: BindRequest | None, began: datetime) -> TakenUp:
        """Begin a reconcile at ``began``: the request is unfinished from here on. ``latest``: as cached, if it is."""
        former, now = self._by_key.get(key), self._monotonic()
        if former is None and latest is not None:
            former = self.ensure(latest)
        stage = former.stage if former is not None else None
        progress = stage if isinstance(stage, Progress) else Progress(now + REPORT_AFTER_S)
        progress.since, progress.began, progress.attempt, progress.decision = now, began, "", ""
        if isinstance(stage, Deferred):
            self.deferred_count -= 1
        if former is not None:
            former.stage = progress
        return TakenUp(former, self.of(latest) if latest is not None else former, progress, stage)

    def withdraw(self, key: ObjectKey) -> None:
        """Withdraw the key's attempt in progress, if there is one; its pod counts for no gang any more."""
        state = self._by_key.get(key)
        if state is not None:
            state.attempt.withdraw()
            state.gang.leave()

    def drop(self, key: ObjectKey) -> None:
        """Drop the key's state."""
        state = self._by_key.pop(key, None)
        if state is not None:
            state.gang.leave()

    def reset_failures(self) -> None:
        """Reset the transient failures: the API server is available again after an outage."""
        for state in self._by_key.values():
            state.failures = NO_FAILURES
            if isinstance(state.stage, Progress):
                state.stage.report_at, state.stage.answer = self._monotonic() + REPORT_AFTER_S, None

    def clear(self) -> Mapping[ObjectKey, RequestState]:
        """Drop all states, and return them."""
        states, self._by_key, self.deferred_count = self._by_key, {}, 0
        return states
