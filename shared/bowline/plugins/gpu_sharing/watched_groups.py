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
from bowline.api.meta import Object, identity_of, uid_of
from bowline.plugins.gpu_sharing.reservation import may_be_on, view_reservation


@dataclass(slots=True)
class _Watched:
    """What is shown of one group. ``reservations``: from ``transform_reservation``, by the pod's name.

    ``ended``: the names of reservation pods that have ended. They hold no device, and one that nobody deletes stays.
    """

    reservations: dict[str, Object] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    users: int = 0

    @property
    def is_reserved(self) -> bool:
        """Whether a reservation pod has the group's device."""
        pods = self.reservations.values()
        return any(pod["device"] and not pod["misplaced"] and not pod["deleting"] for pod in pods)

    @property
    def is_idle(self) -> bool:
        """Whether a reservation pod may be unused: one that only blocks a device in a recovery is."""
        is_blocked = any(entry["misplaced"] for entry in self.reservations.values())
        return bool(self.reservations or self.ended) and (not self.users or is_blocked)


class WatchedGroups:
    """Follows the watches of reservation pods and of sharing pods."""

    def __init__(self) -> None:
        self._groups: defaultdict[str, _Watched] = defaultdict(_Watched)
        # By device: the groups of the reservation pods that hold it, by the pod's name.
        self._holders: dict[str, dict[str, str]] = {}
        self._idle: set[str] = set()
        self._unreserved: set[str] = set()

    def reservation_changed(self, old: Object | None, new: Object | None) -> None:
        """Apply an event of a reservation pod; both as returned by ``transform_reservation``."""
        if old is not None:
            name = old["metadata"]["name"]
            self._groups[group_of(old)].reservations.pop(name, None)
            holders = self._holders.get(old["device"], {})
            holders.pop(name, None)
            if not holders:
                self._holders.pop(old["device"], None)
        if new is not None:
            name = new["metadata"]["name"]
            self._groups[group_of(new)].reservations[name] = new
            if is_unique(new["device"]) and not new["misplaced"] and not new["deleting"]:
                self._holders.setdefault(new["device"], {})[name] = group_of(new)
        self._update({group_of(reservation) for reservation in (old, new) if reservation is not None})

    def ended_changed(self, old: Object | None, new: Object | None) -> None:
        """Apply an event of an ended reservation pod; both as returned by ``transform_reservation``."""
        if old is not None:
            self._groups[group_of(old)].ended.discard(old["metadata"]["name"])
        if new is not None:
            self._groups[group_of(new)].ended.add(new["metadata"]["name"])
        self._update({group_of(reservation) for reservation in (old, new) if reservation is not None})

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
        return frozenset(
            group
            for group in before | now
            # One without users may be in neither set: its reservation is not shown yet, or its device was lost.
            if not self.has_users(group) or group in self._idle or group in self._unreserved
        )

    def has_users(self, group: str) -> bool:
        """Return whether the watch shows a pod that uses the group's device."""
        return group in self._groups and self._groups[group].users > 0

    def is_reserved(self, group: str) -> bool:
        """Return whether the watch shows a reservation pod that has the group's device."""
        return group in self._groups and self._groups[group].is_reserved

    def holders(self, device: str) -> frozenset[str]:
        """Return the groups whose reservation pods hold the device: several where a device plugin offers it so."""
        return frozenset(self._holders.get(device, {}).values())

    @property
    def to_look_at(self) -> frozenset[str]:
        """The groups that are idle or unreserved."""
        return frozenset(self._idle | self._unreserved)

    @property
    def unreserved(self) -> int:
        """The number of groups that pods use and nothing reserves."""
        return len(self._unreserved)

    @property
    def reservations(self) -> Iterator[Object]:
        """All reservation pods that have not ended, from ``transform_reservation``."""
        return (entry for watched in self._groups.values() for entry in watched.reservations.values())

    def on_node(self, node: str) -> frozenset[str]:
        """Return the idle groups whose device may be on the node: none of which all reservation pods have ended."""
        return frozenset(
            group
            for group in self._idle
            if any(may_be_on(node, group, name) for name in self._groups[group].reservations)
        )

    def _update(self, groups: Collection[str]) -> None:
        for group in groups:
            watched = self._groups[group]
            is_unreserved = watched.users > 0 and not watched.is_reserved
            for members, is_member in ((self._idle, watched.is_idle), (self._unreserved, is_unreserved)):
                (members.add if is_member else members.discard)(group)
            if not watched.users and not watched.reservations and not watched.ended:
                del self._groups[group]


# --- transforms: only the fields in use are cached ---


def groups_of(pod: Object | None) -> frozenset[str]:
    """Return the groups that a pod is labelled with."""
    return gpu_groups(pod["metadata"].get("labels") or {}) if pod is not None else frozenset()


def transform_user(pod: dict[str, Any]) -> Object:
    """Keep identity and labels of a sharing pod: its groups, and the label that the watch selects."""
    labels = pod["metadata"].get("labels") or {}
    sharing_labels = {
        key: labels[key] for key in labels if key == names.LABEL_GPU_SHARING or gpu_groups({key: labels[key]})
    }
    return {"metadata": {**identity_of(pod), "labels": sharing_labels}}


def transform_reservation(pod: dict[str, Any]) -> Object | None:
    """Keep a reservation pod's group and device, whether it is being deleted, and whether the device is an expected
    one. Whether it has ended is shown by the selector of the watch.

    One of ours that has lost its label has the empty group; any other pod without a group is none.
    """
    reservation = view_reservation(pod)
    if not reservation.group and not reservation.is_own:
        return None
    return {
        "metadata": identity_of(pod),
        "deleting": reservation.deleting,
        "device": reservation.device,
        "misplaced": reservation.is_misplaced,
        "group": reservation.group,
    }


def transform_other(pod: dict[str, Any]) -> Object:
    """Keep identity and version of a pod."""
    return {"metadata": identity_of(pod)}


def is_same_reservation(old: Object | None, new: Object | None) -> bool:
    """Return whether nothing that decides about a device differs between two states from ``transform_reservation``:
    a request has joined, or the kubelet has reported.
    """
    if old is None or new is None:
        return False
    return {**old, "metadata": uid_of(old)} == {**new, "metadata": uid_of(new)}


def group_of(reservation: Object) -> str:
    """Return the group of a reservation pod from ``transform_reservation``."""
    group: str = reservation["group"]
    return group


def has_reported(reservation: Object) -> bool:
    """Return whether the agent of a reservation pod from ``transform_reservation`` has reported its device."""
    return bool(reservation["device"])


def is_unique(device: str) -> bool:
    """Return whether the device is a UUID: an index names one on each node."""
    return device.startswith(("GPU-", "MIG-"))
