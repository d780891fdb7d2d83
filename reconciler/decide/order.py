"""The order of the requests for one pod. Pure.

Attempts and rollbacks of one pod's requests are serial: what one has prepared (a label, a ResourceClaim's devices, a
ConfigMap) and what another rolls back may be the same object, and the pod does not show which is whose. The oldest
request precedes, then the lower name, until it has ended and nothing of it is left to roll back. Decision 93.
"""

from collections.abc import Iterable

from shared.api import names
from shared.api.bindrequest import BindRequest, Phase
from shared.api.meta import ObjectKey


def first_of_pod(request: BindRequest, of_pod: Iterable[BindRequest]) -> ObjectKey | None:
    """Return the first preceding request for the same pod; None if there is none. ``of_pod`` may contain it."""
    mine = _turn(request)
    earlier = [
        other
        for other in of_pod
        if other.key != request.key
        and other.pod_uid == request.pod_uid
        and _has_a_turn(other)
        and _turn(other) < mine
    ]
    return min(earlier, key=_turn).key if earlier else None


def _has_a_turn(request: BindRequest) -> bool:
    """Return whether the request still needs an attempt or a rollback."""
    if names.FINALIZER in request.finalizers:
        return request.phase is not Phase.SUCCEEDED
    return request.phase is Phase.PENDING and not request.deleting


def _turn(request: BindRequest) -> tuple[str, str]:
    return (request.raw["metadata"].get("creationTimestamp", ""), request.key.name)
