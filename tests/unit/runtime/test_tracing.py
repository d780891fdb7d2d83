"""Traces: off by default, and one trace from one process to the next."""

import logging

import pytest

from bowline.runtime.tracing import (
    ENDPOINTS,
    OFF,
    configured_tracing,
    parent_context,
    set_error,
    traceparent_of,
)
from tests.spans import SENT, Spans, parent_of
from tests.spans import traceparent_of as expected_of


def test_a_trace_continues_in_the_next_process_by_its_traceparent() -> None:
    webhook, reconciler = Spans(), Spans()
    admission = webhook.tracer.start_span("admission", parent_context(""))
    traceparent = traceparent_of(admission)
    admission.end()
    reconciler.tracer.start_span("attempt", parent_context(traceparent)).end()
    (first,), (second,) = webhook.ended(), reconciler.ended()
    assert traceparent == expected_of(first) == parent_of(second)
    assert second.context.trace_id == first.context.trace_id


@pytest.mark.parametrize("parent", ["", "nonsense", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"])
def test_an_invalid_traceparent_begins_a_new_trace(parent: str) -> None:
    spans = Spans()
    spans.tracer.start_span("attempt", parent_context(parent)).end()
    assert parent_of(spans.ended()[0]) == ""


def test_an_error_is_recorded_with_its_reason() -> None:
    spans = Spans()
    for error in ("no room", ""):
        span = spans.tracer.start_span("attempt")
        set_error(span, error)
        span.end()
    failed_span, ok_span = spans.ended()
    assert (failed_span.status.is_ok, failed_span.status.description) == (False, "no room")
    assert (ok_span.status.is_ok, ok_span.status.description) == (True, None)


def test_without_an_sdk_no_trace_is_propagated() -> None:
    span = OFF.start_span("admission", parent_context(SENT))
    assert not span.is_recording()
    assert traceparent_of(span) == ""


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param({}, id="not configured"),
        pytest.param({ENDPOINTS[1]: ""}, id="an empty endpoint"),
        pytest.param({ENDPOINTS[1]: "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"}, id="switched off"),
    ],
)
async def test_it_is_off_unless_an_endpoint_is_configured(environment: dict[str, str]) -> None:
    tracing = configured_tracing("bowline-test", environment)
    assert tracing.tracer is OFF
    await tracing.close()


async def test_an_unavailable_endpoint_does_not_delay_the_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    # Read by the exporter itself.
    monkeypatch.setenv(ENDPOINTS[1], "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    tracing = configured_tracing("bowline-test", {ENDPOINTS[1]: "http://127.0.0.1:1"})
    assert tracing.tracer is not OFF
    tracing.tracer.start_span("attempt").end()
    await tracing.close()
