"""Resources assumed for pods that are being bound: races between checks of one node, step by step."""

from decimal import Decimal

from bowline.api.meta import ObjectKey, ObjectUID
from bowline.plugins.node_fit.assumed_pods import AssumedPod, AssumedPods, not_listed

A, B = ObjectKey("team", "a"), ObjectKey("team", "b")
UID_A, UID_B = ObjectUID("uid-a"), ObjectUID("uid-b")
NEEDS = {"cpu": Decimal(1)}
OF_A, OF_B = AssumedPod("n", UID_A, NEEDS), AssumedPod("n", UID_B, NEEDS)
NO_PODS: frozenset[ObjectUID] = frozenset()


def test_a_pod_assumed_during_another_check_is_counted() -> None:
    assumed_pods = AssumedPods()
    check = assumed_pods.begin("n")
    assumed_pods.assume(A, AssumedPod("n", UID_A, NEEDS))
    assert not_listed(check.assumed_pods, NO_PODS, OF_B) == [NEEDS]


def test_a_pod_bound_and_dropped_during_another_check_is_counted() -> None:
    # B has listed the node's pods before A was bound; A's assumption is dropped before B decides.
    assumed_pods = AssumedPods()
    check = assumed_pods.begin("n")
    assumed_pods.assume(A, AssumedPod("n", UID_A, NEEDS))
    assumed_pods.drop(A)
    assert not_listed(check.assumed_pods, NO_PODS, OF_B) == [NEEDS]
    assumed_pods.end(check)
    assert not_listed(assumed_pods.begin("n").assumed_pods, NO_PODS, OF_B) == []


def test_a_pod_is_counted_once_and_never_against_itself() -> None:
    assumed_pods = AssumedPods()
    assumed_pods.assume(A, AssumedPod("n", UID_A, NEEDS))
    check = assumed_pods.begin("n")
    assert not_listed(check.assumed_pods, frozenset({UID_A}), OF_B) == [], "the list contains it"
    assert not_listed(check.assumed_pods, NO_PODS, OF_A) == []


def test_a_device_of_a_claim_that_both_pods_have_is_counted_once() -> None:
    shared, own = ObjectKey("team", "shared"), ObjectKey("team", "own")
    needs = {**NEEDS, "device drv/pool/d0": Decimal(1)}
    first = AssumedPod("n", UID_A, needs, frozenset({shared}))
    assert not_listed({UID_A: first}, NO_PODS, AssumedPod("n", UID_B, needs, frozenset({shared}))) == [NEEDS]
    assert not_listed({UID_A: first}, NO_PODS, AssumedPod("n", UID_B, needs, frozenset({own}))) == [needs]
