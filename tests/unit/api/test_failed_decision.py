"""The note of a failed decision: what is stored is what is read, and what ends its effect."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bowline.api import names
from bowline.api.meta import ObjectKey
from bowline.api.pod_bound_condition import (
    ABSENT,
    FailedDecision,
    claims_named,
    decision_of,
    failed_decision_of,
    node_print,
    note_of,
    noted_decision,
    pod_print,
    without_note,
)
from bowline.testing.builders import bind_request, pod, stored

FIRST = datetime(2026, 1, 1, tzinfo=UTC)
LONGEST = timedelta(seconds=60)
SPEC = bind_request()["spec"]
PRINTS = {"Pod": "00000001", "Node": ABSENT, "ResourceClaim/one": "77"}


def condition(message: str, **change: Any) -> dict[str, Any]:
    times = {"lastTransitionTime": "2026-01-01T00:00:00Z", "lastProbeTime": "2026-01-01T00:00:09Z"}
    return {
        "type": names.CONDITION_POD_BOUND,
        "status": "False",
        "reason": "Rejected",
        "message": message,
        **times,
        **change,
    }


def with_condition(**change: Any) -> dict[str, Any]:
    text = f"a sentence [with brackets]{note_of(decision_of(SPEC), PRINTS)}"
    return {**stored(pod()), "status": {"conditions": [condition(**{"message": text, **change})]}}


def test_what_is_written_is_read() -> None:
    failed = failed_decision_of(with_condition())
    assert failed is not None
    assert (failed.decision, failed.reason, failed.message) == (
        decision_of(SPEC),
        "Rejected",
        "a sentence [with brackets]",
    )
    assert failed.prints == PRINTS
    assert failed.last - failed.first == timedelta(seconds=9)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"status": "True"}, id="bound"),
        pytest.param({"lastProbeTime": None}, id="an earlier version"),
        pytest.param({"message": "a sentence"}, id="another binder's"),
        pytest.param({"message": f"retried{note_of(decision_of(SPEC))}"}, id="a decision that has not ended"),
        pytest.param({"message": None}, id="no message"),
    ],
)
def test_other_conditions_are_no_failed_decision(change: dict[str, Any]) -> None:
    assert failed_decision_of(with_condition(**change)) is None
    assert failed_decision_of(stored(pod())) is None


def test_a_decision_that_has_not_ended_is_named_too() -> None:
    text = f"attempt 1 of 7 failed{note_of(decision_of(SPEC))}"
    assert noted_decision(condition(text)) == decision_of(SPEC)
    assert without_note(text) == "attempt 1 of 7 failed"
    assert noted_decision({}) is None


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
    failed = FailedDecision(decision_of(SPEC), "Rejected", "", FIRST, last, {})
    assert failed.denied_until(LONGEST) - last == timedelta(seconds=denied_s)
    assert failed.denied_until(timedelta(seconds=1)) - last == timedelta(seconds=1), "never above the setting"


@pytest.mark.parametrize(
    ("change", "is_same"),
    [
        pytest.param({"labels": {f"{names.LABEL_GPU_GROUP}/a": "a"}}, True, id="the binder's own label"),
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


def node(**spec: Any) -> dict[str, Any]:
    metadata = {"name": "n", "uid": "u", "labels": {"nvidia.com/gpu.memory": "1", "app": "x"}}
    return {"metadata": metadata, "spec": spec}


def test_the_print_of_a_node() -> None:
    plain = node()
    assert node_print({**plain, "status": {"images": ["x"]}}) == node_print(plain)
    assert node_print(node(podCIDR="10.0.0.0/24")) == node_print(plain), "the reconciler caches taints only"
    assert node_print(node(unschedulable=True)) != node_print(plain)
    relabelled = {"metadata": {**plain["metadata"], "labels": {"nvidia.com/gpu.memory": "2"}}, "spec": {}}
    assert node_print(relabelled) != node_print(plain)
    assert node_print(None) == ABSENT


def test_the_claims_that_a_message_names() -> None:
    claims = [{"name": "a", "resourceClaimName": "one"}, {"name": "b", "resourceClaimTemplateName": "t"}]
    volumes = [
        {"name": "data", "persistentVolumeClaim": {"claimName": "data-0"}},
        {"name": "tmp", "ephemeral": {"volumeClaimTemplate": {}}},
        {"name": "x", "emptyDir": {}},
    ]
    owner = {**pod(resourceClaims=claims, volumes=volumes)}
    owner["status"] = {"resourceClaimStatuses": [{"name": "b", "resourceClaimName": "pod-b-x1"}]}

    def named(message: str) -> list[tuple[str, ObjectKey]]:
        return list(claims_named(owner, message))

    assert named("claim default/one is allocated elsewhere") == [("ResourceClaim", ObjectKey("default", "one"))]
    assert named("ResourceClaim default/pod-b-x1: taken") == [("ResourceClaim", ObjectKey("default", "pod-b-x1"))]
    assert named("PVC data-0, and pod-tmp") == [
        ("PersistentVolumeClaim", ObjectKey("default", "data-0")),
        ("PersistentVolumeClaim", ObjectKey("default", "pod-tmp")),
    ]
    assert named("none of them: another-one, data-01") == []
