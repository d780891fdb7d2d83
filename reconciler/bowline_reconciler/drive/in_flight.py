"""Writes in flight that may still take effect: how long nothing may be rolled back.

The API server may execute a request whose reply was lost until its request timeout ends. This process's own writes
are noted by the client (``bowline.kube.writes``): those of plugins and of their rollbacks, and the Bindings. Of
the previous leader's, sent before it died or lost the Lease, any write can be in flight, and nothing is known of it
but the BindRequest itself. A rollback in that time could remove what the pod is about to run on, or precede the side
effect that it should remove; the next request of that name could be bound with what a late write replaces.

No wall clock of this process takes part: ages are measured, and whether a request existed when this process began to
lead follows from creation timestamps alone, which the API server sets. Decision 10.
"""

from datetime import datetime, timedelta
from typing import Any

from bowline.api.bindrequest import ROLLED_BACK, BindRequest
from bowline.kube.writes import LateWrites, Ledger
from bowline_reconciler.decide.snapshot import Absent, PodView, Snapshot
from bowline_reconciler.watch.informers import Listed

_ZERO = timedelta()


class InFlightWrites:
    """Which writes may be in flight during this leadership term. ``ledger``: of the client."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._leading_since = 0.0  # start of the present term, by the monotonic clock
        self._newest_before: datetime | None = None  # see ``existed_before``

    def start_term(self, stored: Listed) -> None:
        """Begin a leadership term. ``stored``: the requests that existed before."""
        self._leading_since, self._newest_before = stored.began, stored.newest if self._ledger.inherits else None

    def may_predate_term(self, request: BindRequest) -> bool:
        """Return whether a previous leader may have started on the request: it was created before this term."""
        return existed_before(request, self._newest_before)

    def facts(self, snapshot: Snapshot, writes: LateWrites, now: float) -> dict[str, Any]:
        """Return what is to be known of a request before something is undone, as facts of ``decide.step``, if any.

        ``snapshot``: with the pod read live **after** ``now``: what has landed until then is in it. ``writes``: of
        this process.
        """
        request, is_inherited = snapshot.request, self.may_predate_term(snapshot.request)
        if not is_inherited and not writes:
            return {}
        lost_at = writes.last(now)
        quiet_in = in_flight_for(
            request,
            snapshot.pod,
            timedelta(seconds=now - lost_at) if lost_at is not None else None,
            timedelta(seconds=now - self._leading_since) if is_inherited else None,
            self._ledger.limit,
        )
        return {"has_late_writes": True, "quiet_in": quiet_in}


def in_flight_for(
    request: BindRequest,
    pod: PodView | Absent,
    own_age: timedelta | None,
    leading_for: timedelta | None,
    limit: timedelta,
) -> timedelta:
    """Return for how long a write for the request may still take effect; zero if none can.

    ``own_age``: how long ago the last write of this process ended without a reply; ``leading_for``: how long ago
    another process may have sent one at most; None: none has. ``limit``: how long the API server may take to execute
    one.
    """
    # A process that has reported a rollback has waited before it. Without the finalizer only a Binding can be in
    # flight.
    may_matter = request.has_finalizer or can_be_bound(request, pod)
    inherited_age = leading_for if may_matter and not request.condition(ROLLED_BACK) else None
    ages = [age for age in (own_age, inherited_age) if age is not None]
    return max(_ZERO, limit - min(ages)) if ages else _ZERO


def existed_before(request: BindRequest, newest: datetime | None) -> bool:
    """Return whether another process may have worked on the request before this one began to lead.

    ``newest``: the latest creationTimestamp of the requests that existed then, None if none did. Timestamps are in
    whole seconds and may be of API servers whose clocks differ: then a newer request counts as one of them too.
    """
    return newest is not None and (request.created is None or request.created <= newest)


def can_be_bound(request: BindRequest, pod: PodView | Absent) -> bool:
    """Return whether a Binding that arrives now would bind a pod that needs what was prepared for it.

    The API server rejects a Binding for another UID, a deleting pod and a bound pod; a finished pod needs nothing.
    """
    return isinstance(pod, PodView) and (
        pod.uid == request.pod_uid and not pod.deleting and not pod.node and not pod.has_ended
    )
