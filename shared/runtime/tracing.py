"""Traces, if wanted: spans that are over are handed to OpenTelemetry, which sends them on in the background.

Off unless an endpoint is configured by OpenTelemetry's own environment variables, and then an optional extra of this
package (``bowline[tracing]``): without the libraries a process says so once and works all the same. There is no
current span and nothing to propagate within a process: whoever did the work knows when it began, and tells of it when
it is over. From one process to the next a trace goes by its W3C ``traceparent``, as text.
"""

import asyncio
import importlib
import importlib.util
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

log = logging.getLogger(__name__)

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_NEEDED = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http.trace_exporter")
# A process that is told to stop has better things to wait for.
_GOODBYE_MS = 2000
_MICROSECOND = timedelta(microseconds=1)
_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")

Attributes = Mapping[str, str | int | float | bool]


@dataclass(frozen=True, slots=True)
class Span:
    """Work that is over. ``fault`` says in words why it failed, if it did."""

    name: str
    began: datetime
    ended: datetime
    attributes: Attributes = field(default_factory=dict)
    fault: str = ""
    parts: tuple["Span", ...] = ()


class Tracer:
    """Hands spans over. ``provider`` is an OpenTelemetry SDK TracerProvider, which decides what becomes of them."""

    def __init__(self, provider: Any) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("bowline")
        self._trace = importlib.import_module("opentelemetry.trace")
        w3c = importlib.import_module("opentelemetry.trace.propagation.tracecontext")
        self._propagator = w3c.TraceContextTextMapPropagator()

    def record(self, span: Span, parent: str = "") -> str:
        """Hand a span over with its parts; returns its traceparent, for what follows from it.

        ``parent`` is a traceparent; anything else begins a new trace.
        """
        context = self._propagator.extract({"traceparent": parent}, context=None) if parent else None
        made = self._record(span, context)
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, context=self._trace.set_span_in_context(made))
        return carrier.get("traceparent", "")

    async def close(self) -> None:
        """Send what is left, if that can be done at once, and stop."""
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._provider.force_flush(_GOODBYE_MS)
        self._provider.shutdown()

    def _record(self, span: Span, context: Any) -> Any:
        made = self._tracer.start_span(
            span.name, context=context, attributes=dict(span.attributes), start_time=_ns(span.began)
        )
        if span.fault:
            made.set_status(self._trace.Status(self._trace.StatusCode.ERROR, span.fault))
        inner = self._trace.set_span_in_context(made)
        for part in span.parts:
            self._record(part, inner)
        made.end(end_time=_ns(span.ended))
        return made


def configured_tracer(service: str, environment: Mapping[str, str] = os.environ) -> Tracer | None:
    """Return a tracer if the environment asks for one and the libraries are there; says what is missing."""
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
