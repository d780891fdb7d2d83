"""Traces: off by default, complete when on, and one trace from one process to the next."""

import logging
from datetime import timedelta
from typing import Any

import pytest

from shared.runtime.tracing import ENDPOINTS, Span, Tracer, configured_tracer
from shared.testing.clock import START

sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="the extra bowline[tracing] is not installed")
export = pytest.importorskip("opentelemetry.sdk.trace.export")
memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")


def recorded() -> tuple[Tracer, Any]:
    exporter = memory.InMemorySpanExporter()
    provider = sdk.TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(export.SimpleSpanProcessor(exporter))
    return Tracer(provider), exporter


PART = Span(
    "binder.bind", START + timedelta(milliseconds=1), START + timedelta(milliseconds=3), {"bowline.code": "OK"}
)
WHOLE = Span("attempt", START, START + timedelta(milliseconds=4), {"bowline.attempt": "x-1"}, parts=(PART,))


async def test_a_span_is_exported_with_its_children_times_and_error() -> None:
    tracer, exporter = recorded()
    tracer.record(WHOLE)
    tracer.record(Span("attempt", START, START, error="no room"))
    part, whole, failed = exporter.get_finished_spans()
    assert (part.name, whole.name) == ("binder.bind", "attempt")
    assert part.parent.span_id == whole.context.span_id
    assert whole.parent is None
    assert (part.end_time - part.start_time, whole.end_time - whole.start_time) == (2_000_000, 4_000_000)
    assert part.start_time - whole.start_time == 1_000_000
    assert (part.attributes["bowline.code"], whole.attributes["bowline.attempt"]) == ("OK", "x-1")
    assert (failed.status.is_ok, failed.status.description) == (False, "no room")
    await tracer.close()


async def test_a_trace_continues_in_the_next_process_by_its_traceparent() -> None:
    (webhook, first), (reconciler, second) = recorded(), recorded()
    traceparent = webhook.record(Span("admission", START, START))
    reconciler.record(WHOLE, traceparent)
    (admission,), (_, attempt) = first.get_finished_spans(), second.get_finished_spans()
    assert attempt.context.trace_id == admission.context.trace_id
    assert attempt.parent.span_id == admission.context.span_id
    assert traceparent.startswith(f"00-{admission.context.trace_id:032x}-{admission.context.span_id:016x}-")
    await webhook.close()
    await reconciler.close()


@pytest.mark.parametrize("parent", ["", "nonsense", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"])
async def test_an_invalid_traceparent_begins_a_new_trace(parent: str) -> None:
    tracer, exporter = recorded()
    tracer.record(WHOLE, parent)
    assert exporter.get_finished_spans()[-1].parent is None
    await tracer.close()


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param({}, id="not configured"),
        pytest.param({ENDPOINTS[1]: ""}, id="an empty endpoint"),
        pytest.param({ENDPOINTS[1]: "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"}, id="switched off"),
    ],
)
def test_it_is_off_unless_an_endpoint_is_configured(environment: dict[str, str]) -> None:
    assert configured_tracer("bowline-test", environment) is None


async def test_an_unavailable_endpoint_does_not_delay_the_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    # Read by the exporter itself.
    monkeypatch.setenv(ENDPOINTS[1], "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    tracer = configured_tracer("bowline-test", {ENDPOINTS[1]: "http://127.0.0.1:1"})
    assert tracer is not None
    tracer.record(WHOLE)
    await tracer.close()
