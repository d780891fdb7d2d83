"""Resources assumed for pods that are being bound: races between checks of one node, step by step."""

from decimal import Decimal

from bowline.api.meta import ObjectKey, ObjectUID
from bowline.plugins.node_fit.assumed_pods import AssumedPod, AssumedPods, not_listed

A, B = ObjectKey("team", "a"), ObjectKey("team", "b")
UID_A, UID_B = ObjectUID("uid-a"), ObjectUID("uid-b")
NEEDS = {"cpu": Decimal(1)}
NO_PODS: frozenset[ObjectUID] = frozenset()


def test_a_pod_assumed_during_another_check_is_counted() -> None:
    assumed_pods = AssumedPods()
    check = assumed_pods.begin("n")
    assumed_pods.assume(A, AssumedPod("n", UID_A, NEEDS))
    assert not_listed(check.assumed_requests, NO_PODS, UID_B) == [NEEDS]


def test_a_pod_bound_and_dropped_during_another_check_is_counted() -> None:
    # B has listed the node's pods before A was bound; A's assumption is dropped before B decides.
    assumed_pods = AssumedPods()
    check = assumed_pods.begin("n")
    assumed_pods.assume(A, AssumedPod("n", UID_A, NEEDS))
    assumed_pods.drop(A)
    assert not_listed(check.assumed_requests, NO_PODS, UID_B) == [NEEDS]
    assumed_pods.end(check)
    assert not_listed(assumed_pods.begin("n").assumed_requests, NO_PODS, UID_B) == []


def test_a_pod_is_counted_once_and_never_against_itself() -> None:
    assumed_pods = AssumedPods()
    assumed_pods.assume(A, AssumedPod("n", UID_A, NEEDS))
    check = assumed_pods.begin("n")
    assert not_listed(check.assumed_requests, frozenset({UID_A}), UID_B) == [], "the list contains it"
    assert not_listed(check.assumed_requests, NO_PODS, UID_A) == []
