"""What is known of the groups: their pods as the watches show them, who asks for their devices, what was read. Pure.

KAI-Scheduler does not count reservation pods: once the last pod of a group has ended, it assigns the device to
another pod. Idle groups of a node are therefore checked, and their devices released, before another pod is bound to
the node. What the watches show is only a trigger: the live check before a delete covers claims and pods that they do
not show. What a term has learnt may be lost: unfinished requests and labels show which devices are in use. Times
are monotonic, because the wall clocks of machines differ and may be set.
"""

import asyncio
import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from bowline.api import names
from bowline.api.gpu_share import gpu_groups
from bowline.api.meta import Object, ObjectKey, ObjectUID, identity_of
from bowline.plugins.gpu_sharing.reservation import DeviceRequest, Held, Reservation, view_reservation


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
    """One group, kept while any of it says something."""

    name: str
    # As the watches show them, by the pod's name; those that have ended too: they stay until somebody deletes them.
    watched: dict[str, Reservation] = field(default_factory=dict)
    users: int = 0
    # Held during a pass, so that one at a time reads and writes the group's reservation pods.
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    passes: int = 0  # those that wait for the lock, and the one in progress
    read_at: float = 0.0  # when the last read of its reservation pods began
    claims: dict[ObjectKey, DeviceRequest] = field(default_factory=dict)  # by request
    reservations: list[Reservation] = field(default_factory=list)  # as of the pass in progress
    unreported: dict[ObjectUID, float] = field(default_factory=dict)  # since when those have not reported a device
    loss: Loss | None = None  # of a device that pods use and no reservation holds

    def read(self, reservations: list[Reservation], at: float) -> None:
        """Store the reservation pods that a read which began then has returned."""
        self.reservations, self.read_at = reservations, at
        unreported = (entry.uid for entry in reservations if entry.is_unreported)
        self.unreported = {uid: self.unreported.get(uid, at) for uid in unreported}

    def is_silent(self, reservation: Reservation, cutoff: float) -> bool:
        """Whether the reservation may still report its device, and has not since ``cutoff`` or longer."""
        return reservation.is_unreported and self.unreported.get(reservation.uid, math.inf) <= cutoff

    @property
    def is_held(self) -> bool:
        """Whether a reservation pod that was read has the group's device."""
        return any(reservation.holds for reservation in self.reservations)

    @property
    def is_reserved(self) -> bool:
        """Whether the watch shows a reservation pod that has the group's device."""
        return any(reservation.holds for reservation in self.watched.values())

    @property
    def is_unreserved(self) -> bool:
        """Whether pods use the device and nothing reserves it."""
        return self.users > 0 and not self.is_reserved

    @property
    def is_idle(self) -> bool:
        """Whether a reservation pod may be unused: one that only blocks a device in a recovery is."""
        blocks = any(reservation.is_blocker for reservation in self.watched.values())
        return bool(self.watched) and (not self.users or blocks)

    @property
    def is_empty(self) -> bool:
        """Whether nothing has to be kept of the group."""
        return not (self.users or self.watched or self.is_active)

    @property
    def is_active(self) -> bool:
        """Whether this term has to keep something of the group."""
        return bool(self.passes or self.claims or self.loss)

    @property
    def is_searched(self) -> bool:
        """Whether a search for the lost device is on."""
        return self.loss is not None and self.loss.last_uid is not None

    @property
    def claimed_nodes(self) -> set[str]:
        """The nodes on which a claim needs the device."""
        return {claim.node for claim in self.claims.values()}

    @property
    def joined(self) -> list[DeviceRequest]:
        """The claims that were given the device: their pods are about to be bound with it."""
        return [claim for claim in self.claims.values() if isinstance(claim.answer, Held)]


