"""Optional traces: finished spans are passed to OpenTelemetry, which exports them in the background.

Off unless OpenTelemetry's own environment variables configure an endpoint; it also needs an optional extra of this
package (``bowline[tracing]``), and without those libraries the process logs one warning and works without traces.
There is no current span and no propagation within a process: a component records a span when the work is finished,
or starts one whose trace is propagated before. Between processes a trace is propagated as text, by its W3C
``traceparent``.
"""

import asyncio
import importlib
import importlib.util
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

log = logging.getLogger(__name__)

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_NEEDED = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http.trace_exporter")
# A process that must shut down does not wait longer for the exporter.
_GOODBYE_MS = 2000
_MICROSECOND = timedelta(microseconds=1)
_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")

Attributes = Mapping[str, str | int | float | bool]


@dataclass(frozen=True, slots=True)
class Span:
    """Finished work. ``error`` is the reason if it failed."""

    name: str
    began: datetime
    ended: datetime
    attributes: Attributes = field(default_factory=dict)
    error: str = ""
    parts: tuple["Span", ...] = ()


class StartedSpan:
    """A span in progress. ``traceparent`` is for spans that follow from it; empty if it is not sampled."""

    def __init__(self, span: Any, failed: Callable[[str], Any], traceparent: str) -> None:
        self.traceparent = traceparent
        self._span = span
        self._failed = failed

    def end(self, attributes: Attributes, error: str = "") -> None:
        """Record what has been done; ``error`` is the reason if it failed."""
        self._span.set_attributes(dict(attributes))
        if error:
            self._span.set_status(self._failed(error))
        self._span.end()


class Tracer:
    """Records spans. ``provider`` is an OpenTelemetry SDK TracerProvider, which exports them."""

    def __init__(self, provider: Any) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("bowline")
        self._trace = importlib.import_module("opentelemetry.trace")
        w3c = importlib.import_module("opentelemetry.trace.propagation.tracecontext")
        self._propagator = w3c.TraceContextTextMapPropagator()

    def record(self, span: Span, parent: str = "") -> str:
        """Record a span with its parts; returns its traceparent, for spans that follow from it.

        ``parent`` is a traceparent; anything else starts a new trace.
        """
        return self._traceparent(self._record(span, self._context(parent)))

    def start(self, name: str, parent: str = "") -> StartedSpan:
        """Start a span now; the caller ends it. ``parent`` as in ``record``."""
        span = self._tracer.start_span(name, context=self._context(parent))
        return StartedSpan(span, self._failed, self._traceparent(span))

    async def close(self) -> None:
        """Export the remaining spans, for at most 2 s, and shut down."""
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._provider.force_flush(_GOODBYE_MS)
        self._provider.shutdown()

    def _context(self, parent: str) -> Any:
        return self._propagator.extract({"traceparent": parent}, context=None) if parent else None

    def _traceparent(self, span: Any) -> str:
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, context=self._trace.set_span_in_context(span))
        return carrier.get("traceparent", "")

    def _failed(self, reason: str) -> Any:
        return self._trace.Status(self._trace.StatusCode.ERROR, reason)

    def _record(self, span: Span, context: Any) -> Any:
        made = self._tracer.start_span(
            span.name, context=context, attributes=dict(span.attributes), start_time=_ns(span.began)
        )
        if span.error:
            made.set_status(self._failed(span.error))
        inner = self._trace.set_span_in_context(made)
        for part in span.parts:
            self._record(part, inner)
        made.end(end_time=_ns(span.ended))
        return made


def configured_tracer(service: str, environment: Mapping[str, str] = os.environ) -> Tracer | None:
    """Return a tracer if the environment configures one and the libraries are installed; logs missing ones."""
    wanted = any(environment.get(name) for name in ENDPOINTS)
    if not wanted or environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    missing = [name for name in _NEEDED if not _is_installed(name)]
    if missing:
        log.warning(
            "tracing is configured but not installed",
            extra={"missing": missing, "remedy": "install bowline[tracing] into the image"},
        )
        return None
    sdk = importlib.import_module("opentelemetry.sdk.trace")
    export = importlib.import_module("opentelemetry.sdk.trace.export")
    otlp = importlib.import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    resources = importlib.import_module("opentelemetry.sdk.resources")
    name = environment.get("OTEL_SERVICE_NAME") or service
    provider = sdk.TracerProvider(resource=resources.Resource.create({"service.name": name}), shutdown_on_exit=False)
    provider.add_span_processor(export.BatchSpanProcessor(otlp.OTLPSpanExporter()))
    return Tracer(provider)


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _ns(moment: datetime) -> int:
    """Return nanoseconds since 1970, exactly: a float would be off by some hundred."""
    return (moment - _EPOCH) // _MICROSECOND * 1000
