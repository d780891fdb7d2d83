"""The snapshot of a request and its surroundings, reduced to what decisions use.

Pure views of raw objects. ``Absent`` distinguishes an object that the API server reports as not found from one that
is only missing in a cache.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum

from bowline.api import names
from bowline.api.bindrequest import PREPARED, BindRequest, Phase, is_same_decision
from bowline.api.meta import (
    Object,
    ObjectUID,
    ResourceVersion,
    has_ended,
    is_deleting,
    parse_time,
    uid_of,
    version_of,
)
from bowline.api.node_view import NodeView
from bowline.api.request_facts import wait_of
from bowline.framework.interface.status import UNLIMITED, Answers
from bowline_reconciler.decide.actions import GATES, Fail

_ZERO = timedelta()
# A plugin may request a longer pause than binding.backoff.max. A pause longer than this is a clock that was set.
MAX_PAUSE = timedelta(hours=1)
# A request whose call ends a process is not taken up again for so long: each time, all others wait for a leader.
SET_ASIDE_FOR = timedelta(hours=1)
# Extension points that are called before the pod is bound only.
OF_ATTEMPTS = ("pre_bind", "binding_annotations", "bind", "on_failure")
# A wait does not expire before this process has been connected to the API server for so long: an outage or a restart
# is not the request's fault.
FRESH_CONTACT = timedelta(seconds=60)


class Absent(Enum):
    """Why an object is missing: not in the cache (which proves nothing), not found by a live read, or unreadable."""

    NOT_IN_CACHE = "not in cache"
    NOT_FOUND = "not found"
    UNREADABLE = "unreadable"  # a pod or node that exists and is not decoded


class Target(Enum):
    """What can be read live."""

    REQUEST = "request"
    POD = "pod"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class PodView:
    """The fields of a pod that decisions use. ``raw``: the pod itself, which plugins receive."""

    uid: ObjectUID
    version: ResourceVersion
    node: str
    deleting: bool
    has_ended: bool
    gates: tuple[str, ...]
    scheduler: str
    tolerations: tuple[Object, ...] = ()
    created: datetime | None = None
    prepared_for: str = ""  # the UID of the request whose Binding has bound it
    raw: Object = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Times:
    """Durations, measured with this process's monotonic clock: setting the wall clock changes no decision."""

    age: timedelta = timedelta()  # since this process first saw the request
    # Since the series of waits with a limit began, across restarts as far as the status reports it.
    wait_time: timedelta = timedelta()
    watch_time: timedelta = FRESH_CONTACT  # for how long a change of the awaited object would have been observed
    retry_in: timedelta = timedelta()  # no attempt before this
    # Of each cause of the series, the time since the first wait for it. Empty: the first cause is not known.
    waited: Mapping[str, timedelta] = field(default_factory=dict)
    longest: timedelta = timedelta()  # the longest limit of the series so far

    def wait_left(self, timeout: timedelta, cause: str) -> timedelta:
        """Return how long a wait for ``cause`` may still last; not positive if it has expired.

        Only waits count, never the request's age. A wait is measured from the first one for its cause, and the
        series of waits from its beginning, which no cause moves: causes that take turns end as one that stays. A
        wait without a limit neither ends nor extends the others. No wait expires before its object has been
        observable for FRESH_CONTACT.
        """
        if timeout >= UNLIMITED:
            return timeout
        if GATES in self.waited and cause != GATES:
            return timeout  # gates that are removed do not come back: another series begins
        own_left = timeout - self.waited.get(cause, timedelta() if self.waited else self.wait_time)
        series_left = max(self.longest, timeout) - self.wait_time
        return max(min(own_left, series_left), FRESH_CONTACT - self.watch_time)


