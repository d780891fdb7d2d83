"""Room promised to pods on their way: the races between looks at one node, step by step."""

from decimal import Decimal

from shared.api.meta import ObjectKey, ObjectUID
from shared.plugins.node_fit.holds import AssumedPod, AssumedPods, unseen

A, B = ObjectKey("team", "a"), ObjectKey("team", "b")
UID_A, UID_B = ObjectUID("uid-a"), ObjectUID("uid-b")
NEEDS = {"cpu": Decimal(1)}
NOBODY: frozenset[ObjectUID] = frozenset()


def test_a_check_counts_the_holds_made_before_it() -> None:
    holds = AssumedPods()
    holds.put(A, AssumedPod("n", UID_A, NEEDS))
    assert unseen(holds.begin("n").promised, NOBODY, UID_B) == [NEEDS]
    assert unseen(holds.begin("other").promised, NOBODY, UID_B) == []


def test_a_hold_made_during_another_check_is_counted() -> None:
    holds = AssumedPods()
    check = holds.begin("n")
    holds.put(A, AssumedPod("n", UID_A, NEEDS))
    assert unseen(check.promised, NOBODY, UID_B) == [NEEDS]


def test_a_hold_bound_and_dropped_during_another_check_is_counted() -> None:
    # B has listed the node's pods before A was bound; A's promise is given up before B judges.
    holds = AssumedPods()
    check = holds.begin("n")
    holds.put(A, AssumedPod("n", UID_A, NEEDS))
    holds.drop(A)
    assert unseen(check.promised, NOBODY, UID_B) == [NEEDS]
    holds.end(check)
    assert unseen(holds.begin("n").promised, NOBODY, UID_B) == []


def test_a_hold_released_during_another_check() -> None:
    holds = AssumedPods()
    holds.put(A, AssumedPod("n", UID_A, NEEDS))
    check = holds.begin("n")
    holds.drop(A)
    assert unseen(check.promised, NOBODY, UID_B) == [NEEDS], "it may have been bound after the list"


def test_a_pod_is_counted_once_and_never_against_itself() -> None:
    holds = AssumedPods()
    holds.put(A, AssumedPod("n", UID_A, NEEDS))
    check = holds.begin("n")
    assert unseen(check.promised, frozenset({UID_A}), UID_B) == [], "the list shows it"
    assert unseen(check.promised, NOBODY, UID_A) == []


def test_a_request_recreated_for_another_node_releases_the_first_hold() -> None:
    holds = AssumedPods()
    holds.put(A, AssumedPod("n", UID_A, NEEDS))
    holds.put(A, AssumedPod("m", UID_A, NEEDS))
    assert unseen(holds.begin("n").promised, NOBODY, UID_B) == []
    assert unseen(holds.begin("m").promised, NOBODY, UID_B) == [NEEDS]


def test_nothing_is_left_when_all_requests_have_ended() -> None:
    holds = AssumedPods()
    holds.put(A, AssumedPod("n", UID_A, NEEDS))
    holds.put(B, AssumedPod("n", UID_B, NEEDS))
    holds.drop(A)
    holds.drop(A)
    assert len(holds) == 1
    holds.clear()
    assert len(holds) == 0
