"""A tracer that keeps what it is told; for tests of who tells it what."""

from shared.runtime.tracing import Span, Tracer

SENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Kept(Tracer):
    """Keeps what it is told, and gives every span the same traceparent."""

    def __init__(self) -> None:
        self.spans: list[tuple[Span, str]] = []

    def record(self, span: Span, parent: str = "") -> str:
        self.spans.append((span, parent))
        return SENT
