"""Writes in flight that may still take effect: how long nothing may be rolled back.

The API server may execute a request whose reply was lost until its request timeout ends. This process's own writes
are noted by the client (``bowline.kube.writes``): those of plugins and of their rollbacks, and the Bindings. Of
the previous leader's, sent before it died or lost the Lease, any write can be in flight, and nothing is known of it
but the BindRequest itself. A rollback in that time could remove what the pod is about to run on, or precede the side
effect that it should remove; the next request of that name could be bound with what a late write replaces.

No wall clock of this process takes part: ages are measured, and whether a request existed when this process began to
lead follows from creation timestamps alone, which the API server sets. Decision 10.
"""

from contextlib import suppress
from datetime import datetime, timedelta

from bowline.api.bindrequest import ROLLED_BACK, BindRequest
from bowline.kube.client import KubeClient
from bowline.kube.errors import ApiError
from bowline.kube.writes import noting
from bowline_reconciler.decide.snapshot import Absent, PodView
from bowline_reconciler.drive.state import AttemptState

_ZERO = timedelta()


class InFlightWrites:
    """Which writes may be in flight during this leadership term. ``limit``: see ``in_flight_for``."""

    def __init__(self, client: KubeClient, limit: timedelta) -> None:
        self._client = client
        self._limit = limit
        self._leading_since = 0.0  # start of the present term, by the monotonic clock
        self._newest_before: datetime | None = None  # see ``existed_before``

    def start_term(self, since: float, newest: datetime | None) -> None:
        """Begin a leadership term at ``since``. ``newest``: see ``existed_before``."""
        self._leading_since = since
        self._newest_before = newest

    def may_predate_term(self, request: BindRequest) -> bool:
        """Return whether a previous leader may have started on the request: it was created before this term."""
        return existed_before(request, self._newest_before)

    async def time_left(self, request: BindRequest, pod: PodView | Absent, attempt: AttemptState) -> timedelta:
        """Return for how long a write for the request may still take effect; zero if none can.

        ``pod`` must have been read live. Reads the objects that the writes would change: another version proves that
        they cannot land. Raises InfrastructureError.
        """
        if (left := self._left(request, pod, attempt)) <= _ZERO:
            return left
        with noting(attempt.writes):
            for target in attempt.writes.guarded_objects():
                with suppress(ApiError):
                    await self._client.get(target.resource, target.key.namespace, target.key.name)
        return self._left(request, pod, attempt)

    def _left(self, request: BindRequest, pod: PodView | Absent, attempt: AttemptState) -> timedelta:
        now = self._client.clock.monotonic()
        binding_at, write_at = (attempt.writes.last(now, bindings=is_binding) for is_binding in (True, False))
        return in_flight_for(
            request,
            pod,
            timedelta(seconds=now - binding_at) if binding_at is not None else None,
            timedelta(seconds=now - self._leading_since) if self.may_predate_term(request) else None,
            self._limit,
            timedelta(seconds=now - write_at) if write_at is not None else None,
        )


def in_flight_for(
    request: BindRequest,
    pod: PodView | Absent,
    unacknowledged_for: timedelta | None,
    leading_for: timedelta | None,
    limit: timedelta,
    written_for: timedelta | None = None,
) -> timedelta:
    """Return for how long a write for the request may still take effect; zero if none can.

    ``pod`` must have been read live. ``unacknowledged_for``: how long ago this process sent the last Binding without
    a reply; ``leading_for``: how long ago another process may have sent a write at most; None: none has. ``limit``:
    how long the API server may take to execute one. ``written_for``: how long ago this process sent the last other
    write without a reply: it may take effect whatever the pod is.
    """
    own_age = unacknowledged_for if can_be_bound(request, pod) else None
    # A process that has reported a rollback has waited before it. Without the finalizer only a Binding can be in
    # flight.
    may_matter = request.has_finalizer or can_be_bound(request, pod)
    inherited_age = leading_for if may_matter and not request.condition(ROLLED_BACK) else None
    ages = [age for age in (own_age, inherited_age, written_for) if age is not None]
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
