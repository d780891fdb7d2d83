"""Taints of nodes and the tolerations of pods, matched as kube-scheduler matches them. Pure.

A cordoned node has no taint until kube-controller-manager writes it, so ``spec.unschedulable`` counts as one.
A node that is not ready has a taint as well; its condition is not read: it changes before the taint, and
kube-scheduler does not read it either.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from bowline.api.meta import Object
from bowline.api.selectors import int64_of

CORDONED: Final[Mapping[str, str]] = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
# Of a pod: one with more is not bound, because each event of a node compares them.
MAX_TOLERATIONS: Final = 512
# The node lifecycle controller's own, by the health that the kubelet reports or does not report.
_HEALTH: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
# PreferNoSchedule only influences the choice between nodes.
_HARD_EFFECTS: Final = ("NoSchedule", "NoExecute")


def hard_taints(node_spec: Object) -> tuple[Object, ...]:
    """Return the taints of a node that keep pods without a toleration away; first that of a cordon."""
    taints = tuple(taint for taint in node_spec.get("taints") or () if taint.get("effect") in _HARD_EFFECTS)
    return (CORDONED, *taints) if node_spec.get("unschedulable") else taints


def is_of_health(taint: Object) -> bool:
    """Return whether the taint says that the node is not ready, which a restart of its kubelet causes as well."""
    return taint.get("key") in _HEALTH


def untolerated(taints: Iterable[Object], tolerations: Sequence[Object]) -> Object | None:
    """Return the first taint that no toleration matches; None if the pod tolerates all."""
    return next((taint for taint in taints if not any(tolerates(item, taint) for item in tolerations)), None)


def describe(taint: Object) -> str:
    """Return the taint in kubectl's notation: ``key=value:Effect``."""
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint.get('key')}{value}:{taint.get('effect')}"


def tolerates(toleration: Object, taint: Object) -> bool:
    """Return whether a toleration, of a pod or of a device request, matches; an empty key or effect matches each."""
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    if toleration.get("key") and toleration["key"] != taint.get("key"):
        return False
    operator = toleration.get("operator") or "Equal"
    if operator == "Exists":
        return True
    limit, value = toleration.get("value") or "", taint.get("value") or ""
    if operator == "Equal":
        return bool(limit == value)
    # Kubernetes 1.35 and newer, behind a gate. The toleration of an allocation may have any text.
    limit_number, number = int64_of(limit), int64_of(value)
    if operator not in ("Lt", "Gt") or limit_number is None or number is None:
        return False
    return number < limit_number if operator == "Lt" else number > limit_number
