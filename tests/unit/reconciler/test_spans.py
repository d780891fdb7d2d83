"""A reconcile as a span: named attempt, with its plugins' calls as children."""

from opentelemetry.sdk.trace import ReadableSpan

from bowline.api.meta import ObjectKey
from bowline.framework.plugin_status import Status
from bowline.runtime.tracing import nanoseconds
from bowline.testing.clock import START
from bowline_reconciler.decide.actions import Attempt
from bowline_reconciler.observe.reconciles import ReconcileInProgress, Step
from bowline_reconciler.observe.traces import record_attempt
from tests.spans import SENT, Spans, parent_of, traceparent_of
from tests.unit.reconciler.watching import Watched, context


def times(span: ReadableSpan) -> tuple[int, int]:
    """Milliseconds from START to the span's begin and end."""
    assert span.start_time is not None
    assert span.end_time is not None
    return (span.start_time - nanoseconds(START)) // 10**6, (span.end_time - nanoseconds(START)) // 10**6


def test_times_codes_and_errors_of_plugins_are_within_the_attempt() -> None:
    over = ReconcileInProgress(ObjectKey("team-a", "train"), START, 0.0, "uid-1", "Attempt", "RETRY", "no room")
    over.steps += [
        Step("volumes", "pre_bind", "OK", "", 1.0, 2.0),
        Step("devices", "pre_bind", "RETRY", "no room", 3.0, 4.0),
    ]
    spans = Spans()
    record_attempt(spans.tracer, over, 0.009)
    volumes, devices, attempt = spans.ended()
    assert [span.name for span in spans.ended()] == ["volumes.pre_bind", "devices.pre_bind", "attempt"]
    assert [times(span) for span in spans.ended()] == [(1, 3), (3, 7), (0, 9)]
    assert parent_of(volumes) == parent_of(devices) == traceparent_of(attempt)
    assert attempt.attributes == {
        "k8s.namespace.name": "team-a",
        "bowline.bindrequest": "train",
        "bowline.attempt": "uid-1",
        "bowline.decision": "Attempt",
        "bowline.outcome": "RETRY",
    }
    assert [span.attributes and span.attributes["bowline.code"] for span in (volumes, devices)] == ["OK", "RETRY"]
    assert [span.status.description for span in spans.ended()] == [None, "no room", "no room"]


def test_a_wait_is_no_error() -> None:
    over = ReconcileInProgress(
        ObjectKey("team-a", "train"), START, 0.0, "uid-1", "Attempt", "WAIT", "claim is pending"
    )
    over.steps.append(Step("volumes", "pre_bind", "WAIT", "claim is pending", 0.0, 1.0))
    spans = Spans()
    record_attempt(spans.tracer, over, 0.001)
    assert [span.status.is_ok for span in spans.ended()] == [True, True]


def test_passes_that_called_plugins_are_traced_in_their_requests_trace() -> None:
    c, spans = context(), Spans()
    harness = Watched(spans.tracer)
    c.request.raw["metadata"]["annotations"] = {"bowline.dev/traceparent": SENT}
    for has_calls in (True, False):
        with harness.observation.track(c.request.key):
            harness.observation.on_decision(c.request, Attempt())
            if has_calls:
                harness.call("binder", "bind", c, Status.ok())
    bind, attempt = spans.ended()
    assert (bind.name, parent_of(attempt)) == ("binder.bind", SENT)
