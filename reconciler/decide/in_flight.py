"""Unacknowledged Bindings that may still take effect: how long nothing may be rolled back. Pure.

The API server may execute a POST whose reply was lost until its request timeout ends. That also applies to a POST
that the previous leader sent before it died or lost the Lease; nothing is known of it but the request itself. A
rollback in that time could remove what the pod is about to run on.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from reconciler.decide.conditions import ROLLED_BACK, condition_of
from reconciler.decide.observed import Absent, PodView
from shared.api.bindrequest import BindRequest

# Largest expected difference between the clocks of the API server (creationTimestamp) and of this process.
CLOCK_SKEW = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class Posts:
    """What this process knows of Bindings that may be in flight."""

    last_unknown: datetime | None  # the last POST for this request without a reply
    leading_since: datetime | None  # before this time another process may have sent one
    limit: timedelta  # how long the API server may take to execute one


def settled_at(request: BindRequest, pod: PodView | Absent, posts: Posts) -> datetime | None:
    """Return when no Binding of the request can take effect any more; None if none can now.

    ``pod`` must have been read live.
    """
    if not can_be_bound(request, pod):
        return None
    began = [posts.last_unknown] if posts.last_unknown is not None else []
    if posts.leading_since is not None and _may_be_inherited(request, posts.leading_since):
        began.append(posts.leading_since)
    return max(began) + posts.limit if began else None


def can_be_bound(request: BindRequest, pod: PodView | Absent) -> bool:
    """Return whether a Binding that arrives now would bind a pod that needs what was prepared for it.

    The API server rejects a Binding for another UID, a deleting pod and a bound pod; a finished pod needs nothing.
    """
    return isinstance(pod, PodView) and (
        pod.uid == request.pod_uid and not pod.deleting and not pod.node and not pod.finished
    )


def _may_be_inherited(request: BindRequest, leading_since: datetime) -> bool:
    """Return whether a previous leader may have a Binding of the request in flight, and has not rolled back."""
    if request.created is not None and request.created > leading_since + CLOCK_SKEW:
        return False
    # That process has already waited, and then rolled back.
    return not condition_of(request, ROLLED_BACK)
