"""Pods that are on their node while their requests do not say so yet: others, not bound yet, come first.

What follows a bind (post_bind, the finalizer, Succeeded, the event) is more writes than the bind itself, and nothing
waits for it: the pod starts meanwhile. So where more requests stand in line than there are workers, a request that
has been bound stands in line again, in the one for what may wait, which is served all the time. All that is here may
be lost: whoever comes next sees a pod on its node and finishes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from reconciler.binding.read import Sight
from reconciler.binding.requeue import Again
from reconciler.binding.state import Memory
from shared.api.bindrequest import BindRequest, Phase
from shared.api.meta import ObjectKey
from shared.framework.binding.context import BindContext

# No more than a successor looks up within seconds, should this process be killed: one call for each.
AT_MOST = 500
# What a clock brings back goes into the line that may wait.
LATER = Again(timedelta(milliseconds=1))


@dataclass(frozen=True, slots=True)
class Bound:
    """What the attempt saw, when it began, and its context: post_bind is of the same attempt."""

    sight: Sight
    started: datetime
    context: BindContext


class Afterwards:
    """Who is to be finished later. ``in_line`` says how many wait for a first look, ``workers`` how many look."""

    def __init__(self, in_line: Callable[[], int], workers: int) -> None:
        self._in_line = in_line
        self._workers = workers
        self._bound: dict[ObjectKey, Bound] = {}

    def __len__(self) -> int:
        return len(self._bound)

    def __contains__(self, key: ObjectKey) -> bool:
        return key in self._bound

    def put_off(self, key: ObjectKey, bound: Bound) -> bool:
        """Keep what is to be finished for later; False if it is to be finished at once."""
        if self._in_line() <= self._workers or len(self._bound) >= AT_MOST:
            return False
        self._bound[key] = bound
        return True

    def take(self, key: ObjectKey) -> Bound | None:
        """Return what was kept, once: what goes wrong from here on is for a pass that looks anew."""
        return self._bound.pop(key, None)

    def clear(self) -> None:
        """Forget everything: this process no longer leads."""
        self._bound.clear()


def still_to_finish(known: Memory | None, stored: BindRequest | None) -> BindRequest | None:
    """Return the request that is to be finished as it was left; None if a pass must look at it anew."""
    if known is None or known.done or stored is None or stored.uid != known.uid:
        return None
    newest = known.newest(stored)
    return newest if newest is not None and not newest.deleting and newest.phase is Phase.PENDING else None
