"""Assume cache of node resources: pods that passed the check and that a list of the node's pods may not show yet.

A check lists the node's pods and then decides. A pod that another attempt binds meanwhile may be missing in that list
and, as its attempt has ended, among the assumed pods too. So a check counts every pod that was assumed at any time
since the check began; a pod that is both assumed and listed is recognised by its UID and counted once.

In memory of one process, the leader. After a restart the assumed pods are either bound, and listed, or are
checked again. A lock for each node would hold a worker for the time of a list.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from bowline.api.meta import ObjectKey, ObjectUID
from bowline.plugins.node_fit.rules import DEVICE, Amounts


@dataclass(frozen=True, slots=True)
class AssumedPod:
    """The resources assumed for one pod, and its ResourceClaims."""

    node: str
    uid: ObjectUID
    requests: Amounts
    claims: frozenset[ObjectKey] = frozenset()


@dataclass(eq=False, slots=True)
class FitCheck:
    """A check in progress, and the pods that were assumed on the node at any time since it began."""

    node: str
    assumed_pods: dict[ObjectUID, AssumedPod] = field(default_factory=dict)


class AssumedPods:
    """Assumed pods by request, and the checks in progress."""

    def __init__(self) -> None:
        self._pods: dict[ObjectKey, AssumedPod] = {}
        self._checks: set[FitCheck] = set()

    def __len__(self) -> int:
        return len(self._pods)

    def begin(self, node: str) -> FitCheck:
        """Begin a check of a node. The caller must call ``end``, also on failure."""
        check = FitCheck(node, {pod.uid: pod for pod in self._pods.values() if pod.node == node})
        self._checks.add(check)
        return check

    def end(self, check: FitCheck) -> None:
        """End the check."""
        self._checks.discard(check)

    def assume(self, request: ObjectKey, pod: AssumedPod) -> None:
        """Assume the request's pod on its node, replacing an earlier entry."""
        self._pods[request] = pod
        for check in self._checks:
            if check.node == pod.node:
                check.assumed_pods[pod.uid] = pod

    def drop(self, request: ObjectKey) -> None:
        """Remove the request's pod: it is listed on its node, or will not be bound."""
        self._pods.pop(request, None)

    def clear(self) -> None:
        """Remove all pods."""
        self._pods.clear()


def not_listed(
    assumed_pods: Mapping[ObjectUID, AssumedPod], pods_in_list: frozenset[ObjectUID], own_pod: AssumedPod
) -> list[Amounts]:
    """Return the amounts of pods that the list does not contain, without the pod's own.

    Of a pod with a claim that the own pod has too, devices do not count: they may be that claim's.
    """
    others = (pod for uid, pod in assumed_pods.items() if uid != own_pod.uid and uid not in pods_in_list)
    return [
        pod.requests
        if own_pod.claims.isdisjoint(pod.claims)
        else {key: amount for key, amount in pod.requests.items() if not key.startswith(DEVICE)}
        for pod in others
    ]
