"""The reconciler's metrics. Series exist from the start; no label contains an object's name.

docs/metrics.md documents each one and when to act on it; a test keeps the two consistent.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from bowline.api.bindrequest import Phase
from bowline.framework.interface.status import Cancelled, Done, Fatal, Retriable, Transient, Waiting
from bowline.framework.reason import Reason
from bowline.runtime.metrics import BIND_BUCKETS, Durations, init_series
from bowline_reconciler.observe.reconciles import BETWEEN, OWN

OUTCOMES = tuple(kind.code for kind in (Done, Waiting, Retriable, Fatal, Transient, Cancelled))
# Creations are stored in whole seconds; what is faster is in the duration of attempts.
AGE_BUCKETS = tuple(float(2**k) for k in range(11))
# Extension points whose calls take time; the others are plain functions.
POINTS = ("pre_bind", "bind", "post_bind", "rollback")
STEPS = (*POINTS, BETWEEN)


class ReconcilerMetrics:
    """The reconciler's series in a registry. ``acting`` maps extension points to the plugins that implement them."""

    def __init__(self, registry: CollectorRegistry, acting: Mapping[str, Iterable[str]] | None = None) -> None:
        self.registry = registry
        calls = [(plugin, point) for point in POINTS for plugin in (acting or {}).get(point, ())]
        self._plugin_names = frozenset(plugin for plugins in (acting or {}).values() for plugin in plugins)
        self._reconciles(registry)
        self._plugins(registry, calls, acting or {})
        self._state(registry, sorted({plugin for plugin, _ in calls}))

    def _reconciles(self, registry: CollectorRegistry) -> None:
        self.attempts = Counter("bowline_attempts_total", "Attempts by outcome.", ["outcome"], registry=registry)
        self.attempt_seconds = Histogram(
            "bowline_attempt_duration_seconds",
            "Attempts, from their first step to the bind or the failure.",
            ["outcome"],
            registry=registry,
            buckets=BIND_BUCKETS,
        )
        self.finished_requests = Counter(
            "bowline_requests_finished_total",
            "Requests that ended, by final reason and whose it is; Succeeded for those that worked.",
            ["reason", "plugin"],
            registry=registry,
        )
        self.bind_seconds = Histogram(
            "bowline_bind_duration_seconds",
            "From the request's creation to Succeeded.",
            registry=registry,
            buckets=AGE_BUCKETS,
        )
        self.reconcile_errors = Counter(
            "bowline_pass_errors_total", "Reconciles ended by a defect of the reconciler itself.", registry=registry
        )
        self.attempts_of = {
            outcome: (self.attempts.labels(outcome), self.attempt_seconds.labels(outcome)) for outcome in OUTCOMES
        }
        self.succeeded = self.finished_requests.labels(Phase.SUCCEEDED.value, OWN)
        # By reason, and whose failure it is; of a name that is no plugin's it is Bowline's own.
        self.failed_requests = {
            (reason.value, plugin): self.finished_requests.labels(reason.value, plugin)
            for reason in Reason
            for plugin in (OWN, *self._plugin_names)
        }

    def _plugins(
        self, registry: CollectorRegistry, calls: Iterable[tuple[str, str]], acting: Mapping[str, Iterable[str]]
    ) -> None:
        self.plugin_seconds = Histogram(
            "bowline_plugin_duration_seconds",
            "Duration of calls of plugins.",
            ["plugin", "point", "code"],
            registry=registry,
            buckets=BIND_BUCKETS,
        )
        self.plugin_errors = Counter(
            "bowline_plugin_errors_total",
            "Exceptions of plugins, and results of a wrong type.",
            ["plugin", "point"],
            registry=registry,
        )
        # A histogram takes 5.4 KB: those of other codes begin with the first call.
        for plugin, point in calls:
            init_series(self.plugin_seconds, plugin=(plugin,), point=(point,), code=(Done.code,))
        for point, plugins in acting.items():
            init_series(self.plugin_errors, plugin=plugins, point=(point,))
        self.calls = Durations(self.plugin_seconds)

    def _state(self, registry: CollectorRegistry, plugins: Iterable[str]) -> None:
        self.oldest_request = Gauge(
            "bowline_requests_oldest_seconds",
            "Age of the oldest unfinished request that this process has cached; 0 if there is none.",
            registry=registry,
        )
        self.queue_depth = Gauge("bowline_queue_depth", "Keys that could be taken now.", registry=registry)
        self.leader = Gauge("bowline_leader", "1 while this process leads.", registry=registry)
        self._in_flight = Gauge(
            "bowline_attempts_in_flight",
            "Reconciles in progress, by extension point; reconcile: between plugins.",
            ["step"],
            registry=registry,
        )
        self._waits = Gauge(
            "bowline_requests_waiting",
            "Requests that wait for an object, by the plugin that asked for it; bowline: scheduling gates and order.",
            ["plugin"],
            registry=registry,
        )
        init_series(self._in_flight, step=STEPS)
        self._waiting_plugins = (OWN, *plugins)
        init_series(self._waits, plugin=self._waiting_plugins)

    def in_flight(self, count: Callable[[], Mapping[str, int]]) -> None:
        """Export the number of reconciles in progress by step; ``count`` is called at each scrape."""
        for step in STEPS:
            self._in_flight.labels(step).set_function(partial(_of, count, step))

    def waits(self, count: Callable[[], Mapping[str, int]]) -> None:
        """Export the number of waiting requests by plugin; ``count`` is called at each scrape."""
        for plugin in self._waiting_plugins:
            self._waits.labels(plugin).set_function(partial(_of, count, plugin))

    def remembered(self, count: Callable[[], Mapping[str, int]]) -> None:
        """Export the sizes of what the reconciler remembers; ``count`` is called at each scrape."""
        gauge = Gauge(
            "bowline_remembered", "Entries of what the reconciler remembers.", ["state"], registry=self.registry
        )
        for state in count():
            gauge.labels(state).set_function(partial(_of, count, state))


def _of(count: Callable[[], Mapping[str, int]], state: str) -> int:
    return count().get(state, 0)