def pod_view(pod: Object) -> PodView:
    """Reduce a raw pod to the fields that decisions use."""
    spec = pod.get("spec") or {}
    return PodView(
        uid=uid_of(pod),
        version=version_of(pod),
        node=spec.get("nodeName") or "",
        deleting=is_deleting(pod),
        has_ended=has_ended(pod),
        gates=tuple(str(gate.get("name")) for gate in spec.get("schedulingGates") or ()),
        scheduler=spec.get("schedulerName") or names.DEFAULT_SCHEDULER,
        tolerations=tuple(spec.get("tolerations") or ()),
        created=parse_time(pod["metadata"].get("creationTimestamp")),
        prepared_for=(pod["metadata"].get("annotations") or {}).get(names.PREPARED_FOR) or "",
        raw=pod,
    )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A request and what surrounds it, in one reconcile: the input of a decision. ``live``: what was read live."""

    request: BindRequest
    pod: PodView | Absent = Absent.NOT_IN_CACHE
    node: NodeView | Absent = Absent.NOT_IN_CACHE
    times: Times = field(default_factory=Times)
    live: frozenset[Target] = frozenset()  # the rest is from the caches
    answers: Answers | None = None  # of the plugins, for this request and this pod; None: not asked
    node_ill_for: timedelta = timedelta()  # for how long this process has seen the node with a taint of its health
    uninstalling: bool = False  # the release ends: every request is rolled back, none is attempted
    was_delayed: bool = False  # in this process: it has waited, or its calls have failed
    ending: Fail | None = None  # the terminal failure whose execution has begun

    @property
    def own_pod(self) -> Object | None:
        """The pod that the request names, by its UID; None if there is none or another one."""
        pod = self.pod
        return pod.raw if isinstance(pod, PodView) and pod.uid == self.request.pod_uid else None


def is_finished(request: BindRequest) -> bool:
    """Return whether the request has ended, and nothing is left to undo."""
    if request.phase is not Phase.FAILED:
        return request.phase is Phase.SUCCEEDED
    return not (request.has_finalizer or request.is_rollback_incomplete)


def is_bound_as_asked(request: BindRequest, pod: PodView | Absent) -> bool:
    """Return whether the pod with the requested UID is on the selected node: then nothing may be rolled back.

    Or on the node that the request named before a client changed it, as another project's CRD permits: then the pod
    has the record of its Binding.
    """
    if not isinstance(pod, PodView) or not pod.node or pod.uid != request.pod_uid:
        return False
    was_changed = request.generation > 1
    return pod.node == request.selected_node or (was_changed and pod.prepared_for == request.uid)


def is_withdrawn(
    request: BindRequest, current: BindRequest | Absent, pod: PodView | Absent, node_is_lost: bool = False
) -> bool:
    """Return whether an attempt for the request must stop: the request, its pod or its node has ended or changed.

    ``current`` and ``pod`` are the present ones; ``node_is_lost``: the node that the attempt began with is deleting,
    deleted or replaced, or has a taint that the pod does not tolerate.
    """
    if current is Absent.NOT_FOUND:
        return True
    if isinstance(current, BindRequest) and (
        current.uid != request.uid
        or current.deleting
        or current.phase is not Phase.PENDING
        or not is_same_decision(current, request)
    ):
        return True
    return node_is_lost or (
        isinstance(pod, PodView) and (pod.uid != request.pod_uid or pod.deleting or pod.has_ended)
    )


def set_aside_for(request: BindRequest, now: datetime, *, is_ending: bool) -> timedelta:
    """Return for how long no plugin is asked about the request: a call for it has ended a process by blocking it.

    ``is_ending``: it is only rolled back, from which what has blocked an attempt does not keep it. A time that is
    ahead by more than a wrong clock counts for nothing.
    """
    condition = request.condition(names.CONDITION_SET_ASIDE)
    since = parse_time(condition.get("lastTransitionTime"))
    if since is None or condition.get("status") != "True":
        return _ZERO
    age = now - since
    if (is_ending and condition.get("reason") in OF_ATTEMPTS) or age < -SET_ASIDE_FOR:
        return _ZERO
    return max(_ZERO, SET_ASIDE_FOR - max(age, _ZERO))


def stored_wait(request: BindRequest, now: datetime, *, is_limited: bool = True) -> timedelta | None:
    """Return for how long the stored status has reported a wait; None if it reports none.

    ``is_limited``: as part of the time of a wait with a limit, which one without is not. Nor is the time in which the
    request is set aside: what it waits for begins again.
    """
    if request.condition(names.CONDITION_SET_ASIDE):
        return None
    condition = request.condition(PREPARED)
    since = parse_time(condition.get("lastTransitionTime"))
    if condition.get("status") != "False" or condition.get("reason") != "Waiting" or since is None:
        return None
    fact = wait_of(request.status)
    if is_limited and fact is not None and fact.deadline is None:
        return _ZERO
    return max(_ZERO, now - since)


def stored_pause(request: BindRequest, now: datetime, backoff_max: timedelta) -> timedelta:
    """Return the rest of the pause in the stored status, at most the longest pause that can have been meant.

    ``lastAttemptTime`` and ``nextAttemptTime`` come from the same clock: their difference is the intended pause,
    however wrong that clock was.
    """
    at = request.next_attempt
    if at is None:
        return _ZERO
    last = parse_time(request.status.get("lastAttemptTime"))
    pause = min(at - last, MAX_PAUSE) if last is not None else _ZERO
    return max(_ZERO, min(at - now, max(backoff_max, pause)))
