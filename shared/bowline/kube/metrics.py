"""Metrics of API access: requests, reflectors, events and the Lease."""

from collections.abc import Iterable, Sized
from datetime import datetime
from typing import Protocol
from weakref import WeakSet

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from bowline.api import names
from bowline.runtime.metrics import Durations, init_series

# A write takes 1 to 5 ms on an idle API server.
_BUCKETS = (0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.5, 5.0, 15.0, 60.0)


# Error codes of a request; preset to 0 for every kind of request once it is made.
_FAULTS = ("409", "429", "500", "503", "504", "lost", "unreachable")


class Followed(Protocol):
    """The parts of a reflector that metrics read."""

    @property
    def store(self) -> Sized: ...

    @property
    def last_contact(self) -> datetime | None: ...


class KubeMetrics:
    """Series of client, reflectors and event recorder. One per process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._of_requests(registry)
        self._of_reflectors(registry)
        self._of_events_and_lease(registry)

    def _of_requests(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "bowline_kube_requests_total",
            "Requests to the API server; code is the HTTP status, or unreachable or lost.",
            ("verb", "resource", "code"),
            registry=registry,
        )
        self._seconds = Durations(
            Histogram(
                "bowline_kube_request_seconds",
                "Duration of requests to the API server.",
                ("verb", "resource"),
                buckets=_BUCKETS,
                registry=registry,
            )
        )
        self._policy_denials = Counter(
            "bowline_own_policy_denials_total",
            "Writes that a policy of Bowline itself denied; policy is its name without the release's.",
            ("policy",),
            registry=registry,
        )
        init_series(self._policy_denials, policy=names.POLICIES)
        self._unreadable_objects = Counter(
            "bowline_kube_unreadable_objects_total",
            "Times that an object was not decoded, because it has too many values or JSON that the reader refuses.",
            ("resource",),
            registry=registry,
        )
        # labels() costs more than the increment, and the same few combinations recur.
        self._counters: dict[tuple[str, str, str], Counter] = {}

    def _of_reflectors(self, registry: CollectorRegistry) -> None:
        self.relists = Counter(
            "bowline_reflector_relists_total",
            "Lists of a whole selection, the first one included.",
            ("resource",),
            registry=registry,
        )
        self.callback_errors = Counter(
            "bowline_reflector_callback_errors_total",
            "Exceptions of the callbacks of a watch, by the plugin that owns it; bowline is the process itself.",
            ("plugin", "resource", "callback"),
            registry=registry,
        )
        self._objects = Gauge(
            "bowline_reflector_objects", "Objects kept of a selection.", ("resource",), registry=registry
        )
        self._contact = Gauge(
            "bowline_reflector_last_contact_timestamp_seconds",
            "Time of the API server's last reply to a list or watch; 0 for never.",
            ("resource",),
            registry=registry,
        )
        # Several reflectors may follow one resource, and a reflector may be discarded.
        self._reflectors: dict[str, WeakSet[Followed]] = {}

    def _of_events_and_lease(self, registry: CollectorRegistry) -> None:
        self.events = Counter(
            "bowline_events_total",
            "Events handed to the recorder, by what became of them: written, dropped or failed.",
            ("outcome",),
            registry=registry,
        )
        self.leadership = Counter(
            "bowline_leadership_total",
            "Changes of this process's leadership: acquired, released in good order, or lost.",
            ("change",),
            registry=registry,
        )
        init_series(self.events, outcome=("written", "dropped", "failed"))
        init_series(self.leadership, change=("acquired", "released", "lost"))

    def observe(self, verb: str, resource: str, code: str, seconds: float) -> None:
        """Count one request."""
        key = (verb, resource, code)
        counter = self._counters.get(key)
        if counter is None:
            counter = self._counters[key] = self._requests.labels(*key)
            init_series(self._requests, verb=(verb,), resource=(resource,), code=_FAULTS)
        counter.inc()
        self._seconds.observe(seconds, verb, resource)

    def denied_by_policy(self, policy: str) -> None:
        """Count one write that one of Bowline's own policies denied."""
        self._policy_denials.labels(policy).inc()

    def count_unreadable(self, resource: str) -> None:
        """Count one object that was not decoded."""
        self._unreadable_objects.labels(resource).inc()

    def follow(self, resource: str, reflector: Followed) -> None:
        """Report a reflector's state while it exists; evaluated at each scrape."""
        reflectors = self._reflectors.get(resource)
        if reflectors is not None:
            reflectors.add(reflector)
            return
        reflectors = self._reflectors[resource] = WeakSet((reflector,))
        self._objects.labels(resource).set_function(lambda: sum(len(item.store) for item in reflectors))
        self._contact.labels(resource).set_function(
            lambda: min((r.last_contact.timestamp() if r.last_contact else 0.0 for r in reflectors), default=0.0)
        )
        init_series(self.relists, resource=(resource,))
        init_series(self._unreadable_objects, resource=(resource,))

    def expect_callbacks(self, plugin: str, resource: str, callbacks: Iterable[str]) -> None:
        """Preset the error counters of these callbacks to 0."""
        init_series(self.callback_errors, plugin=(plugin,), resource=(resource,), callback=tuple(callbacks))
