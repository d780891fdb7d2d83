"""The keys of one priority of a work queue, whose groups take turns. See ``workqueue``."""

from collections import Counter, deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Lane(Generic[K]):
    """The keys of one priority: those ready, as a FIFO per group and the turns of the groups, and those processed.

    Slow keys are not counted as processed.
    """

    def __init__(self, group: Callable[[K], Hashable]) -> None:
        self._group = group
        self._keys: set[K] = set()
        # A discarded key remains in its deque as a gap.
        self._by_group: dict[Hashable, deque[K]] = {}
        self._turns: deque[Hashable] = deque()
        self.processing: set[K] = set()
        self.processing_by_group: Counter[Hashable] = Counter()

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: K) -> bool:
        return key in self._keys

    def add(self, key: K) -> None:
        """Append a key that is not in the lane."""
        group = self._group(key)
        waiting = self._by_group.get(group)
        if waiting is None:
            waiting = self._by_group[group] = deque()
            self._turns.append(group)
        waiting.append(key)
        self._keys.add(key)

    def discard(self, key: K) -> None:
        """Remove a key from the lane."""
        self._keys.discard(key)

    def take(self, may_take: Callable[[Hashable], bool]) -> K | None:
        """Start to process the first key of the next group that ``may_take``; None if there is none."""
        for _ in range(len(self._turns)):
            group = self._turns.popleft()
            waiting = self._by_group[group]
            while waiting and waiting[0] not in self._keys:
                waiting.popleft()
            if not waiting:
                del self._by_group[group]
                continue
            self._turns.append(group)
            if may_take(group):
                key = waiting.popleft()
                self._keys.discard(key)
                self.processing.add(key)
                self.processing_by_group[group] += 1
                return key
        return None

    def done(self, key: K) -> None:
        """End the processing of a key, if it was taken from this lane."""
        if key in self.processing:
            self.processing.discard(key)
            group = self._group(key)
            self.processing_by_group[group] -= 1
            if not self.processing_by_group[group]:
                del self.processing_by_group[group]

    def clear(self) -> None:
        """Remove the ready keys."""
        self._keys.clear()
        self._by_group.clear()
        self._turns.clear()
