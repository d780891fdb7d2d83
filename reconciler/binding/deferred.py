"""Deferred completions: requests whose pod is bound, but whose status does not report it yet.

Completing (post_bind, finalizer, Succeeded, event) takes more writes than the bind itself, and the pod starts without
it. So while more requests are queued than there are workers, a bound request is requeued with low priority; that lane
always has a share of the workers. Losing this state is safe: after a restart the pod is found on its node, and the
request is completed. Decision 101.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from reconciler.binding.read import Snapshot
from reconciler.binding.requeue import Result
from reconciler.binding.state import RequestState
from shared.api.bindrequest import BindRequest, Phase
from shared.api.meta import ObjectKey
from shared.framework.binding.context import BindContext

# After a crash the next process needs one live read for each of them; 500 take a few seconds.
AT_MOST = 500
# A key added with a delay enters the queue with low priority.
LATER = Result(timedelta(milliseconds=1))


@dataclass(frozen=True, slots=True)
class Bound:
    """A deferred completion: the attempt's snapshot, start time and context; post_bind receives the same context."""

    sight: Snapshot
    started: datetime
    context: BindContext


class DeferredCompletions:
    """The deferred completions. ``in_line`` returns how many keys are queued; ``workers``: the number of workers."""

    def __init__(self, in_line: Callable[[], int], workers: int) -> None:
        self._in_line = in_line
        self._workers = workers
        self._bound: dict[ObjectKey, Bound] = {}

    def __len__(self) -> int:
        return len(self._bound)

    def __contains__(self, key: ObjectKey) -> bool:
        return key in self._bound

    def put_off(self, key: ObjectKey, bound: Bound) -> bool:
        """Defer a completion; returns False if it must be done now."""
        if self._in_line() <= self._workers or len(self._bound) >= AT_MOST:
            return False
        self._bound[key] = bound
        return True

    def take(self, key: ObjectKey) -> Bound | None:
        """Remove and return a deferred completion. If it fails, an ordinary reconcile follows."""
        return self._bound.pop(key, None)

    def clear(self) -> None:
        """Drop everything: this process is no longer the leader."""
        self._bound.clear()


def still_to_finish(known: RequestState | None, stored: BindRequest | None) -> BindRequest | None:
    """Return the request whose deferred completion can continue; None if an ordinary reconcile must decide."""
    if known is None or known.done or stored is None or stored.uid != known.uid:
        return None
    newest = known.newest(stored)
    return newest if newest is not None and not newest.deleting and newest.phase is Phase.PENDING else None
