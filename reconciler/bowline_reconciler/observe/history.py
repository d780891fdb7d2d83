"""The last reconciles of each request: the first thing to read when a request does not progress.

In memory, for operators, bounded by REQUESTS and by ENTRIES per request. No decision depends on it. A reconcile that
only repeats the previous one (a wait that was checked again) is counted, not stored; one that only found that it is
too early is not added.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from bowline.api.meta import ObjectKey
from bowline_reconciler.decide.actions import RequeueAfter
from bowline_reconciler.observe.reconciles import MAX_WHY, ReconcileInProgress, Step

# 0.8 MB for plain binds, 10 MB if all of them have failed as often as they can (7 attempts by default).
REQUESTS = 1024
ENTRIES = 12


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One reconcile, or ``times`` equal consecutive ones, of which the last is kept."""

    at: datetime
    attempt: str
    decision: str
    outcome: str
    why: str
    ms: float
    steps: tuple[Step, ...]
    times: int = 1


class History:
    """The entries by request; the least recently reconciled request is evicted first."""

    def __init__(self, requests: int = REQUESTS, entries: int = ENTRIES) -> None:
        self._requests = requests
        self._entries = entries
        self._by_key: OrderedDict[ObjectKey, list[HistoryEntry]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_key)

    def of(self, key: ObjectKey) -> Sequence[HistoryEntry]:
        """Return the entries of a request, oldest first."""
        return tuple(self._by_key.get(key, ()))

    def latest(self, limit: int) -> Sequence[tuple[ObjectKey, HistoryEntry]]:
        """Return the most recently reconciled requests with their last entries, newest first."""
        keys = [key for key, _ in zip(reversed(self._by_key), range(limit), strict=False)]
        return [(key, self._by_key[key][-1]) for key in keys]

    def reconcile_ended(self, record: ReconcileInProgress, seconds: float) -> None:
        """Add a reconcile that has ended, unless it only found that it is too early."""
        if not record.why and record.decision in ("", RequeueAfter.__name__):
            return
        entry = HistoryEntry(
            record.began,
            record.attempt,
            record.decision,
            record.outcome,
            _shared(record.why[:MAX_WHY], record.steps),
            round(seconds * 1000, 3),
            tuple(record.steps),
        )
        entries = self._by_key.get(record.key)
        if entries is None:
            self._by_key[record.key] = [entry]
            if len(self._by_key) > self._requests:
                self._by_key.popitem(last=False)
            return
        self._by_key.move_to_end(record.key)
        if repeats(entries[-1], entry):
            entries[-1] = replace(entry, times=entries[-1].times + 1)
            return
        entries.append(entry)
        if len(entries) > self._entries:
            del entries[0]


def _shared(why: str, steps: Sequence[Step]) -> str:
    """Return the reason, as the same string object if a step has it, to save memory."""
    return next((step.why for step in steps if step.why == why), why)


def repeats(before: HistoryEntry, after: HistoryEntry) -> bool:
    """Return whether a reconcile did the same as the previous one."""
    return _gist(before) == _gist(after)


def _gist(entry: HistoryEntry) -> tuple[object, ...]:
    steps = tuple((step.plugin, step.point, step.code) for step in entry.steps)
    return (entry.attempt, entry.decision, entry.outcome, entry.why, steps)
