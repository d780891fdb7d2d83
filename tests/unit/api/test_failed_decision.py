"""The condition of a failed decision: what is stored is what is read, and what ends its effect."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bowline.api import names
from bowline.api.failed_decision import FailedDecision, decision_of, failed_decision_of
from bowline.testing.builders import bind_request, pod, stored

FIRST = datetime(2026, 1, 1, tzinfo=UTC)
LONGEST = timedelta(seconds=60)
SPEC = bind_request()["spec"]
LAST = FIRST + timedelta(seconds=9)
FAILED = FailedDecision(decision_of(SPEC), "Rejected", FIRST, LAST, failures=3)


def with_condition(**change: Any) -> dict[str, Any]:
    return {**stored(pod()), "status": {"conditions": [{"type": "Other"}, {**FAILED.as_condition(), **change}]}}


def content(**change: Any) -> str:
    return json.dumps({**json.loads(FAILED.as_condition()["message"]), **change})


def test_what_is_written_is_read() -> None:
    assert failed_decision_of(with_condition()) == FAILED
    retried = replace(FAILED, has_ended=False, failures=0)
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
        pytest.param({"message": content(failures=float("inf"))}, id="no finite number"),
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
