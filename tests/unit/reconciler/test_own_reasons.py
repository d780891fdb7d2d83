"""Whose failure it is, and a reason of a plugin's own, as ``plugin/Word``: in status and event."""

from datetime import UTC, datetime, timedelta

import pytest

from bowline.api.bindrequest import BOUND
from bowline.framework.config import Binding
from bowline.framework.interface.status import Status, is_word, merge_waits
from bowline.framework.reason import Reason, Suggestion
from bowline.testing.builders import pod, stored
from bowline_reconciler.decide.actions import Fail, Nomination, Outcome
from bowline_reconciler.decide.decide import stored_failure
from bowline_reconciler.decide.outcome import classify_outcome
from bowline_reconciler.decide.report import failure_report, rollback_incomplete_status
from bowline_reconciler.decide.snapshot import Times
from tests.builders import request

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NO_SEAT = Status.fatal("all seats are taken", "NoSeat", Suggestion.RESCHEDULE_ELSEWHERE)


def failure(plugin: str = "licence") -> Fail:
    outcome = Outcome(NO_SEAT.from_plugin(plugin), NOW - timedelta(seconds=1))
    action = classify_outcome(request(), outcome, Binding(), 0.5, Times(), NOW)
    assert isinstance(action, Fail)
    return action


@pytest.mark.parametrize(
    ("suggestion", "gates", "is_withdrawn"),
    [
        pytest.param(Suggestion.RETRY_SAME_NODE, [], False, id="the same node"),
        pytest.param(Suggestion.RETRY_SAME_NODE, [{"name": "example.com/hold"}], True, id="a gated pod"),
        pytest.param(Suggestion.RESCHEDULE_ELSEWHERE, [], True, id="another node"),
    ],
)
def test_the_pod_stays_nominated_to_the_node_that_is_suggested(
    suggestion: Suggestion | None, gates: list[dict[str, str]], is_withdrawn: bool
) -> None:
    end = Fail(Status.fatal("why", Reason.WAIT_TIMEOUT, suggestion))
    named_pod = stored(pod(schedulingGates=gates))
    nomination = failure_report(request(), end, False, named_pod, NOW).nomination
    assert nomination == Nomination(request().selected_node, is_withdrawn=is_withdrawn)


@pytest.mark.parametrize(
    ("plugin", "reason"),
    [
        pytest.param("licence", "licence:NoSeat", id="a colon in place of the slash"),
        pytest.param("my-licence", "Rejected", id="a name that no condition may have"),
    ],
)
def test_the_condition_is_one_that_the_api_server_accepts(plugin: str, reason: str) -> None:
    status = failure_report(request(), failure(plugin), False, None, NOW).status
    assert [condition["reason"] for condition in status["conditions"] if condition["type"] == BOUND] == [reason]
    assert status["reason"].startswith(f"{plugin}/NoSeat: ")


def test_a_failure_says_whose_it_is_also_after_a_restart() -> None:
    short, long = timedelta(seconds=1), timedelta(hours=1)
    full = Status.wait("full", timeout=short, suggestion=Suggestion.DELETE_POD).from_plugin("licence")
    waits = merge_waits([full, Status.wait("slow", timeout=long).from_plugin("another")])
    waited = Times(wait_time=timedelta(minutes=1))
    end = classify_outcome(request(backoffLimit=0), Outcome(waits, NOW), Binding(), 0.5, waited, NOW)
    assert isinstance(end, Fail)
    whose = (end.status.reason, end.status.plugin, end.status.suggestion)
    assert whose == (Reason.WAIT_TIMEOUT, "licence", Suggestion.DELETE_POD), "of the one that has expired"
    announced = rollback_incomplete_status(request(), end, Status.retry("later"), NOW)
    for stored_status in (announced, failure_report(request(), end, True, None, NOW).status):
        assert stored_status["failure"]["plugin"] == "licence"
        stored_end = stored_failure(request(stored_status))
        assert stored_end is not None
        assert stored_end.status == end.status


@pytest.mark.parametrize("plugin_reason", ["licence/no seat", "/", "NoSeat\n"])
def test_a_stored_reason_that_no_plugin_has_written_is_no_failure_of_the_reader(plugin_reason: str) -> None:
    stored_end = stored_failure(request({"failure": {"reason": "Rejected", "pluginReason": plugin_reason}}))
    assert stored_end is not None
    assert is_word(stored_end.status.word or "None")


def test_a_stored_reason_of_a_newer_version_is_no_failure() -> None:
    assert stored_failure(request({"failure": {"reason": "NewerReason"}})) is None
