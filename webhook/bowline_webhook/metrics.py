"""Metrics of the webhook. Every series exists from the start, so that ``rate`` counts the first event."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from bowline.framework.interface.plugin import AdmissionPlugin
from bowline.runtime.metrics import ADMISSION_BUCKETS, init_series
from bowline_webhook.hooks import Hook

# Extension points whose exceptions the admission chain catches.
POINTS = (*(name for name in vars(AdmissionPlugin) if not name.startswith("_")), "has_side_effects")


class WebhookMetrics:
    """The webhook's series in the process's registry."""

    def __init__(self, registry: CollectorRegistry, plugins: Iterable[str]) -> None:
        requests = Counter(
            "bowline_admission_requests", "Reviews answered, by verdict.", ["hook", "allowed"], registry=registry
        )
        duration = Histogram(
            "bowline_admission_duration_seconds",
            "Time from a review's body to its answer, without the network.",
            ["hook"],
            registry=registry,
            buckets=ADMISSION_BUCKETS,
        )
        self.bad_requests = Counter(
            "bowline_admission_bad_requests", "Requests that were no review to answer.", ["code"], registry=registry
        )
        self.plugin_errors = Counter(
            "bowline_admission_plugin_errors",
            "Exceptions of plugins: bugs of theirs, not of the object.",
            ["plugin", "point"],
            registry=registry,
        )
        self.crashes = Counter(
            "bowline_admission_crashes", "Reviews denied because Bowline itself failed.", ["hook"], registry=registry
        )
        self.not_enforced = Counter(
            "bowline_admission_not_enforced",
            "Reviews allowed by admission.mode: Warn that Enforce would have denied.",
            ["hook"],
            registry=registry,
        )
        self.in_flight = Gauge(
            "bowline_admission_under_way", "Requests that have begun and are not answered.", registry=registry
        )
        init_series(self.bad_requests, code=("400", "404", "405", "408", "413", "415", "429", "431"))
        init_series(self.plugin_errors, plugin=plugins, point=POINTS)
        init_series(self.crashes, hook=Hook)
        init_series(self.not_enforced, hook=Hook)
        # Updated for every review; looking a series up by its labels costs more than the increment. This also presets
        # them.
        self._reviews = {
            (hook, allowed): requests.labels(hook=hook, allowed=str(allowed).lower())
            for hook in Hook
            for allowed in (True, False)
        }
        self._durations = {hook: duration.labels(hook=hook) for hook in Hook}

    def observe_answer(self, hook: Hook, seconds: float, *, allowed: bool) -> None:
        """Count an answered review, allowed or denied; ``seconds`` is its duration."""
        self._reviews[hook, allowed].inc()
        self._durations[hook].observe(seconds)
