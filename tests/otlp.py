"""Receives traces over OTLP, as a collector does."""

import http.server
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest


class Receiver(http.server.ThreadingHTTPServer):
    """Stores what it receives."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Take)
        self.bodies: list[bytes] = []

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment with which a process sends its traces here, soon."""
        endpoint = f"http://127.0.0.1:{self.server_port}"
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_BSP_SCHEDULE_DELAY": "100"}

    def spans(self) -> Sequence[Any]:
        """Return all spans so far. Skips the test if the exporter is not installed."""
        messages = pytest.importorskip(
            "opentelemetry.proto.collector.trace.v1.trace_service_pb2",
            reason="the extra tracing is not installed",
        )
        batches = [messages.ExportTraceServiceRequest.FromString(body) for body in list(self.bodies)]
        return [
            span
            for batch in batches
            for resource in batch.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


class _Take(http.server.BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        self.server.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name it has there
        """Log nothing."""


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver that runs until the block ends."""
    with Receiver() as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield server
        server.shutdown()
        serving.join()
