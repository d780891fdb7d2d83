"""Optional traces, by the OpenTelemetry API, whose spans do nothing without an SDK.

Off unless OpenTelemetry's own environment variables configure an endpoint; it also needs an optional extra of this
package (the extra ``tracing``), and without those libraries the process logs one warning and works without traces.
No span is current within a process: each is started with its parent. Between processes a trace is propagated as text,
by its W3C ``traceparent``.
"""

import asyncio
import importlib
import importlib.util
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from opentelemetry.context import Context
from opentelemetry.trace import NoOpTracer, Span, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

log = logging.getLogger(__name__)

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_NEEDED = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http.trace_exporter")
# A process that must shut down does not wait longer for the exporter.
_GOODBYE_MS = 2000
_MICROSECOND = timedelta(microseconds=1)
_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
_PROPAGATOR = TraceContextTextMapPropagator()

OFF: Tracer = NoOpTracer()


@dataclass(frozen=True, slots=True)
class Tracing:
    """A process's tracer. ``provider`` is the OpenTelemetry SDK's, which exports the spans; None if off."""

    tracer: Tracer = OFF
    provider: Any = None

    async def close(self) -> None:
        """Export the remaining spans, for at most 2 s, and shut down."""
        if self.provider is not None:
            await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self.provider.force_flush(_GOODBYE_MS)
        self.provider.shutdown()


def parent_context(traceparent: str) -> Context:
    """Return the context for a span that continues a trace; anything but a valid traceparent starts a new one."""
    return _PROPAGATOR.extract({"traceparent": traceparent}, Context()) if traceparent else Context()


def traceparent_of(span: Span) -> str:
    """Return the traceparent for spans that follow from this one; empty if it is not recorded."""
    carrier: dict[str, str] = {}
    if span.is_recording():
        _PROPAGATOR.inject(carrier, set_span_in_context(span, Context()))
    return carrier.get("traceparent", "")


def set_error(span: Span, error: str) -> None:
    """Mark the span as failed with this reason; an empty one is no failure."""
    if error:
        span.set_status(Status(StatusCode.ERROR, error))


def nanoseconds(moment: datetime) -> int:
    """Return nanoseconds since 1970, exactly: a float would be off by some hundred."""
    return (moment - _EPOCH) // _MICROSECOND * 1000


def configured_tracing(service: str, environment: Mapping[str, str] = os.environ) -> Tracing:
    """Return the tracing that the environment configures; it is off if libraries are missing, which is logged."""
    has_endpoint = any(environment.get(name) for name in ENDPOINTS)
    if not has_endpoint or environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return Tracing()
    missing = [name for name in _NEEDED if not _is_installed(name)]
    if missing:
        log.warning(
            "tracing is configured but not installed",
            extra={
                "missing": missing,
                "remedy": "use the project's image, or install the extra `tracing`",
            },
        )
        return Tracing()
    sdk = importlib.import_module("opentelemetry.sdk.trace")
    export = importlib.import_module("opentelemetry.sdk.trace.export")
    otlp = importlib.import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    resources = importlib.import_module("opentelemetry.sdk.resources")
    name = environment.get("OTEL_SERVICE_NAME") or service
    provider = sdk.TracerProvider(resource=resources.Resource.create({"service.name": name}), shutdown_on_exit=False)
    provider.add_span_processor(export.BatchSpanProcessor(otlp.OTLPSpanExporter()))
    return Tracing(provider.get_tracer("bowline"), provider)


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
