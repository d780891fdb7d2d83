"""What this process asks of the API server, counted."""

from collections.abc import Callable, Sized
from datetime import datetime

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from shared.runtime.metrics import preset

# A write takes 1 to 5 ms on a quiet API server and is given up after 60 s.
_BUCKETS = (0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.5, 5.0, 15.0, 60.0)


class KubeMetrics:
    """Series of client, reflectors and event recorder. One per process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "bowline_kube_requests_total",
            "Requests to the API server; code is the HTTP status, or unreachable or lost.",
            ("verb", "resource", "code"),
            registry=registry,
        )
        self._seconds = Histogram(
            "bowline_kube_request_seconds",
            "Duration of requests to the API server, without the wait for a limiter.",
            ("verb", "resource"),
            buckets=_BUCKETS,
            registry=registry,
        )
        self._limited = Counter(
            "bowline_kube_limiter_wait_seconds_total",
            "Time that writes have waited for a limit of the client configuration.",
            ("write_class",),
            registry=registry,
        )
        self.relists = Counter(
            "bowline_reflector_relists_total",
            "Lists of a whole selection, the first one included.",
            ("resource",),
            registry=registry,
        )
        self.watch_restarts = Counter(
            "bowline_reflector_watch_restarts_total",
            "Watches opened again, by what ended the one before: closed, lost or expired.",
            ("resource", "cause"),
            registry=registry,
        )
        self._objects = Gauge(
            "bowline_reflector_objects", "Objects kept of a selection.", ("resource",), registry=registry
        )
        self._contact = Gauge(
            "bowline_reflector_last_contact_timestamp_seconds",
            "When the API server was last heard of by a list or watch; 0 for never.",
            ("resource",),
            registry=registry,
        )
        self.events = Counter(
            "bowline_events_total",
            "Events handed to the recorder, by what became of them: written, dropped or failed.",
            ("outcome",),
            registry=registry,
        )
        preset(self.events, outcome=("written", "dropped", "failed"))
        # labels() costs more than counting; the same few combinations come again and again.
        self._counters: dict[tuple[str, str, str], Counter] = {}
        self._histograms: dict[tuple[str, str], Histogram] = {}

    def observe(self, verb: str, resource: str, code: str, seconds: float) -> None:
        """Count one request."""
        key = (verb, resource, code)
        counter = self._counters.get(key)
        if counter is None:
            counter = self._counters[key] = self._requests.labels(*key)
        counter.inc()
        histogram = self._histograms.get(key[:2])
        if histogram is None:
            histogram = self._histograms[key[:2]] = self._seconds.labels(*key[:2])
        histogram.observe(seconds)

    def follow(self, resource: str, store: Sized, last_contact: Callable[[], datetime | None]) -> None:
        """Show a reflector's state; asked for when metrics are read."""
        self._objects.labels(resource).set_function(lambda: len(store))
        self._contact.labels(resource).set_function(
            lambda: contact.timestamp() if (contact := last_contact()) else 0.0
        )

    def limited(self, write_class: str, seconds: float) -> None:
        """Count the wait for a limiter."""
        self._limited.labels(write_class).inc(seconds)
