"""What the reconciler reports of itself: gauges, counters and the history."""

import logging
from datetime import timedelta

import pytest

from bowline.api.meta import ObjectKey, ObjectRef
from bowline.framework.plugin_status import Status, merge_waits
from bowline.framework.reason import Reason
from bowline_reconciler.decide.actions import Action, Attempt, Complete, Fail, RequeueAfter, Wait
from bowline_reconciler.decide.snapshot import GATES
from bowline_reconciler.observe.tracker import LOG_FAILURES_EVERY_S
from tests.unit.reconciler.watching import Watched, context

CLAIM = ObjectRef("v1", "PersistentVolumeClaim", ObjectKey("default", "data"))
WAITING = Status.wait("claim is pending", CLAIM).from_plugin("volumes")


def passed(observer: Watched, decision: Action, answer: Status | None = None, name: str = "train") -> None:
    """One pass; with an outcome, of an attempt that ended so."""
    c = context(name)
    with observer.observation.track(c.request.key):
        observer.observation.on_decision(c.request, decision)
        observer.clock.step(timedelta(milliseconds=4))
        if answer is not None:
            observer.observation.attempt_ended(c, answer)


def waiting(observer: Watched) -> dict[str, float | None]:
    return {
        plugin: count
        for plugin in ("bowline", "volumes", "devices", "binder")
        if (count := observer.value("bowline_requests_waiting", plugin=plugin))
    }


def test_waits_are_shown_by_the_plugin_that_asked_until_they_end() -> None:
    observer = Watched()
    assert observer.value("bowline_requests_waiting", plugin="volumes") == 0
    passed(observer, Attempt(), WAITING)
    passed(observer, Attempt(), WAITING)
    passed(observer, Wait((CLAIM,), "gated", timedelta(minutes=1), GATES), name="second")
    both = merge_waits([Status.wait("first", CLAIM).from_plugin("devices"), WAITING])
    passed(observer, Attempt(), both, name="third")
    assert waiting(observer) == {"volumes": 1, "bowline": 1, "devices": 1}
    passed(observer, Attempt(), Status.retry("no room").from_plugin("volumes"))
    passed(observer, Complete(), name="third")
    assert waiting(observer) == {"bowline": 1}
    observer.observation.forgotten(ObjectKey("default", "second"))
    assert waiting(observer) == {}


def test_a_wait_that_ends_with_its_request_is_no_longer_shown() -> None:
    observer, c = Watched(), context("train")
    passed(observer, Attempt(), WAITING)
    with observer.observation.track(c.request.key):
        observer.observation.on_decision(c.request, Attempt())
        observer.observation.attempt_ended(c, WAITING)
        # The wait has expired: the same pass writes Failed and drops the finalizer.
        observer.observation.forgotten(c.request.key)
    assert waiting(observer) == {}


def test_a_failure_of_the_api_server_ends_no_wait() -> None:
    observer, key = Watched(), ObjectKey("default", "train")
    passed(observer, Attempt(), WAITING)
    with observer.observation.track(key):
        observer.observation.on_transient_failure(key, "the API server did not answer in time", is_quiet=True)
    assert waiting(observer) == {"volumes": 1}
    assert [entry.outcome for entry in observer.observation.history.of(key)] == ["WAIT", "TRANSIENT"]


def test_running_passes_are_shown_by_their_point() -> None:
    observer, first, second = Watched(), context("a"), context("b")

    def at(step: str) -> float | None:
        return observer.value("bowline_attempts_in_flight", step=step)

    with observer.observation.track(first.request.key), observer.observation.track(second.request.key):
        assert (at("reconcile"), at("pre_bind")) == (2, 0)
        observer.observation.call_began("volumes", "pre_bind", first)
        observer.observation.call_began("devices", "pre_bind", first)
        assert (at("reconcile"), at("pre_bind")) == (1, 1)
        observer.observation.call_ended("volumes", "pre_bind", first, Status.ok(), 0.1)
        assert (at("reconcile"), at("pre_bind")) == (1, 1)
        observer.observation.call_ended("devices", "pre_bind", first, Status.ok(), 0.1)
        assert (at("reconcile"), at("pre_bind")) == (2, 0)
    assert (at("reconcile"), at("pre_bind")) == (0, 0)


def test_a_pass_that_fails_by_a_bug_is_recorded_as_ended() -> None:
    observer = Watched()
    with pytest.raises(ZeroDivisionError), observer.observation.track(ObjectKey("default", "train")):
        _ = 1 / 0
    assert observer.observation.reconciles == {}


