"""Which pods form a gang, how many of them are bound together, and when: as tables."""

from typing import Any

import pytest

from bowline.api.bindrequest import BindRequest, decode_bind_request
from bowline.api.gang import counts_as_bound, gang_of, min_members
from bowline.api.meta import ObjectKey, ObjectRef, ObjectUID
from bowline.testing.builders import bind_request, pod, stored
from bowline_reconciler.drive.gangs import is_complete
from bowline_reconciler.drive.state import PreparedPods, RequestStates

KAI = ObjectRef("scheduling.run.ai/v2alpha2", "PodGroup", ObjectKey("ns", "gang"))
KUBERNETES = ObjectRef("scheduling.k8s.io/v1beta1", "PodGroup", ObjectKey("ns", "own"))


def member(annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    body = pod("pod", "ns", **spec)
    body["metadata"]["annotations"] = annotations
    return body


@pytest.mark.parametrize(
    ("group_member", "gang"),
    [
        pytest.param(member(), None, id="no group"),
        pytest.param(member({"pod-group-name": ""}), None, id="an empty name"),
        pytest.param(member({"pod-group-name": "gang"}), KAI, id="KAI-Scheduler's"),
        pytest.param(member(schedulingGroup={"podGroupName": "own"}), KUBERNETES, id="Kubernetes'"),
        pytest.param(member(schedulingGroup={}), None, id="a scheduling group without a PodGroup"),
        pytest.param(member({"pod-group-name": "gang"}, schedulingGroup={"podGroupName": "own"}), KAI,
            id="KAI-Scheduler's of two"),
    ],
)  # fmt: skip
def test_the_group_that_a_pod_names(group_member: dict[str, Any], gang: ObjectRef | None) -> None:
    assert gang_of(group_member) == gang


LEAVES = [{"name": "a", "minMember": 2}, {"name": "b", "minMember": 3}]


@pytest.mark.parametrize(
    ("spec", "minimum"),
    [
        pytest.param({"minMember": 8}, 8, id="KAI-Scheduler's"),
        pytest.param({}, 0, id="none stated"),
        pytest.param({"minMember": -1}, 0, id="negative"),
        pytest.param({"minMember": "8"}, 0, id="no number"),
        pytest.param({"subGroups": LEAVES}, 5, id="the sum over subgroups"),
        pytest.param({"minMember": 4, "subGroups": LEAVES}, 4, id="the group's own before its subgroups'"),
        pytest.param({"minSubGroup": 1, "subGroups": LEAVES}, 0, id="a choice of subgroups has no minimum"),
        pytest.param({"schedulingPolicy": {"gang": {"minCount": 3}}}, 3, id="Kubernetes'"),
        pytest.param({"schedulingPolicy": {"basic": {}}}, 0, id="Kubernetes' without a gang"),
    ],
)
def test_how_many_pods_are_bound_together(spec: dict[str, Any], minimum: int) -> None:
    assert min_members({"spec": spec}) == minimum


@pytest.mark.parametrize(
    ("minimum", "prepared_uids", "bound_uids", "complete"),
    [
        (3, "ab", "", False),
        (3, "abc", "", True),
        (3, "a", "bc", True),
        (3, "ab", "b", False),
        (3, "a", "bcd", True),
        (1, "a", "", True),
        (0, "a", "", True),
    ],
)
def test_a_gang_is_complete_with_as_many_prepared_or_bound_pods(
    minimum: int, prepared_uids: str, bound_uids: str, complete: bool
) -> None:
    assert (
        is_complete(minimum, [ObjectUID(uid) for uid in prepared_uids], {ObjectUID(uid) for uid in bound_uids})
        is complete
    )


@pytest.mark.parametrize(
    ("change", "counts"),
    [
        pytest.param({"spec": {"nodeName": "node"}}, True, id="bound"),
        pytest.param({"spec": {}}, False, id="unbound"),
        pytest.param({"spec": {"nodeName": "node"}, "status": {"phase": "Failed"}}, False, id="failed"),
        pytest.param({"spec": {"nodeName": "node"}, "metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, False,
            id="being deleted"),
    ],
)  # fmt: skip
def test_which_bound_pods_count(change: dict[str, Any], counts: bool) -> None:
    assert counts_as_bound({"metadata": {}, **change}) is counts


# --- the prepared pods of a gang, in memory ---


def request_of(name: str) -> BindRequest:
    return decode_bind_request(stored(bind_request(name, uid=f"{name}-pod"), uid=f"{name}-uid"))


def joined(states: RequestStates, prepared_pods: PreparedPods, *requests: str) -> None:
    for name in requests:
        request = request_of(name)
        states.ensure(request).gang.prepare(request, prepared_pods)


def test_an_admission_is_of_one_gang_and_ends_when_the_pod_leaves() -> None:
    states, gang, other = RequestStates(), PreparedPods(), PreparedPods()
    joined(states, gang, "a")
    state = states.ensure(request_of("a"))
    state.gang.is_admitted = True
    joined(states, gang, "a")
    assert state.gang.is_admitted, "a repeated attempt keeps it"
    joined(states, other, "a")
    assert not state.gang.is_admitted
    state.gang.is_admitted = True
    state.gang.leave()
    joined(states, other, "a")
    assert not state.gang.is_admitted


def test_a_pod_whose_request_was_withdrawn_counts_for_no_gang_before_it_is_processed() -> None:
    states, gang = RequestStates(), PreparedPods()
    joined(states, gang, "a", "b")
    states.withdraw(request_of("a").key)
    assert list(gang.values()) == [request_of("b").key]
