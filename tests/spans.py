"""A tracer that stores its spans in memory, for tests of which spans are recorded."""

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext

SENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Spans:
    """``tracer`` records; ``ended`` returns the finished spans, children before their parents."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("test")

    def ended(self) -> tuple[ReadableSpan, ...]:
        return self._exporter.get_finished_spans()


def traceparent_of(span: ReadableSpan) -> str:
    """The traceparent for spans that follow from this one."""
    return _text(span.context)


def parent_of(span: ReadableSpan) -> str:
    """The traceparent of the span's parent; empty if it has none."""
    return _text(span.parent) if span.parent is not None else ""


def _text(context: SpanContext) -> str:
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
