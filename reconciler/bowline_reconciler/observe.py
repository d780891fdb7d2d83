"""What is observed of reconciles and plugins: metrics, and log lines of many failures. The only observer.

Series exist from the start; no label contains an object's name. docs/metrics.md documents each one and when to act on
it; a test keeps the two consistent. Nothing here may make a reconcile fail, or change its result.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from bowline.api.bindrequest import BindRequest, Phase
from bowline.api.meta import ObjectKey
from bowline.framework.interface.context import BindContext
from bowline.framework.interface.status import Cancelled, Done, Fatal, Retriable, Status, Transient, Waiting
from bowline.framework.reason import Reason
from bowline.runtime.clock import Clock
from bowline.runtime.logging import add_to_scope
from bowline.runtime.metrics import BIND_BUCKETS, Durations, init_series
from bowline_reconciler.decide.actions import Action

log = logging.getLogger(__name__)

# How often a plugin's error outside an attempt is logged; every one is counted.
LOG_EVERY_S = 60.0
# Between two log lines about failing requests.
LOG_FAILURES_EVERY_S = 30.0
# Used in place of a plugin's name for the reconciler itself.
OWN = "bowline"
# The step of a reconcile while no plugin is called: it reads, writes, or waits for a rate limiter.
BETWEEN = "reconcile"
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
        self.queue_depth = Gauge("bowline_queue_depth", "Keys that are ready.", registry=registry)
        self.leader = Gauge("bowline_leader", "1 while this process leads.", registry=registry)
        self._waiting_plugins = (OWN, *plugins)

    def count(
        self,
        in_flight: Callable[[], Mapping[str, int]],
        waits: Callable[[], Mapping[str, int]],
        remembered: Callable[[], Mapping[str, int]],
    ) -> None:
        """Export, as counted at each scrape: reconciles by step, waits by plugin, what is remembered by kind."""
        for gauge in (
            _Counts(
                "bowline_attempts_in_flight",
                "Reconciles in progress, by extension point; reconcile: between plugins.",
                "step",
                STEPS,
                in_flight,
            ),
            _Counts(
                "bowline_requests_waiting",
                "Requests that wait, by the plugin that asked for it; bowline: scheduling gates and order.",
                "plugin",
                self._waiting_plugins,
                waits,
            ),
            _Counts(
                "bowline_remembered",
                "Entries of what the reconciler remembers.",
                "state",
                tuple(remembered()),
                remembered,
            ),
        ):
            self.registry.register(gauge)


@dataclass(frozen=True, slots=True)
class _Counts(Collector):
    """A gauge that is counted once for all its labels."""

    name: str
    text: str
    label: str
    values: Sequence[str]
    count: Callable[[], Mapping[str, int]]

    def describe(self) -> Iterable[Metric]:
        return (GaugeMetricFamily(self.name, self.text, labels=(self.label,)),)

    def collect(self) -> Iterable[Metric]:
        gauge, counts = GaugeMetricFamily(self.name, self.text, labels=(self.label,)), self.count()
        for value in self.values:
            gauge.add_metric((value,), counts.get(value, 0))
        return (gauge,)


class Observation:
    """Observes every reconcile, and the plugins' calls. One per process."""

    def __init__(self, metrics: ReconcilerMetrics, clock: Clock) -> None:
        self.metrics = metrics
        self._clock = clock
        self._next_log: dict[tuple[str, str], float] = {}
        self._next_failure_log = float("-inf")
        self._failures_to_log = 0

    # --- reconciles ---

    def on_decision(self, request: BindRequest, _: Action) -> None:
        """Take note of a decision; from here on log lines name the attempt."""
        add_to_scope(pod=str(request.pod_key), attempt=request.attempt_id)

    def attempt_ended(self, ctx: BindContext, status: Status, since: float | None) -> None:
        """Record an attempt's result. ``since``: when its reconcile began, monotonic."""
        total, seconds = self.metrics.attempts_of[status.code]
        total.inc()
        if since is not None:
            seconds.observe(self._clock.monotonic() - since)
        if not isinstance(status, Done):
            # There may be thousands of transient failures a minute; they are logged in summary elsewhere.
            level = logging.DEBUG if isinstance(status, Transient) else logging.INFO
            fields = {"code": status.code, "plugin": status.plugin, "why": status.message}
            log.log(level, "attempt ended", extra=fields)

    def on_transient_failure(self, key: ObjectKey, why: str, *, is_quiet: bool) -> None:
        """Record a transient failure; another reconcile follows. ``is_quiet``: the request has had few in a row.

        Thousands of requests may fail at the same time, so the log has one line for all of them.
        """
        now = self._clock.monotonic()
        fields: dict[str, object] = {"bindRequest": str(key), "why": why}
        log.debug("a reconcile has failed", extra=fields)
        self._failures_to_log += 1
        if not is_quiet and now >= self._next_failure_log:
            fields["failures"] = self._failures_to_log
            log.warning("reconciles fail, the latest is an example", extra=fields)
            self._next_failure_log = now + LOG_FAILURES_EVERY_S
            self._failures_to_log = 0

    # --- plugins: bowline.framework.binding.calls.Observer ---

    def plugin_raised(self, plugin: str, point: str, context: BindContext | None, error: Exception) -> None:
        """Count and log an exception, or a result of a wrong type, of a plugin.

        Functions called outside an attempt, such as ``applies``, run in every reconcile of every
        request, without a backoff: their errors are logged once a minute per plugin and point.
        """
        self.metrics.plugin_errors.labels(plugin=plugin, point=point).inc()
        if context is None:
            now = self._clock.monotonic()
            if now < self._next_log.get((plugin, point), now):
                return
            self._next_log[plugin, point] = now + LOG_EVERY_S
        log.error("plugin raised", extra={"plugin": plugin, "point": point}, exc_info=error)
