"""The outcome of an attempt: every code, the limits, and the status that is written."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bowline.api.bindrequest import BindRequest
from bowline.api.failed_decision import decision_of
from bowline.api.meta import ObjectKey, ObjectRef
from bowline.framework.binding.calls import defect
from bowline.framework.binding.post import denied_status
from bowline.framework.config import Binding
from bowline.framework.interface.status import UNLIMITED, Cancelled, Retriable, Status, Transient, merge_waits
from bowline.framework.reason import Reason, Suggestion
from bowline.testing.builders import pod
from bowline_reconciler.decide.actions import GATES, Event, Fail, Outcome, OutcomeAction, PodBound, RetryAt, Wait
from bowline_reconciler.decide.decide import stored_failure
from bowline_reconciler.decide.outcome import backoff, classify_outcome
from bowline_reconciler.decide.report import (
    PREPARED_BY_US,
    conditions,
    failure_report,
    preparation,
    reason_text,
    rollback_incomplete_status,
    rolled_back_status,
    success_report,
    waiting_status,
)
from bowline_reconciler.decide.snapshot import Times
from bowline_reconciler.drive.writer import status_patch
from tests.builders import request

NOW = datetime(2026, 1, 1, 0, 1, tzinfo=UTC)
STARTED = NOW - timedelta(seconds=2)
TIMEOUT = timedelta(minutes=10)
LIMITS = Binding(wait_timeout=TIMEOUT)
WAITED = Times(wait_time=timedelta(minutes=1))


def waiting(why: str) -> Wait:
    return Wait((), why, timedelta(minutes=10), "plugin volumes")


def action_for(status: Status, req: BindRequest | None = None, times: Times = WAITED) -> OutcomeAction:
    return classify_outcome(req or request(), Outcome(status, STARTED), LIMITS, 0.5, times, NOW)


def condition(block: Any, kind: str) -> dict[str, Any]:
    return next(c for c in block["conditions"] if c["type"] == kind)


def test_a_retry_is_counted_and_dated() -> None:
    end = action_for(Status.retry("no luck").from_plugin("p"))
    assert isinstance(end, RetryAt)
    status = end.report.status
    assert status["failedAttempts"] == 1
    assert status["phase"] == "Pending"
    assert status["reason"].startswith("Retrying: ")
    assert status["nextAttemptTime"] == "2026-01-01T00:01:01Z"  # rounded up, never early
    assert status["lastAttemptTime"] == status["startTime"] == "2026-01-01T00:00:58Z"
    assert condition(status, "Prepared")["status"] == "False"
    assert end.report.event is not None
    assert end.report.condition is not None
    why = end.report.event.note
    assert end.report.event == Event("Warning", "BindingRetry", why)
    decision = decision_of(request().raw["spec"])
    assert end.report.condition == PodBound("False", "BindingRetry", why, decision, since=NOW)


@pytest.mark.parametrize("asked_s", [0.001, 3600.0])
def test_a_retry_pauses_as_long_as_asked_and_as_backed_off(asked_s: float) -> None:
    asked_pause = timedelta(seconds=asked_s)
    end = action_for(Status.retry("no luck", asked_pause))
    assert isinstance(end, RetryAt)
    assert end.pause == max(asked_pause, backoff(1, LIMITS, 0.5))


def suggesting(suggestion: Suggestion | None) -> Status:
    return Retriable(("no room",), plugin="p", suggestion=suggestion)


@pytest.mark.parametrize(
    ("status", "spec", "failures", "final"),
    [
        pytest.param(Status.retry("no"), {"backoffLimit": 0}, 0, True, id="limit 0 is one attempt"),
        pytest.param(Status.retry("no"), {"backoffLimit": 1}, 0, False, id="limit 1 survives the first failure"),
        pytest.param(Status.retry("no"), {"backoffLimit": 1}, 1, True, id="limit 1 ends with the second"),
        pytest.param(Status.retry("no"), {}, 5, False, id="the default limit survives the sixth"),
        pytest.param(Status.retry("no"), {}, 6, True, id="the default limit ends with the seventh"),
        pytest.param(suggesting(Suggestion.RETRY_SAME_NODE), {}, 0, False, id="a retry is what the plugin suggests"),
        pytest.param(suggesting(Suggestion.RESCHEDULE_ELSEWHERE), {}, 0, True, id="another node may resolve it"),
        pytest.param(suggesting(Suggestion.DELETE_POD), {}, 0, True, id="no node resolves it"),
        pytest.param(suggesting(Suggestion.RESCHEDULE_ELSEWHERE), {"backoffLimit": 1}, 0, False,
            id="its own limit applies"),
    ],
)  # fmt: skip
def test_attempts_end_at_the_limit_and_where_another_decision_could_resolve_the_failure(
    status: Retriable, spec: dict[str, Any], failures: int, final: bool
) -> None:
    end = action_for(status, request({"failedAttempts": failures}, **spec))
    assert isinstance(end, Fail if final else RetryAt)
    if isinstance(end, Fail):
        expected = status.suggestion or Suggestion.RESCHEDULE_ELSEWHERE
        assert (end.status.reason, end.status.suggestion) == (Reason.BACKOFF_LIMIT_EXCEEDED, expected)
        assert failure_report(request(), end, False, None, NOW).status["failedAttempts"] == 1


@pytest.mark.parametrize("status", [Transient(("503",), retry_after=timedelta(seconds=3)), Cancelled()])
def test_what_says_nothing_of_the_request_uses_no_attempt(status: Status) -> None:
    assert action_for(status) == status


@pytest.mark.parametrize("result", [Status.skip(), Status()], ids=["skipped", "of no class"])
def test_what_is_no_end_of_an_attempt_does_not_count_as_success(result: Status) -> None:
    end = action_for(result)
    assert isinstance(end, Fail)
    assert end.status.reason is Reason.REJECTED


def test_a_wait_names_its_object_and_uses_no_attempt() -> None:
    claim = ObjectRef("v1", "PersistentVolumeClaim", ObjectKey("default", "data"))
    end = action_for(Status.wait("unbound", claim).from_plugin("volumes"))
    assert isinstance(end, Wait)
    assert end.on == (claim,)
    assert end.left == timedelta(minutes=9)
    assert end.cause == "plugin volumes"
    assert "PersistentVolumeClaim default/data" in end.why
    status = waiting_status(request(), end, NOW - WAITED.wait_time, NOW)
    assert condition(status, "Prepared")["lastTransitionTime"] == "2026-01-01T00:00:00Z", "the start of the attempt"
    assert "failedAttempts" not in status


MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
A, B = "plugin a", "plugin b"


def waits(**timeouts: timedelta | None) -> Status:
    """The waits of these plugins, merged as the Runner merges them."""
    return merge_waits([Status.wait("x", timeout=limit).from_plugin(name) for name, limit in timeouts.items()])


@pytest.mark.parametrize(
    ("status", "times", "left"),
    [
        pytest.param(waits(b=MINUTE), Times(wait_time=9 * MINUTE, waited={A: 9 * MINUTE}, longest=10 * MINUTE),
            MINUTE, id="the first wait for another cause has its own time"),
        pytest.param(waits(b=HOUR), Times(wait_time=59 * MINUTE, waited={A: 59 * MINUTE}, longest=HOUR), MINUTE,
            id="but the series ends when its longest wait would"),
        pytest.param(waits(a=MINUTE, b=HOUR), Times(wait_time=MINUTE, waited={A: MINUTE, B: MINUTE}, longest=HOUR),
            None, id="of two waits the one that expires first"),
        pytest.param(waits(a=MINUTE), Times(wait_time=HOUR, waited={A: HOUR, B: MINUTE}, longest=MINUTE), None,
            id="a cause that returns goes on from its first wait"),
        pytest.param(waits(a=None, b=UNLIMITED), Times(wait_time=TIMEOUT), None, id="the setting limits beside none"),
        pytest.param(waits(a=MINUTE), Times(wait_time=TIMEOUT, waited={GATES: TIMEOUT}, longest=TIMEOUT), MINUTE,
            id="what follows the gates is another series"),
    ],
)  # fmt: skip
def test_a_series_of_waits_ends_whatever_its_causes(status: Status, times: Times, left: timedelta | None) -> None:
    end = action_for(status, times=times)
    assert (end.left if isinstance(end, Wait) else None) == left
    if isinstance(end, Fail):
        assert end.status.reason is Reason.WAIT_TIMEOUT


@pytest.mark.parametrize(
    ("times", "expired"),
    [
        pytest.param(Times(wait_time=timedelta(seconds=599)), False, id="not yet"),
        pytest.param(Times(wait_time=timedelta(seconds=600)), True, id="waited long enough"),
        pytest.param(Times(wait_time=timedelta(days=9), watch_time=timedelta(seconds=59)), False,
            id="a minute after contact was restored"),
    ],
)  # fmt: skip
def test_a_wait_expires_by_how_long_it_has_lasted(times: Times, expired: bool) -> None:
    end = action_for(Status.wait("unbound"), times=times)
    assert isinstance(end, Fail) is expired
    if isinstance(end, Fail):
        assert end.status.suggestion is Suggestion.RETRY_SAME_NODE


def test_a_plugin_sets_the_timeout_the_poll_interval_and_the_suggestion_of_its_wait() -> None:
    minute, hour = timedelta(minutes=1), timedelta(hours=1)
    own = Status.wait("x", retry_after=timedelta(seconds=2), timeout=hour, suggestion=Suggestion.DELETE_POD)
    end = action_for(own, times=Times(wait_time=TIMEOUT))
    assert isinstance(end, Wait)
    assert (end.left, end.poll) == (hour - TIMEOUT, timedelta(seconds=2))
    end = action_for(replace(own, timeout=minute), times=Times(wait_time=minute))
    assert isinstance(end, Fail)
    assert (end.status.reason, end.status.suggestion) == (Reason.WAIT_TIMEOUT, Suggestion.DELETE_POD)
    assert (end.status.reasons[0], end.history) == ("x", "waited for 60 s")


@pytest.mark.parametrize(
    ("failures", "jitter", "seconds"),
    [
        pytest.param(1, 0.999, 0.999, id="first"),
        pytest.param(4, 0.5, 4.0, id="doubling"),
        pytest.param(10_000, 0.5, 30.0, id="no overflow"),
        pytest.param(3, 0.0, 0.4, id="never nothing"),
    ],
)
def test_backoff(failures: int, jitter: float, seconds: float) -> None:
    assert backoff(failures, LIMITS, jitter).total_seconds() == pytest.approx(seconds)


def test_success_clears_what_only_concerned_the_retries() -> None:
    stored_status = {
        "phase": "Pending",
        "reason": "Retrying: x",
        "failedAttempts": 2,
        "nextAttemptTime": "2026-01-01T00:00:30Z",
        "startTime": "2026-01-01T00:00:00Z",
        "conditions": [{"type": "Prepared", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
    }
    block = success_report(request(stored_status), PREPARED_BY_US, None, STARTED, NOW).status
    assert block["phase"] == "Succeeded"
    assert block["nodeName"] == "node-0"
    assert block["failedAttempts"] == 2
    assert block["startTime"] == "2026-01-01T00:00:00Z"
    assert not {"reason", "nextAttemptTime"} & block.keys()
    assert condition(block, "Bound")["status"] == "True"
    assert condition(block, "Prepared")["lastTransitionTime"] == "2026-01-01T00:01:00Z"
    patch = status_patch(stored_status, block)
    assert patch is not None
    assert patch["reason"] is None


@pytest.mark.parametrize(
    ("status", "spec", "fail", "attempts"),
    [
        pytest.param({}, {}, Reason.NODE_GONE, 0, id="no limit set: as counted"),
        pytest.param({}, {"backoffLimit": 3}, Reason.NODE_GONE, 3, id="raised to the limit that is set"),
        pytest.param({"failedAttempts": 6}, {}, Reason.BACKOFF_LIMIT_EXCEEDED, 7,
            id="the last attempt of the default counts"),
    ],
)  # fmt: skip
def test_failed_block(status: dict[str, Any], spec: dict[str, Any], fail: Reason, attempts: int) -> None:
    block = failure_report(
        request(status, **spec), Fail(Status.fatal("why", fail, Suggestion.DELETE_POD)), False, None, NOW
    ).status
    assert block["phase"] == "Failed"
    assert block["failure"]["reason"] == fail.value
    assert block["reason"].startswith(f"{fail.value}: ")
    assert block["failedAttempts"] == attempts
    assert block["suggestion"] == "DeletePod"
    assert block["completionTime"] == "2026-01-01T00:01:00Z"
    assert condition(block, "Bound")["status"] == "False"
    assert all(c["type"] != "RolledBack" for c in block["conditions"])


FAILS = Fail(Status.fatal("taken", Reason.DEVICE_CONFLICT, Suggestion.RESCHEDULE_ELSEWHERE))


def test_a_failure_reports_the_rollback_that_preceded_it() -> None:
    block = failure_report(request(), FAILS, True, None, NOW).status
    assert condition(block, "RolledBack")["status"] == "True"
    assert all(
        entry["type"] != "RolledBack"
        for entry in failure_report(request(), FAILS, False, None, NOW).status["conditions"]
    )
    for status in (
        failure_report(request(), FAILS, True, None, NOW, "devices: configmaps default/a: refused").status,
        rolled_back_status(request(), "devices: configmaps default/a: refused", NOW),
    ):
        rolled_back = condition(status, "RolledBack")
        assert (rolled_back["status"], rolled_back["reason"]) == ("Unknown", "NotUndone")
        assert "devices: configmaps default/a: refused" in rolled_back["message"]


def test_a_request_is_pending_while_its_rollback_is_not_complete() -> None:
    block = rollback_incomplete_status(request({"failedAttempts": 2}), FAILS, Status.retry("stuck"), NOW)
    assert block["phase"] == "Pending"
    assert block["failure"]["reason"] == "DeviceConflict"
    assert block["reason"].startswith("RollbackFailed: ")
    assert condition(block, "RolledBack")["status"] == "False"
    assert "completionTime" not in block
    assert block["failedAttempts"] == 2, "the failure itself is counted when it is terminal"


def test_a_failed_request_of_an_earlier_release_keeps_its_reason_during_its_rollback() -> None:
    failed_request = request(failure_report(request(), FAILS, False, None, NOW).status)
    block = rollback_incomplete_status(failed_request, None, Status.retry("stuck"), NOW)
    assert block["phase"] == "Failed"
    assert block["failure"]["reason"] == "DeviceConflict"
    assert block["reason"].startswith("DeviceConflict: ")
    final_status = rolled_back_status(request(block), "", NOW + timedelta(seconds=9))
    assert condition(final_status, "RolledBack")["status"] == "True"


def test_a_pod_found_bound_needs_no_rollback() -> None:
    block = rollback_incomplete_status(request(), FAILS, Status.retry("stuck"), NOW)
    bound = success_report(request(block), PREPARED_BY_US, None, None, NOW).status
    assert "RolledBack" not in [entry["type"] for entry in bound["conditions"]]


def test_a_condition_keeps_its_time_while_its_status_is_unchanged() -> None:
    first = waiting_status(request(), waiting("a"), NOW, NOW)
    again = conditions(request(first), {"Prepared": ("False", "Waiting", "b")}, NOW + timedelta(seconds=5))
    assert again[0]["lastTransitionTime"] == "2026-01-01T00:01:00Z"
    assert again[0]["message"] == "b"


def test_a_wait_has_its_deadline() -> None:
    since = NOW - timedelta(seconds=5)
    first = waiting_status(request(), replace(waiting("a"), left=timedelta(seconds=595.002)), since, NOW)
    assert first["wait"]["deadline"] == "2026-01-01T00:10:55Z"
    assert first["reason"].startswith("Waiting: ")
    assert first["startTime"] == "2026-01-01T00:00:55Z", "the start of the attempt, not of the report"
    assert "startTime" not in waiting_status(request(), replace(waiting("a"), cause=GATES), NOW, NOW), (
        "no attempt yet"
    )
    later = NOW + timedelta(seconds=60)
    restored = replace(waiting("a"), left=timedelta(seconds=534.4))
    again = waiting_status(request(first), restored, since - timedelta(seconds=0.6), later)
    assert again["wait"] == first["wait"], "a restart reports the same deadline"
    assert again["reason"] == first["reason"]


def test_a_reason_fits_its_field() -> None:
    text = reason_text("Rejected", "ü" * 4000)
    assert len(text.encode()) <= 1024
    assert text.endswith("...")


@pytest.mark.parametrize(
    ("pod_conditions", "is_written"),
    [
        pytest.param([], False, id="no reported failure: no write"),
        pytest.param([{"type": "PodBound", "status": "True"}], False, id="already true"),
        pytest.param([{"type": "PodBound", "status": "False"}], True, id="a reported failure is cleared"),
    ],
)
def test_the_pod_condition_costs_a_write_only_after_a_failure(
    pod_conditions: list[dict[str, str]], is_written: bool
) -> None:
    seen = pod() | {"status": {"conditions": pod_conditions}}
    report = success_report(request(), PREPARED_BY_US, seen, STARTED, NOW)
    assert (report.condition is not None) is is_written


# --- the texts ---


def test_the_text_of_each_report() -> None:
    retry = action_for(Status.retry("no luck").from_plugin("p"))
    assert isinstance(retry, RetryAt)
    assert retry.report.status["reason"] == "Retrying: no luck [p]; attempt 1 of 7 failed"
    assert retry.report.event == Event("Warning", "BindingRetry", "no luck [p]"), "events of equal notes are one"
    last = action_for(Status.retry("no luck").from_plugin("p"), request(backoffLimit=0))
    assert isinstance(last, Fail)
    reason = failure_report(request(), last, False, None, NOW).status["reason"]
    assert reason == "BackoffLimitExceeded: no luck [p]; gave up after 1 attempt"
    assert stored_failure(request(failure_report(request(), last, False, None, NOW).status)) == replace(
        last, history=""
    )
    wait = waiting_status(request(), replace(waiting("a"), left=timedelta(minutes=10)), NOW, NOW)
    assert wait["reason"] == "Waiting: a; fails with WaitTimeout at 2026-01-01T00:11:00Z"
    refusal = Status.retry("it is still in use")
    rollback = rollback_incomplete_status(request(), None, refusal, NOW)
    assert rollback["reason"].startswith("RollbackFailed: it is still in use; ")
    share = request(receivedResourceType="Fraction")
    assert "Fraction was not prepared here" in preparation(share, True, pod(), {}).warning
    lacks = preparation(request(), True, pod(), {"annotations": {"example.com/a": "b"}})
    assert "does not have what its Binding contains: annotation example.com/a" in lacks.warning
    assert "the plugin is defective: repair or disable it" in defect("p", "applies raised").message
    right = denied_status(
        'pods "p" is forbidden: User "u" cannot create resource "pods/binding" in API group "" in x'
    )
    assert 'lacks a right (apiGroups: [""], resources: ["pods/binding"], verbs: ["create"])' in right.message
