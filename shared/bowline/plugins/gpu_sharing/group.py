"""What the leader knows of one group: who asks for its device, and what its reservation pods have shown so far.

``group_controller`` reads and writes the objects. All of this may be lost: after a restart, unfinished requests and
labels show which devices are in use. Times are monotonic, because the wall clocks of machines differ and may be set.
"""

import asyncio
from dataclasses import dataclass, field

from bowline.api.meta import ObjectKey, ObjectUID
from bowline.plugins.gpu_sharing.reservation import DeviceRequest, Held, Reservation


@dataclass(frozen=True, slots=True)
class Loss:
    """A device that pods use and no reservation holds.

    ``until``: when the next search begins; during one, until when its last reservation may report its device.
    """

    why: str = ""  # why the last search failed; empty during the first search
    until: float = 0.0
    last_uid: ObjectUID | None = None  # the last reservation of this search; None: there is no search


@dataclass(slots=True)
class Group:
    """The state of one group, kept while any of it says something."""

    name: str
    # Held during a pass, so that one at a time reads and writes the group's reservation pods.
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    passes: int = 0  # those that wait for the lock, and the one in progress
    read_at: float = 0.0  # when the last read of its reservation pods began
    claims: dict[ObjectKey, DeviceRequest] = field(default_factory=dict)  # by request
    reservations: list[Reservation] = field(default_factory=list)  # as of the pass in progress
    loss: Loss | None = None  # of a device that pods use and no reservation holds

    @property
    def is_empty(self) -> bool:
        """Whether nothing has to be kept of the group."""
        return not (self.passes or self.claims or self.loss)

    @property
    def claimed_nodes(self) -> set[str]:
        """The nodes on which a claim needs the device."""
        return {claim.node for claim in self.claims.values()}

    @property
    def joined(self) -> list[DeviceRequest]:
        """The claims that were given the device: their pods are about to be bound with it."""
        return [claim for claim in self.claims.values() if isinstance(claim.answer, Held)]
