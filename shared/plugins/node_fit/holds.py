"""Room on nodes that is promised and not yet visible: pods that passed the check and are on their way to the node.

A check lists the node's pods and then judges. A pod that another attempt binds meanwhile may be missing in that list
and, the attempt being over, among the promises too. So a check counts every pod that was promised room at any moment
since it began; that its list shows the pod as well is seen by the UID.

In memory and of one process: the leader's. After a restart the pods promised room before are bound, and listed, or
are judged anew.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from shared.api.meta import ObjectKey, ObjectUID
from shared.plugins.node_fit.rules import Amounts


@dataclass(frozen=True, slots=True)
class Hold:
    """Room for one pod."""

    node: str
    pod: ObjectUID
    needs: Amounts


@dataclass(eq=False, slots=True)
class Check:
    """A look at a node under way, and the pods that were promised room on it since it began."""

    node: str
    promised: dict[ObjectUID, Amounts] = field(default_factory=dict)


class Holds:
    """Promises by request, and the checks under way."""

    def __init__(self) -> None:
        self._holds: dict[ObjectKey, Hold] = {}
        self._checks: set[Check] = set()

    def __len__(self) -> int:
        return len(self._holds)

    def begin(self, node: str) -> Check:
        """Begin a look at a node; end it with ``end``, whatever comes of it."""
        promised = {hold.pod: hold.needs for hold in self._holds.values() if hold.node == node}
        check = Check(node, promised)
        self._checks.add(check)
        return check

    def end(self, check: Check) -> None:
        """The look is over."""
        self._checks.discard(check)

    def put(self, request: ObjectKey, hold: Hold) -> None:
        """Promise room; what the request was promised before is given up."""
        self._holds[request] = hold
        for check in self._checks:
            if check.node == hold.node:
                check.promised[hold.pod] = hold.needs

    def drop(self, request: ObjectKey) -> None:
        """Give the room up: the pod is on its node and seen there, or will not come."""
        self._holds.pop(request, None)

    def clear(self) -> None:
        """Give everything up."""
        self._holds.clear()


def unseen(promised: Mapping[ObjectUID, Amounts], listed: frozenset[ObjectUID], own: ObjectUID) -> list[Amounts]:
    """Return what is promised to pods that a list does not show; the pod's own promise is none."""
    return [needs for pod, needs in promised.items() if pod != own and pod not in listed]
