"""Which BindRequests repeat a decision that has failed, and for how long they are denied. Pure."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bowline.api import names
from bowline.api.failed_decision import FailedDecision, decision_of
from bowline.api.meta import ObjectKey, format_time
from bowline.kube.reflector import EventType
from bowline.testing.clock import SteppedClock
from bowline_webhook.hooks import Hook, Review
from bowline_webhook.repeats import MAX_PODS, Failure, Failures, RepeatGuard, failure_of
from tests.unit.webhook.reviews import bind_request

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LONGEST = timedelta(seconds=60)
POD = ("default", "pod-uid")
CREATION = NOW - timedelta(seconds=9)
SPEC = bind_request()["spec"]
FAILED = Failure(FailedDecision(decision_of(SPEC), "NodeGone", NOW, NOW), "NodeGone: node n does not exist")


def after(seconds: float, **changes: Any) -> Failure:
    """A further failure, so long after the first."""
    at = NOW + timedelta(seconds=seconds)
    return replace(FAILED, decision=replace(FAILED.decision, first=at, last=at, **changes))


def denied(*failures: Failure, at: float = 1, pod: tuple[str, str] = POD, **spec: Any) -> str:
    """The denial at that time of a request for the pod; empty if it is allowed. Each failure is recorded at once."""
    recorded, now = Failures(LONGEST), NOW + timedelta(seconds=at)
    for failure in failures:
        recorded.add(POD, failure, min(now, failure.decision.last))
    error = recorded.denial_of(pod, decision_of({**SPEC, **spec}), now)
    return "" if error is None else error.message


@pytest.mark.parametrize(
    ("failures", "case", "left_s"),
    [
        pytest.param([], {}, None, id="no failure"),
        pytest.param([FAILED], {}, 4, id="five seconds after the first"),
        pytest.param([FAILED], {"at": 5}, None, id="no longer"),
        pytest.param([FAILED], {"pod": ("default", "another")}, None, id="another pod"),
        pytest.param([FAILED], {"pod": ("another", "pod-uid")}, None, id="of another namespace, that names this pod"),
        pytest.param([FAILED], {"selectedNode": "node-9"}, None, id="another node"),
        pytest.param([FAILED], {"selectedGPUGroups": ["new"]}, 4, id="a new group has a new name in each decision"),
        pytest.param([FAILED, FAILED], {}, 4, id="reported twice"),
        pytest.param([FAILED, after(12)], {"at": 13}, 11, id="as long again as it has failed"),
        pytest.param([FAILED, after(900)], {"at": 901}, 59, id="the longest"),
        pytest.param([FAILED, after(12, reason="Rejected")], {"at": 13}, 4, id="another reason begins anew"),
        pytest.param([after(12), FAILED], {"at": 13}, 4, id="an older one, reported later"),
        pytest.param([FAILED, after(0, decision=decision_of({}))], {}, None, id="another in the same second"),
        pytest.param([after(900)], {"at": 0}, None, id="a clock that is ahead"),
    ],
)
def test_a_repeated_decision_is_denied_by_time(failures: list[Failure], case: Any, left_s: int | None) -> None:
    denial = denied(*failures, **case)
    assert bool(denial) is (left_s is not None)
    if left_s is not None:
        assert "NodeGone: node n does not exist; decide for another node" in denial
        assert denial.endswith(f"repeat it in {left_s} s")


def test_after_a_clock_was_set_back_nothing_is_denied_until_it_has_caught_up() -> None:
    failures = Failures(LONGEST)
    failures.add(POD, after(900), NOW + timedelta(seconds=900))
    decision = FAILED.decision.decision
    assert failures.denial_of(POD, decision, NOW + timedelta(seconds=901)) is not None
    assert failures.denial_of(POD, decision, NOW) is None


@pytest.mark.parametrize("namespace", ["default", "another"])
def test_a_failure_denies_nothing_in_another_namespace(namespace: str) -> None:
    """Whoever may create BindRequests may name any pod's UID."""
    guard = RepeatGuard(LONGEST, SteppedClock(NOW))
    spec = {**SPEC, "podUID": "pod-uid"}
    new = {"metadata": {}, "podUID": "pod-uid", "failure": FAILED}
    guard._on_event(EventType.ADDED, ObjectKey("default", "request"), None, new)
    review = Review("uid", kind=names.KIND, namespace=namespace, operation="CREATE", object={"spec": spec})
    assert bool(guard.errors(Hook.MUTATE_BIND_REQUESTS, review)) is (namespace == "default")


def test_the_number_of_remembered_pods_is_bounded() -> None:
    failures = Failures(LONGEST)
    for number in range(MAX_PODS + 1):
        failures.add(("default", str(number)), FAILED, NOW)
    decision = FAILED.decision.decision
    assert failures.denial_of(("default", "0"), decision, NOW) is None
    assert failures.denial_of(("default", "1"), decision, NOW) is not None
    failures.add(POD, after(3600), NOW)
    assert failures.denial_of(("default", "1"), decision, NOW) is not None, "another machine's clock evicts none"
    failures.add(POD, after(121), NOW + timedelta(seconds=121))
    assert failures.denial_of(("default", str(MAX_PODS)), decision, NOW) is None, "older than any denial"


@pytest.mark.parametrize(
    ("status", "reason", "at"),
    [
        pytest.param({"reason": "NodeGone: n", "completionTime": format_time(NOW)}, "NodeGone", NOW, id="complete"),
        pytest.param({"reason": "x"}, "x", CREATION, id="without a time: that of the creation, in each event"),
        pytest.param({}, "", CREATION, id="nothing"),
    ],
)
def test_the_failure_of_a_request(status: dict[str, Any], reason: str, at: datetime) -> None:
    request = {**bind_request(), "status": {"phase": "Failed", **status}}
    request["metadata"]["creationTimestamp"] = format_time(CREATION)
    failure = failure_of(request, NOW + LONGEST)
    assert failure == Failure(FailedDecision(decision_of(SPEC), reason, at, at), status.get("reason", ""))
