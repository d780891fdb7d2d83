"""Deferred completions: requests whose pod is bound, but whose status does not report it yet.

Completing (post_bind, finalizer, Succeeded, event) takes more writes than the bind itself, and the pod starts without
it. So while more request keys are ready than there are workers, a bound request is requeued with low priority; that
lane always has a share of the workers. Losing this state is safe: after a restart the pod is found on its node, and
the request is completed. Decision 101.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeGuard

from reconciler.binding.requeue import Result
from shared.api.bindrequest import BindRequest, Phase
from shared.api.meta import ObjectKey
from shared.framework.binding.context import BindContext

# After a crash the next process needs one live read for each of them; 500 take a few seconds.
MAX_DEFERRED = 500
# A key added with a delay enters the queue with low priority.
DEFER = Result(timedelta(milliseconds=1))


@dataclass(frozen=True, slots=True)
class DeferredBind:
    """A deferred completion: the attempt's context, which post_bind receives as well, and its start time."""

    context: BindContext
    started_at: datetime


class DeferredCompletions:
    """The deferred completions. ``ready_count`` returns how many keys are ready; ``workers``: how many work."""

    def __init__(self, ready_count: Callable[[], int], workers: int) -> None:
        self._ready_count = ready_count
        self._workers = workers
        self._by_key: dict[ObjectKey, DeferredBind] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def __contains__(self, key: ObjectKey) -> bool:
        return key in self._by_key

    def defer(self, key: ObjectKey, bound: DeferredBind) -> bool:
        """Defer a completion; returns False if it must be done now."""
        if self._ready_count() <= self._workers or len(self._by_key) >= MAX_DEFERRED:
            return False
        self._by_key[key] = bound
        return True

    def pop(self, key: ObjectKey) -> DeferredBind | None:
        """Remove and return a deferred completion. If it fails, an ordinary reconcile follows."""
        return self._by_key.pop(key, None)

    def clear(self) -> None:
        """Drop everything: this process is no longer the leader."""
        self._by_key.clear()


def is_resumable(latest: BindRequest | None) -> TypeGuard[BindRequest]:
    """Return whether a deferred completion can continue; if not, an ordinary reconcile must decide."""
    return latest is not None and not latest.deleting and latest.phase is Phase.PENDING
