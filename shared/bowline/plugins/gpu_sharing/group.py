"""What the leader knows of one group: who asks for its device, and what its reservation pods have shown so far.

``group_controller`` reads and writes the objects. All of this may be lost: after a restart, unfinished requests and
labels show which devices are in use. Times are monotonic, because the wall clocks of machines differ and may be set.
"""

import asyncio
from dataclasses import dataclass, field

from bowline.api.meta import ObjectKey, ObjectUID
from bowline.kube.late_writes import LateWrites
from bowline.plugins.gpu_sharing.recovery import Loss
from bowline.plugins.gpu_sharing.reservation import Answer, DeviceRequest, Reservation


@dataclass(frozen=True, slots=True)
class Query:
    """A query to a group's reconcile: a claim, or None for a release. ``node``: where names are looked up."""

    claim: DeviceRequest | None
    node: str
    answer: "asyncio.Future[Answer]"
    writes: LateWrites | None  # where the caller's writes are noted


@dataclass(slots=True)
class Group:
    """The state of one group, kept while any of it says something."""

    name: str
    # In the queue: one key only, of the namespace that was the first to ask for the group.
    key: ObjectKey | None = None
    is_enqueued: bool = False  # since its last reconcile began
    # To be checked for unused devices. A claim may keep one from the check, which follows the claim's end.
    is_unchecked: bool = False
    claims: dict[ObjectKey, DeviceRequest] = field(default_factory=dict)  # by request
    queries: list[Query] = field(default_factory=list)
    reservations: list[Reservation] = field(default_factory=list)  # as of the reconcile in progress
    unreported_since: dict[ObjectUID, float] = field(default_factory=dict)  # reservations without a device
    # Why reservations were deleted whose agents exceeded the timeout, for the requests that wait for them.
    timeouts: dict[ObjectUID, str] = field(default_factory=dict)
    loss: Loss | None = None  # of a device that pods use and no reservation holds

    @property
    def is_empty(self) -> bool:
        """Whether nothing has to be kept of the group."""
        state = (
            self.key,
            self.is_unchecked,
            self.claims,
            self.queries,
            self.unreported_since,
            self.timeouts,
            self.loss,
        )
        return not any(state)

    @property
    def claimed_nodes(self) -> set[str]:
        """The nodes on which a claim needs the device."""
        return {claim.node for claim in self.claims.values()}
