"""How long agents take to report their devices, and which of them were too slow.

State of the leader, by group; nothing is read or deleted here. Times are monotonic, because the wall clocks of
machines differ and may be set.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta

from bowline.api.meta import ObjectUID
from bowline.plugins.gpu_sharing.reservation import Reservation, overdue, unreported_reservations
from bowline.runtime.clock import Clock

# The shortest delay until a group is reconciled again.
REQUEUE_DELAY = timedelta(milliseconds=200)


class AgentTimeouts:
    """Since when reservations have had no device, and why those were deleted whose agents exceeded ``timeout``."""

    def __init__(self, timeout: timedelta, clock: Clock) -> None:
        self._timeout = timeout
        self._clock = clock
        self._since: dict[str, dict[ObjectUID, float]] = {}
        self._reasons: dict[str, dict[ObjectUID, str]] = {}  # for the requests that wait for them

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of what is remembered, by kind."""
        return {"unreported": len(self._since), "timedOut": len(self._reasons)}

    def clear(self) -> None:
        """Drop all state."""
        self._since.clear()
        self._reasons.clear()

    def time_left(self, reservation: Reservation) -> timedelta:
        """Return how long the agent of a reservation may still take, at least REQUEUE_DELAY."""
        now = self._clock.monotonic()
        since = self._since.get(reservation.group, {}).get(reservation.uid, now)
        return max(self._timeout - timedelta(seconds=now - since), REQUEUE_DELAY)

    def overdue(self, group: str, reservations: Sequence[Reservation]) -> Mapping[ObjectUID, str]:
        """Return the reservations whose agent has exceeded the timeout, by UID, each with a message."""
        return overdue(reservations, self._since.get(group, {}), self._clock.monotonic(), self._timeout)

    def reasons(self, group: str) -> Mapping[ObjectUID, str]:
        """Return why reservations of the group were deleted, by UID."""
        return self._reasons.get(group, {})

    def add_reason(self, group: str, uid: ObjectUID, why: str) -> None:
        """Record why an overdue reservation was deleted."""
        self._reasons.setdefault(group, {})[uid] = why

    def drop_reasons(self, group: str) -> None:
        """Drop the reasons: no request waits for the group any more."""
        self._reasons.pop(group, None)

    def update(self, group: str, reservations: Sequence[Reservation], *, is_claimed: bool) -> timedelta | None:
        """Record which reservations have no device now; returns the delay until the first of them is overdue.

        ``is_claimed``: requests claim the group; without one no request needs the reasons.
        """
        if not is_claimed:
            self.drop_reasons(group)
        now, before = self._clock.monotonic(), self._since.pop(group, {})
        unreported = unreported_reservations(reservations)
        if not unreported:
            return None
        self._since[group] = {reservation.uid: before.get(reservation.uid, now) for reservation in unreported}
        return min(map(self.time_left, unreported))
