"""A tracer that stores its spans, for tests of which spans are recorded."""

from datetime import UTC, datetime

from shared.runtime.tracing import Attributes, Span, StartedSpan, Tracer

SENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Kept(Tracer):
    """Stores each span with its parent, and gives every span the same traceparent."""

    def __init__(self) -> None:
        self.spans: list[tuple[Span, str]] = []

    def record(self, span: Span, parent: str = "") -> str:
        self.spans.append((span, parent))
        return SENT

    def start(self, name: str, parent: str = "") -> StartedSpan:
        return _KeptSpan(self, name, parent)


class _KeptSpan(StartedSpan):
    def __init__(self, tracer: Kept, name: str, parent: str) -> None:
        self.traceparent = SENT
        self._started = (tracer, name, parent, datetime.now(UTC))

    def end(self, attributes: Attributes, fault: str = "") -> None:
        tracer, name, parent, began = self._started
        tracer.record(Span(name, began, datetime.now(UTC), attributes, fault), parent)