class Groups:
    """All groups by name."""

    def __init__(self) -> None:
        self._groups: dict[str, Group] = {}
        self._claimed_by: dict[ObjectKey, set[str]] = {}  # the groups of each request's claims
        # By node and device: the groups of the reservation pods that hold it, by the pod's name.
        self._holders: dict[tuple[str, str], dict[str, str]] = {}
        self._to_look_at: set[str] = set()

    def __getitem__(self, name: str) -> Group:
        """Return the group; one of which nothing is known is new, and not kept."""
        return self._groups.get(name) or Group(name)

    def keep(self, name: str) -> Group:
        """Return the group, which is kept until it is empty."""
        return self._groups.setdefault(name, Group(name))

    def drop_empty(self, group: Group) -> None:
        """Forget the group if nothing of it has to be kept."""
        if group.is_empty and self._groups.get(group.name) is group:
            del self._groups[group.name]

    # --- claims ---

    @property
    def sizes(self) -> dict[str, int]:
        """How much this term remembers, by kind."""
        return {"groups": sum(group.is_active for group in self._groups.values()), "claimants": len(self._claimed_by)}

    def add_claim(self, claim: DeviceRequest) -> Group:
        """Keep the claim, in place of the request's earlier one; returns its group."""
        group = self.keep(claim.group)
        group.claims[claim.request] = claim
        self._claimed_by.setdefault(claim.request, set()).add(claim.group)
        return group

    def claimed_by(self, request: ObjectKey) -> frozenset[str]:
        """Return the groups that the request claims."""
        return frozenset(self._claimed_by.get(request, ()))

    def release_claims(self, request: ObjectKey) -> None:
        """Drop the request's claims."""
        for name in self._claimed_by.pop(request, ()):
            group = self._groups[name]
            del group.claims[request]
            self.drop_empty(group)

    def end_term(self) -> None:
        """Forget what is known by this term only. A pass that outlasts it goes on with the same groups."""
        for request in list(self._claimed_by):
            self.release_claims(request)
        for group in list(self._groups.values()):
            group.loss, group.unreported = None, {}
            self.drop_empty(group)

    # --- watches ---

    def reservation_changed(self, old: Object | None, new: Object | None) -> frozenset[str]:
        """Apply an event of a reservation pod; both as returned by ``transform_reservation``.

        Returns its groups that are to be looked at: its users may have lost their device, or have it again.
        """
        names_of_groups = {pod["reservation"].group for pod in (old, new) if pod is not None}
        before = self._to_look_at & names_of_groups
        for pod in filter(None, (old, new)):
            reservation: Reservation = pod["reservation"]
            device = reservation.node, reservation.device
            holders = self._holders.setdefault(device, {}) if reservation.holds else {}
            if pod is old:
                self.keep(reservation.group).watched.pop(reservation.key.name, None)
                holders.pop(reservation.key.name, None)
            else:
                self.keep(reservation.group).watched[reservation.key.name] = reservation
                holders[reservation.key.name] = reservation.group
            if reservation.holds and not holders:
                del self._holders[device]
        self._update(names_of_groups)
        return frozenset(name for name in before | self._to_look_at & names_of_groups if self[name].users)

    def user_changed(self, old: Object | None, new: Object | None) -> frozenset[str]:
        """Apply an event of a sharing pod; both as returned by ``transform_user``.

        Returns its groups that are to be looked at: the last user has left one, or uses one that nothing reserves.
        """
        before, now = groups_of(old), groups_of(new)
        for name in before:
            self.keep(name).users -= 1
        for name in now:
            self.keep(name).users += 1
        self._update(before | now)
        # Of one without users the reservation may not be shown yet, or its device was lost.
        return frozenset(name for name in before | now if not self[name].users or name in self._to_look_at)

    def holders(self, node: str, device: str) -> frozenset[str]:
        """Return the groups whose reservation pods hold the device: several where a device plugin offers it so."""
        return frozenset(self._holders.get((node, device), {}).values())

    @property
    def to_look_at(self) -> frozenset[str]:
        """The groups that are idle or unreserved."""
        return frozenset(self._to_look_at)

    @property
    def unreserved(self) -> int:
        """The number of groups that pods use and nothing reserves."""
        return sum(self._groups[name].is_unreserved for name in self._to_look_at)

    @property
    def reservations(self) -> Iterator[Reservation]:
        """All reservation pods that have not ended."""
        for group in self._groups.values():
            yield from (entry for entry in group.watched.values() if not entry.has_ended)

    def on_node(self, node: str) -> frozenset[str]:
        """Return the idle groups whose device is on the node: none of which all reservation pods have ended."""
        return frozenset(
            name
            for name in self._to_look_at
            if self._groups[name].is_idle
            and any(not entry.has_ended and entry.node == node for entry in self._groups[name].watched.values())
        )

    def _update(self, changed: Collection[str]) -> None:
        for group in map(self._groups.__getitem__, changed):
            is_due = group.is_idle or group.is_unreserved
            (self._to_look_at.add if is_due else self._to_look_at.discard)(group.name)
            self.drop_empty(group)


# --- transforms: only the fields in use are cached ---


def groups_of(pod: Object | None) -> frozenset[str]:
    """Return the groups that a pod is labelled with."""
    return gpu_groups(pod["metadata"].get("labels") or {}) if pod is not None else frozenset()


def transform_user(pod: dict[str, Any]) -> Object:
    """Keep identity of a pod, and the labels of a sharing one: its groups, and the label that the watch selects."""
    labels = pod["metadata"].get("labels") or {}
    sharing_labels = {
        key: labels[key] for key in labels if key == names.LABEL_GPU_SHARING or gpu_groups({key: labels[key]})
    }
    return {"metadata": {**identity_of(pod), "labels": sharing_labels}}


def transform_reservation(pod: dict[str, Any]) -> Object | None:
    """Keep a reservation pod: any other pod of the namespace has no group."""
    reservation = view_reservation(pod)
    return {"metadata": identity_of(pod), "reservation": reservation} if reservation.group else None
