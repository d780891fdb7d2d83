"""Bindings that may still take effect although nobody knows of them: how long to leave everything as it is.

Pure. A POST without an answer may be carried out until the API server gives up on it; the same holds for one that a
predecessor sent before it died or lost the Lease, of which nothing but the request itself is known. A rollback in
that time could take away what the pod is about to run on.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from reconciler.decide.conditions import ROLLED_BACK, condition_of
from reconciler.decide.observed import Absent, PodView
from shared.api.bindrequest import BindRequest

# How far the clocks of the API server (creationTimestamp) and of this process may disagree.
CLOCK_SKEW = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class Posts:
    """What this process knows of Bindings that may be under way."""

    last_unknown: datetime | None  # of this request, without an answer
    leading_since: datetime | None  # before that somebody else may have sent one
    limit: timedelta  # for so long the API server may still carry one out


def settled_at(request: BindRequest, pod: PodView | Absent, posts: Posts) -> datetime | None:
    """Return when no Binding of the request can take effect any more; None if none can now.

    ``pod`` is what the API server itself has just said.
    """
    if not can_be_bound(request, pod):
        return None
    began = [posts.last_unknown] if posts.last_unknown is not None else []
    if posts.leading_since is not None and _may_be_inherited(request, posts.leading_since):
        began.append(posts.leading_since)
    return max(began) + posts.limit if began else None


def can_be_bound(request: BindRequest, pod: PodView | Absent) -> bool:
    """Return whether a Binding that arrives now would bind a pod that needs what was prepared for it.

    The API server refuses one for another UID, a deleting pod and a bound one; a pod that has ended needs nothing.
    """
    return isinstance(pod, PodView) and (
        pod.uid == request.pod_uid and not pod.deleting and not pod.node and not pod.finished
    )


def _may_be_inherited(request: BindRequest, leading_since: datetime) -> bool:
    """Return whether a predecessor may have worked on the request, and not already have waited before it undid."""
    if request.created is not None and request.created > leading_since + CLOCK_SKEW:
        return False
    # Written by whoever has judged and undone already, after the wait.
    return not condition_of(request, ROLLED_BACK)
