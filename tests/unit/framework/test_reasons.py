"""Which suggestion a failure has where several meet, and that each reason is one complete value."""

from datetime import UTC, datetime, timedelta

import pytest

from bowline.api.bindrequest import decode_bind_request
from bowline.api.failed_decision import Decision, FailedDecision, print_of
from bowline.framework.binding.post import binding_status, denied_on
from bowline.framework.config import Binding
from bowline.framework.interface.status import Fatal, Retriable, Status, Waiting
from bowline.framework.reason import Reason, Suggestion
from bowline.kube.binding import BindingResult, BindOutcome
from bowline.testing.builders import bind_request, pod, stored
from bowline_reconciler.decide.actions import Fail, Outcome
from bowline_reconciler.decide.outcome import classify_outcome
from bowline_reconciler.decide.report import failure_report
from bowline_reconciler.decide.snapshot import Times

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LIMITS = Binding(backoff_limit=0, wait_timeout=timedelta(seconds=1))
WAITED = Times(wait_time=timedelta(seconds=1))
ELSEWHERE, SAME, DELETE = Suggestion.RESCHEDULE_ELSEWHERE, Suggestion.RETRY_SAME_NODE, Suggestion.DELETE_POD


@pytest.mark.parametrize(
    ("status", "reason", "suggestion"),
    [
        pytest.param(Status.retry("x"), Reason.BACKOFF_LIMIT_EXCEEDED, ELSEWHERE,
            id="a failure that was repeated too often"),
        pytest.param(Retriable(("x",), suggestion=DELETE), Reason.BACKOFF_LIMIT_EXCEEDED, DELETE,
            id="a given suggestion has priority"),
        pytest.param(Status.wait("x"), Reason.WAIT_TIMEOUT, SAME, id="an expired wait"),
        pytest.param(Waiting(("x",), suggestion=ELSEWHERE), Reason.WAIT_TIMEOUT, ELSEWHERE,
            id="also after a wait"),
        pytest.param(Status.fatal("x", Reason.VOLUME_CONFLICT, DELETE), Reason.VOLUME_CONFLICT, DELETE,
            id="as given"),
        pytest.param(Status.fatal("x"), Reason.REJECTED, None, id="no default for a rejection"),
    ],
)  # fmt: skip
def test_the_suggestion_of_an_attempts_end(status: Status, reason: Reason, suggestion: Suggestion | None) -> None:
    req = decode_bind_request(stored(bind_request(uid="u")))
    end = classify_outcome(req, Outcome(status, NOW), LIMITS, 0.5, WAITED, NOW)
    assert isinstance(end, Fail)
    assert (end.status.reason, end.status.suggestion) == (reason, suggestion)
    event = failure_report(req, end, False, None, NOW).event
    assert event is not None
    assert suggestion is None or event.note.endswith(f"(suggestion: {suggestion.value})")


@pytest.mark.parametrize(
    ("result", "reason", "suggestion"),
    [
        pytest.param(BindingResult(BindOutcome.REFUSED, message="denied by policy"), Reason.REJECTED, ELSEWHERE,
            id="a policy"),
        pytest.param(BindingResult(BindOutcome.REFUSED,
            message='User "x" cannot create resource "pods/binding" in API group "" in the namespace "a"'),
            Reason.RBAC_MISSING, None, id="a missing right"),
        pytest.param(BindingResult(BindOutcome.NOT_FOUND, message="not found"), Reason.POD_GONE, None,
            id="the pod is deleted"),
    ],
)  # fmt: skip
def test_the_suggestion_of_a_bindings_outcome(
    result: BindingResult, reason: Reason, suggestion: Suggestion | None
) -> None:
    status = binding_status(result)
    assert isinstance(status, Fatal)
    assert (status.reason, status.suggestion) == (reason, suggestion)


@pytest.mark.parametrize(
    ("node", "message", "suggestion"),
    [
        pytest.param("b", "denied by policy", None, id="the same answer for another node"),
        pytest.param("a", "denied by policy", ELSEWHERE, id="the same node"),
        pytest.param("b", "denied by policy 2", ELSEWHERE, id="another answer"),
        pytest.param("b", "policy", ELSEWHERE, id="an answer that is a part of the other one"),
    ],
)
def test_a_denial_that_another_node_has_met_suggests_no_other(
    node: str, message: str, suggestion: Suggestion | None
) -> None:
    denial = print_of("denied by policy")
    failure = FailedDecision(Decision("a", "digest"), Reason.REJECTED.value, NOW, NOW, denial=denial)
    bound = {"type": "PodBound", "status": "False", "message": "default_binder: denied by policy"}
    refused_pod = {**stored(pod(), uid="u"), "status": {"conditions": [failure.as_condition(), bound]}}
    status = binding_status(
        BindingResult(BindOutcome.REFUSED, message=message), denied_on(refused_pod, node, message)
    )
    assert isinstance(status, Fatal)
    assert (status.reason, status.suggestion) == (Reason.REJECTED, suggestion)
