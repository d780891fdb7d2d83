"""Whose turn it is among the requests for one pod.

Pure. Attempts and rollbacks of one pod's requests are serial: what one has prepared (a label, a claim's devices, a
ConfigMap) and what another takes back may be the same thing, and on the pod nobody can tell them apart. The oldest
goes first, then by name; its turn lasts until it has ended and nothing of it is left to undo.
"""

from collections.abc import Iterable

from shared.api import names
from shared.api.bindrequest import BindRequest, Phase
from shared.api.meta import ObjectKey


def first_of_pod(request: BindRequest, of_pod: Iterable[BindRequest]) -> ObjectKey | None:
    """Return the request for the same pod that goes first; None if this one does. ``of_pod`` may contain it."""
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
    """Return whether there is anything to do, or to undo, for the request."""
    if names.FINALIZER in request.finalizers:
        return request.phase is not Phase.SUCCEEDED
    return request.phase is Phase.PENDING and not request.deleting


def _turn(request: BindRequest) -> tuple[str, str]:
    return (request.raw["metadata"].get("creationTimestamp", ""), request.key.name)
