"""What the leader knows of one group: who asks for its device, and what its reservation pods have shown so far.

``group_controller`` reads and writes the objects. All of this may be lost: after a restart, unfinished requests and
labels show which devices are in use. Times are monotonic, because the wall clocks of machines differ and may be set.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from bowline.api.meta import ObjectKey, ObjectUID
from bowline.plugins.gpu_sharing.recovery import Loss
from bowline.plugins.gpu_sharing.reservation import DeviceRequest, Reservation, User, unreported_reservations


@dataclass(slots=True)
class Group:
    """The state of one group, kept while any of it says something."""

    name: str
    agent_timeout: timedelta
    # Held during a pass, so that one at a time reads and writes the group's reservation pods.
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    passes: int = 0  # those that wait for the lock, and the one in progress
    read_at: float = 0.0  # when the last read of its reservation pods began
    # To be checked for unused devices. A claim may keep one from the check, which follows the claim's end.
    is_unchecked: bool = False
    retry_at: float | None = None  # when a check is repeated that could not release a device
    claims: dict[ObjectKey, DeviceRequest] = field(default_factory=dict)  # by request
    reservations: list[Reservation] = field(default_factory=list)  # as of the pass in progress
    unreported_since: dict[ObjectUID, float] = field(default_factory=dict)  # reservations without a device
    # Why reservations were deleted whose agents exceeded the timeout, for the requests that wait for them.
    timeouts: dict[ObjectUID, str] = field(default_factory=dict)
    to_adopt: Sequence[User] = ()  # pods of another binder, by the last check
    loss: Loss | None = None  # of a device that pods use and no reservation holds

    @property
    def is_empty(self) -> bool:
        """Whether nothing has to be kept of the group."""
        state = (self.passes, self.is_unchecked, self.claims, self.unreported_since, self.timeouts, self.loss)
        return not any(state) and self.retry_at is None

    @property
    def claimed_nodes(self) -> set[str]:
        """The nodes on which a claim needs the device."""
        return {claim.node for claim in self.claims.values()}

    def due_in(self, now: float) -> timedelta | None:
        """Return the delay until the group's next pass without an event; None if there is none."""
        dues = [since + self.agent_timeout.total_seconds() for since in self.unreported_since.values()]
        dues += [self.loss.until] if self.loss is not None and self.loss.last_uid is None else []
        dues += [self.retry_at] if self.retry_at is not None else []
        return timedelta(seconds=min(dues) - now) if dues else None

    def time_left(self, reservation: Reservation, now: float) -> timedelta:
        """Return how long the agent of a reservation may still take to report its device."""
        since = self.unreported_since.get(reservation.uid, now)
        return self.agent_timeout - timedelta(seconds=now - since)

    def overdue(self, now: float) -> list[Reservation]:
        """Return the reservations whose agent has exceeded the timeout."""
        unreported = unreported_reservations(self.reservations)
        return [reservation for reservation in unreported if self.time_left(reservation, now) <= timedelta(0)]

    def note_unreported(self, now: float) -> None:
        """Note since when reservations have no device."""
        before, unreported = self.unreported_since, unreported_reservations(self.reservations)
        self.unreported_since = {reservation.uid: before.get(reservation.uid, now) for reservation in unreported}
