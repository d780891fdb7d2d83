"""What the watches show of the groups: reserved devices without users, used devices without reservation. Pure.

KAI-Scheduler does not count reservation pods: once the last pod of a group has ended, it assigns the device to
another pod. Idle groups of a node are therefore checked, and their devices released, before another pod is bound to
the node. This is only a trigger: the live check before a delete covers claims and pods that the watches do not show.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from bowline.api import names
from bowline.api.gpu_share import gpu_groups
from bowline.api.meta import Object, identity_of
from bowline.plugins.gpu_sharing.reservation import Reservation, view_reservation


@dataclass(slots=True)
class _Watched:
    """What is shown of one group. ``reservations``: by the pod's name, those that have ended too: they stay until
    somebody deletes them.
    """

    reservations: dict[str, Reservation] = field(default_factory=dict)
    users: int = 0

    @property
    def is_reserved(self) -> bool:
        """Whether a reservation pod has the group's device."""
        return any(reservation.holds for reservation in self.reservations.values())

    @property
    def is_unreserved(self) -> bool:
        """Whether pods use the device and nothing reserves it."""
        return self.users > 0 and not self.is_reserved

    @property
    def is_idle(self) -> bool:
        """Whether a reservation pod may be unused: one that only blocks a device in a recovery is."""
        blocks = any(reservation.is_blocker for reservation in self.reservations.values())
        return bool(self.reservations) and (not self.users or blocks)


class WatchedGroups:
    """Follows the watches of reservation pods and of sharing pods."""

    def __init__(self) -> None:
        self._groups: defaultdict[str, _Watched] = defaultdict(_Watched)
        # By node and device: the groups of the reservation pods that hold it, by the pod's name.
        self._holders: dict[tuple[str, str], dict[str, str]] = {}
        self._to_look_at: set[str] = set()

    def reservation_changed(self, old: Object | None, new: Object | None) -> frozenset[str]:
        """Apply an event of a reservation pod; both as returned by ``transform_reservation``.

        Returns its groups that are to be looked at: its users may have lost their device, or have it again.
        """
        groups = {pod["reservation"].group for pod in (old, new) if pod is not None}
        before = self._to_look_at & groups
        for pod in filter(None, (old, new)):
            reservation: Reservation = pod["reservation"]
            device = reservation.node, reservation.device
            holders = self._holders.setdefault(device, {}) if reservation.holds else {}
            if pod is old:
                self._groups[reservation.group].reservations.pop(reservation.key.name, None)
                holders.pop(reservation.key.name, None)
            else:
                self._groups[reservation.group].reservations[reservation.key.name] = reservation
                holders[reservation.key.name] = reservation.group
            if reservation.holds and not holders:
                del self._holders[device]
        self._update(groups)
        return frozenset(group for group in before | self._to_look_at & groups if self.has_users(group))

    def user_changed(self, old: Object | None, new: Object | None) -> frozenset[str]:
        """Apply an event of a sharing pod; both as returned by ``transform_user``.

        Returns its groups that are to be looked at: the last user has left one, or uses one that nothing reserves.
        """
        before, now = groups_of(old), groups_of(new)
        for group in before:
            self._groups[group].users -= 1
        for group in now:
            self._groups[group].users += 1
        self._update(before | now)
        # Of one without users the reservation may not be shown yet, or its device was lost.
        return frozenset(group for group in before | now if not self.has_users(group) or group in self._to_look_at)

    def has_users(self, group: str) -> bool:
        """Return whether the watch shows a pod that uses the group's device."""
        return group in self._groups and self._groups[group].users > 0

    def is_reserved(self, group: str) -> bool:
        """Return whether the watch shows a reservation pod that has the group's device."""
        return group in self._groups and self._groups[group].is_reserved

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
        return sum(self._groups[group].is_unreserved for group in self._to_look_at)

    @property
    def reservations(self) -> Iterator[Reservation]:
        """All reservation pods that have not ended."""
        for watched in self._groups.values():
            yield from (entry for entry in watched.reservations.values() if not entry.has_ended)

    def on_node(self, node: str) -> frozenset[str]:
        """Return the idle groups whose device is on the node: none of which all reservation pods have ended."""
        return frozenset(
            group
            for group in self._to_look_at
            if self._groups[group].is_idle
            and any(not entry.has_ended and entry.node == node for entry in self._groups[group].reservations.values())
        )

    def _update(self, groups: Collection[str]) -> None:
        for group in groups:
            watched = self._groups[group]
            is_due = watched.is_idle or watched.is_unreserved
            (self._to_look_at.add if is_due else self._to_look_at.discard)(group)
            if not watched.users and not watched.reservations:
                del self._groups[group]


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
    """Keep a reservation pod.

    One of ours that has lost its label has the empty group; any other pod without a group is none.
    """
    reservation = view_reservation(pod)
    is_reservation = reservation.group or reservation.is_own
    return {"metadata": identity_of(pod), "reservation": reservation} if is_reservation else None
