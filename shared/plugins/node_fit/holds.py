"""Assume cache of node resources: pods that passed the check and that a list of the node's pods may not show yet.

A check lists the node's pods and then decides. A pod that another attempt binds meanwhile may be missing in that list
and, as its attempt has ended, among the holds too. So a check counts every pod that held resources at any time since
the check began; a pod that is both held and listed is recognised by its UID and counted once.

In memory of one process, the leader. After a restart the pods with a hold are either bound, and listed, or are
checked again. Decision 66.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from shared.api.meta import ObjectKey, ObjectUID
from shared.plugins.node_fit.rules import Amounts


@dataclass(frozen=True, slots=True)
class AssumedPod:
    """The resources assumed for one pod."""

    node: str
    pod: ObjectUID
    needs: Amounts


@dataclass(eq=False, slots=True)
class FitCheck:
    """A check in progress, and the pods that held resources on the node at any time since it began."""

    node: str
    promised: dict[ObjectUID, Amounts] = field(default_factory=dict)


class AssumedPods:
    """Holds by request, and the checks in progress."""

    def __init__(self) -> None:
        self._holds: dict[ObjectKey, AssumedPod] = {}
        self._checks: set[FitCheck] = set()

    def __len__(self) -> int:
        return len(self._holds)

    def begin(self, node: str) -> FitCheck:
        """Begin a check of a node. The caller must call ``end``, also on failure."""
        promised = {hold.pod: hold.needs for hold in self._holds.values() if hold.node == node}
        check = FitCheck(node, promised)
        self._checks.add(check)
        return check

    def end(self, check: FitCheck) -> None:
        """End the check."""
        self._checks.discard(check)

    def put(self, request: ObjectKey, hold: AssumedPod) -> None:
        """Hold resources for the request, replacing its earlier hold."""
        self._holds[request] = hold
        for check in self._checks:
            if check.node == hold.node:
                check.promised[hold.pod] = hold.needs

    def drop(self, request: ObjectKey) -> None:
        """Drop the hold: the pod is listed on its node, or will not be bound."""
        self._holds.pop(request, None)

    def clear(self) -> None:
        """Drop all holds."""
        self._holds.clear()


def unseen(promised: Mapping[ObjectUID, Amounts], listed: frozenset[ObjectUID], own: ObjectUID) -> list[Amounts]:
    """Return the amounts of pods that the list does not contain, without the pod's own."""
    return [needs for pod, needs in promised.items() if pod != own and pod not in listed]