def test_calls_and_attempts_are_counted_and_measured() -> None:
    observer, c = Watched(), context()
    with observer.observation.track(c.request.key):
        observer.observation.on_decision(c.request, Attempt())
        observer.observation.call_began("binder", "bind", c)
        observer.clock.step(timedelta(milliseconds=3))
        observer.observation.call_ended("binder", "bind", c, Status.fatal("no").from_plugin("binder"), 0.003)
        observer.observation.attempt_ended(c, Status.fatal("no").from_plugin("binder"))
    assert observer.value("bowline_plugin_calls_total", plugin="binder", point="bind", code="FATAL") == 1
    assert observer.value("bowline_plugin_calls_total", plugin="binder", point="bind", code="OK") == 0
    assert observer.value("bowline_plugin_duration_seconds_sum", plugin="binder", point="bind", code="FATAL") == 0.003
    assert observer.value("bowline_attempts_total", outcome="FATAL") == 1
    assert observer.value("bowline_attempt_duration_seconds_sum", outcome="FATAL") == 0.003
    (entry,) = observer.observation.history.of(c.request.key)
    assert (entry.attempt, entry.decision, entry.outcome) == ("01234567-1", "Attempt", "FATAL")
    (step,) = entry.steps
    assert step.why == entry.why != ""
    assert (step.plugin, step.point, step.code, step.after_ms, step.ms) == (
        "binder",
        "bind",
        "FATAL",
        0.0,
        3.0,
    )


@pytest.mark.parametrize(
    ("decision", "why"),
    [
        pytest.param(Fail(Reason.NODE_GONE, "node n is gone"), "NodeGone: node n is gone", id="a final failure"),
        pytest.param(Wait((CLAIM,), "gated", timedelta(minutes=1), GATES), "gated", id="a wait"),
        pytest.param(Complete(), "", id="a success speaks for itself"),
    ],
)
def test_the_history_states_the_reason_of_a_decision(decision: Action, why: str) -> None:
    observer = Watched()
    passed(observer, decision)
    (entry,) = observer.observation.history.of(ObjectKey("default", "train"))
    assert (entry.decision, entry.why) == (type(decision).__name__, why)


def test_a_reconcile_that_did_nothing_is_not_recorded() -> None:
    observer = Watched()
    passed(observer, RequeueAfter(timedelta(seconds=1)))
    with observer.observation.track(ObjectKey("default", "gone")):
        pass
    assert len(observer.observation.history) == 0
    passed(observer, RequeueAfter(timedelta(seconds=1), "another request precedes"))
    assert len(observer.observation.history) == 1


def test_calls_outside_a_pass_are_counted_and_do_no_harm() -> None:
    observer, c = Watched(), context()
    observer.observation.call_began("binder", "bind", c)
    observer.observation.call_ended("binder", "bind", c, Status.ok(), 0.001)
    observer.observation.on_decision(c.request, Complete())
    observer.observation.attempt_ended(c, Status.ok())
    observer.observation.on_transient_failure(c.request.key, "lost", is_quiet=True)
    assert observer.value("bowline_plugin_calls_total", plugin="binder", point="bind", code="OK") == 1


def test_an_error_outside_of_attempts_is_counted_and_logged_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    observer = Watched()

    def raised() -> int:
        for _ in range(3):
            observer.observation.plugin_raised("devices", "supported_allocations", None, KeyError("typo"))
        return sum(record.__dict__.get("point") == "supported_allocations" for record in caplog.records)

    assert raised() == 1
    observer.clock.step(timedelta(seconds=61))
    assert raised() == 2
    assert observer.value("bowline_plugin_errors_total", plugin="devices", point="supported_allocations") == 6


def test_thousands_of_failing_requests_are_one_line_every_half_minute(caplog: pytest.LogCaptureFixture) -> None:
    observer = Watched()
    with caplog.at_level(logging.WARNING):
        for count in range(1, 11):
            for number in range(1_000):
                observer.observation.on_transient_failure(
                    ObjectKey("default", str(number)), "unreachable", is_quiet=count <= 3
                )
            observer.clock.step(timedelta(seconds=LOG_FAILURES_EVERY_S / 5))
    first, second = caplog.records
    assert (first.__dict__["requests"], second.__dict__["requests"]) == (1_000, 1_000)
    assert second.__dict__["failures"] == 5_000


def test_nothing_is_kept_of_requests_whose_calls_have_failed() -> None:
    observer = Watched()
    for number in range(100):
        key = ObjectKey(f"namespace-{number}", "train")
        with observer.observation.track(key):
            observer.observation.on_transient_failure(key, "lost", is_quiet=True)
        assert observer.observation.failing_keys == {key}
        if number % 2:
            with observer.observation.track(key):
                pass  # the next reconcile succeeds
        else:
            observer.observation.forgotten(key)
        assert not observer.observation.failing_keys
    assert not any(
        "namespace-" in value
        for metric in observer.registry.collect()
        for sample in metric.samples
        for value in sample.labels.values()
    )
