"""The groups with a reserved device and no users, according to the watches. Pure.

KAI-Scheduler does not count reservation pods: once the last pod of a group has ended, it assigns the device to
another pod. Idle groups of a node are therefore checked, and their devices released, before another pod is bound to
the node. This is only a trigger: the live check before a delete covers claims and pods that the watches do not show.
"""

from collections import Counter
from collections.abc import Collection

from shared.api.meta import Object
from shared.plugins.gpu_sharing.reservation import may_be_on
from shared.plugins.gpu_sharing.watches import group_of, groups_of


class IdleGroups:
    """Follows the watches of reservation pods and of sharing pods."""

    def __init__(self) -> None:
        self._reserved: dict[str, set[str]] = {}  # by group: names of reservation pods
        self._misplaced: Counter[str] = Counter()  # reservation pods that only block a device during a recovery
        self._users: Counter[str] = Counter()
        self._idle: set[str] = set()

    def reservation_changed(self, old: Object | None, new: Object | None) -> None:
        """Apply an event of a reservation pod; both as returned by ``slim_reservation``."""
        if old is not None:
            names = self._reserved.get(group_of(old), set())
            names.discard(old["metadata"]["name"])
            if not names:
                self._reserved.pop(group_of(old), None)
            self._misplaced[group_of(old)] -= bool(old["misplaced"])
        if new is not None:
            self._reserved.setdefault(group_of(new), set()).add(new["metadata"]["name"])
            self._misplaced[group_of(new)] += bool(new["misplaced"])
        self._judge({group_of(seen) for seen in (old, new) if seen is not None})

    def user_changed(self, old: Object | None, new: Object | None) -> None:
        """Apply an event of a sharing pod; both as returned by ``slim_user``."""
        before, now = groups_of(old), groups_of(new)
        self._users.subtract(before)
        self._users.update(now)
        self._judge(before | now)

    def used(self, group: str) -> bool:
        """Return whether the watch shows a pod that uses the group's device."""
        return self._users[group] > 0

    def on(self, node: str) -> frozenset[str]:
        """Return the idle groups whose device may be on the node."""
        return frozenset(
            group for group in self._idle if any(may_be_on(node, group, name) for name in self._reserved[group])
        )

    def _judge(self, groups: Collection[str]) -> None:
        for group in groups:
            if self._users[group] <= 0:
                del self._users[group]
            if not self._misplaced[group]:
                del self._misplaced[group]
            if group in self._reserved and (group not in self._users or group in self._misplaced):
                self._idle.add(group)
            else:
                self._idle.discard(group)
