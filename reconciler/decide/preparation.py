"""Whether an attempt of this controller has prepared the bound pod of a request. Pure.

Another scheduler, a user or a delayed Binding may have bound a pod without an attempt of this controller. Then
nothing is known about what it needs on its node, and the status must not claim it. After a crash the pod itself is
the evidence: a Binding is sent only when everything is prepared, and carries the request's UID. Decision 116.
"""

from dataclasses import dataclass

from reconciler.decide.decide import is_rollback_incomplete
from shared.api import names
from shared.api.bindrequest import AllocationKind, BindRequest
from shared.api.meta import Object

# A pod with one of these cannot run unless prepared: ConfigMaps and devices, or allocated ResourceClaims.
_NEEDS_PREPARATION = (AllocationKind.FRACTION, AllocationKind.CLAIMS, AllocationKind.EXTENDED_CLAIM)


@dataclass(frozen=True, slots=True)
class Preparation:
    """The Prepared condition (status, reason, message) of a bound pod; ``warning`` for its owner, or empty."""

    condition: tuple[str, str, str]
    warning: str = ""


PREPARED_BY_US = Preparation(("True", "Prepared", "everything the pod needs is in place"))


def preparation(request: BindRequest, attempted: bool, standing: bool, pod: Object | None) -> Preparation:
    """Return what is known of a bound pod's preparation.

    ``attempted``: an attempt of this process has prepared everything. ``standing``: nothing was rolled back since.
    ``pod``: the pod as last read, with the annotations of its Binding.
    """
    stands = standing and not is_rollback_incomplete(request)
    annotations = ((pod or {}).get("metadata") or {}).get("annotations") or {}
    if stands and (attempted or annotations.get(names.PREPARED_FOR) == request.uid):
        return PREPARED_BY_US
    node = request.selected_node
    why = f"pod {request.pod_key.name} is on node {node}, but no attempt of this controller is known to have bound it"
    demands = request.spec.demands if request.spec is not None else frozenset()
    needs = [demand.value for demand in _NEEDS_PREPARATION if demand in demands]
    if not needs:
        return Preparation(("Unknown", "NotPrepared", why))
    why = f"{why}: {', '.join(needs)} was not prepared here; unless another component has prepared it, delete the pod"
    return Preparation(("Unknown", "NotPrepared", why), why)
