"""The condition of a failed decision: what is stored is what is read, and what ends its effect."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bowline.api import names
from bowline.api.failed_decision import (
    ABSENT,
    Dependency,
    FailedDecision,
    claims_of,
    decision_of,
    failed_decision_of,
    node_print,
    pod_print,
)
from bowline.api.meta import ObjectKey, ObjectRef
from bowline.api.node_view import reduced_node
from bowline.testing.builders import bind_request, pod, stored

FIRST = datetime(2026, 1, 1, tzinfo=UTC)
LONGEST = timedelta(seconds=60)
SPEC = bind_request()["spec"]
LAST = FIRST + timedelta(seconds=9)
OBJECTS = (
    Dependency("Pod", "", "00000001"),
    Dependency("Node", "", ABSENT),
    Dependency("ResourceClaim", "one", "77"),
)
FAILED = FailedDecision(decision_of(SPEC), "Rejected", FIRST, LAST, failures=3, objects=OBJECTS)


def with_condition(**change: Any) -> dict[str, Any]:
    return {**stored(pod()), "status": {"conditions": [{"type": "Other"}, {**FAILED.as_condition(), **change}]}}


def content(**change: Any) -> str:
    return json.dumps({**json.loads(FAILED.as_condition()["message"]), **change})


def test_what_is_written_is_read() -> None:
    assert failed_decision_of(with_condition()) == FAILED
    retried = replace(FAILED, has_ended=False, failures=0, objects=())
    assert failed_decision_of({**pod(), "status": {"conditions": [retried.as_condition()]}}) == retried


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"type": names.CONDITION_POD_BOUND}, id="the condition for people"),
        pytest.param({"lastProbeTime": None}, id="without the time"),
        pytest.param({"message": "a sentence"}, id="a sentence"),
        pytest.param({"message": None}, id="no message"),
        pytest.param({"message": "[" * 100_000}, id="nested too deeply"),
        pytest.param({"message": "[]"}, id="another type"),
        pytest.param({"message": content(failures="many")}, id="no number"),
        pytest.param({"message": content(objects=[{"kind": "Pod"}])}, id="an object without a print"),
    ],
)
def test_other_conditions_are_no_failed_decision(change: dict[str, Any]) -> None:
    assert failed_decision_of(with_condition(**change)) is None
    assert failed_decision_of(stored(pod())) is None
    assert failed_decision_of({**pod(), "status": {"conditions": "none"}}) is None


NEXT = replace(FAILED, first=LAST, last=LAST + timedelta(seconds=1), failures=1)


@pytest.mark.parametrize(
    ("earlier", "following", "first", "failures"),
    [
        pytest.param(None, NEXT, LAST, 1, id="the first"),
        pytest.param(FAILED, NEXT, FIRST, 4, id="the same again"),
        pytest.param(replace(FAILED, reason="NodeGone"), NEXT, LAST, 1, id="for another reason"),
        pytest.param(replace(FAILED, decision=decision_of({})), NEXT, LAST, 1, id="another decision"),
        pytest.param(replace(FAILED, has_ended=False, failures=0), NEXT, FIRST, 1, id="after retries"),
        pytest.param(FAILED, replace(NEXT, has_ended=False, failures=0), FIRST, 3, id="a retry of a repetition"),
    ],
)
def test_consecutive_failures_are_one_row(
    earlier: FailedDecision | None, following: FailedDecision, first: datetime, failures: int
) -> None:
    merged = following.after(earlier)
    assert (merged.first, merged.last, merged.failures) == (first, following.last, failures)


CLAIMS = [{"name": "c", "allocation": {"devices": {"results": [{"device": "d0"}]}}}]


@pytest.mark.parametrize(
    ("change", "is_same"),
    [
        pytest.param({}, True, id="unchanged"),
        pytest.param({"selectedGPUGroups": ["another"]}, True, id="a new group has a new name in each decision"),
        pytest.param({"podUID": "u", "backoffLimit": 3}, True, id="what is not decided"),
        pytest.param({"selectedNode": "node-1"}, False, id="another node"),
        pytest.param({"resourceClaimAllocations": CLAIMS}, False, id="other devices"),
        pytest.param({"receivedGPU": {"count": 2}}, False, id="another share"),
    ],
)
def test_the_same_decision(change: dict[str, Any], is_same: bool) -> None:
    assert (decision_of({**SPEC, **change}) == decision_of(SPEC)) is is_same


@pytest.mark.parametrize(
    ("seconds", "denied_s"),
    [
        pytest.param(0, 5, id="the first failure"),
        pytest.param(12, 12, id="as long again"),
        pytest.param(900, 60, id="the longest"),
    ],
)
def test_the_backoff_doubles_the_time_of_failures(seconds: int, denied_s: int) -> None:
    last = FIRST + timedelta(seconds=seconds)
    failure = FailedDecision(decision_of(SPEC), "Rejected", FIRST, last)
    assert failure.denied_until(LONGEST) - last == timedelta(seconds=denied_s)
    assert failure.denied_until(timedelta(seconds=1)) - last == timedelta(seconds=1), "never above the setting"


@pytest.mark.parametrize(
    ("change", "is_same"),
    [
        pytest.param({"labels": {f"{names.LABEL_GPU_GROUP}/a": "a"}}, True, id="the binder's own label"),
        pytest.param({"labels": {names.LABEL_GPU_SHARING: "a"}}, True, id="the binder's label of shares"),
        pytest.param({"annotations": {"bowline.dev/gpu-groups": "a"}}, True, id="the binder's own annotation"),
        pytest.param({"resourceVersion": "99"}, True, id="a new version"),
        pytest.param({"annotations": {"example.com/mode": "b"}}, False, id="a user's annotation"),
        pytest.param({"labels": {"app": "b"}}, False, id="a user's label"),
    ],
)
def test_the_print_of_a_pod(change: dict[str, Any], is_same: bool) -> None:
    plain = stored(pod())
    changed = {**plain, "metadata": {**plain["metadata"], **change}}
    assert (pod_print(changed) == pod_print(plain)) is is_same
    assert pod_print(stored(pod(tolerations=[]))) != pod_print(plain)


def recorded(manager: str, subresource: str = "") -> dict[str, Any]:
    """A pod with a label and an annotation, and the record of who has written them."""
    labelled = stored(pod())
    keys: dict[str, Any] = {
        "f:labels": {"f:example.com/seat": {}},
        "f:annotations": {".": {}, "f:example.com/note": {}},
    }
    entry = {"manager": manager, "operation": "Update", "fieldsV1": {"f:metadata": keys}}
    labelled["metadata"] |= {
        "labels": {"example.com/seat": "7"},
        "annotations": {"example.com/note": "x"},
        "managedFields": [{**entry, "subresource": subresource} if subresource else entry],
    }
    return labelled


@pytest.mark.parametrize(
    ("recorded_pod", "is_same"),
    [
        pytest.param(recorded(names.FIELD_MANAGER_RECONCILER), True, id="by a plugin of the reconciler"),
        pytest.param(recorded("kubectl-edit"), False, id="by a user"),
        pytest.param(
            recorded(names.FIELD_MANAGER_RECONCILER, "status"), False, id="the record of another subresource"
        ),
    ],
)
def test_the_print_of_a_pod_leaves_out_what_the_binder_has_written(
    recorded_pod: dict[str, Any], is_same: bool
) -> None:
    assert (pod_print(recorded_pod) == pod_print(stored(pod()))) is is_same


def node(**spec: Any) -> dict[str, Any]:
    metadata = {"name": "n", "uid": "u", "labels": {"nvidia.com/gpu.memory": "1", "app": "x"}}
    return {"metadata": metadata, "spec": spec}


def test_the_print_of_a_node() -> None:
    plain, tainted = node(), node(taints=[{"key": "a", "effect": "NoExecute"}], unschedulable=True)
    assert node_print({**plain, "status": {"images": ["x"]}}) == node_print(plain)
    assert node_print(node(podCIDR="10.0.0.0/24")) == node_print(plain), "the reconciler caches taints only"
    assert node_print(node(unschedulable=True)) != node_print(plain)
    relabelled = {"metadata": {**plain["metadata"], "labels": {"nvidia.com/gpu.memory": "2"}}, "spec": {}}
    assert node_print(relabelled) != node_print(plain)
    assert node_print(reduced_node(tainted)) == node_print(tainted) != node_print(plain), "cached and read live"
    assert node_print(None) == ABSENT


def test_of_the_objects_of_a_failure_the_claims_are_compared() -> None:
    keys = [ObjectKey("team", f"c{number}") for number in range(6)]
    claims = [ObjectRef("v1", "PersistentVolumeClaim", key) for key in keys]
    node_ref, device_claim = ObjectRef("v1", "Node", ObjectKey("", "c0")), ObjectRef("x", "ResourceClaim", keys[0])
    assert claims_of([node_ref, claims[0], device_claim, claims[0]]) == (claims[0], device_claim)
    assert claims_of(claims) == tuple(claims[:4])
