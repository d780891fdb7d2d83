"""Metrics of the webhook. Every series exists from the start, so that ``rate`` counts the first event."""

from collections.abc import Callable, Iterable
from datetime import datetime

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from shared.runtime.metrics import ADMISSION_BUCKETS, init_series
from webhook.hooks import Hook
from webhook.tls.rotation import Action

# Extension points whose exceptions the admission chain catches.
POINTS = (
    "mutate_pod",
    "validate_pod",
    "mutate_ephemeral_containers",
    "validate_ephemeral_containers",
    "mutate_bind_request",
    "validate_bind_request",
    "has_side_effects",
)


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
        self._took = {hook: duration.labels(hook=hook) for hook in Hook}

    def observe_answer(self, hook: Hook, seconds: float, *, allowed: bool) -> None:
        """Count an answered review, allowed or denied; ``seconds`` is its duration."""
        self._reviews[hook, allowed].inc()
        self._took[hook].observe(seconds)


class CertificateMetrics:
    """Certificate metrics: expiry, renewals, rotation steps, conflicts and caBundle mismatches."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._not_after = Gauge(
            "bowline_certificate_not_after_timestamp_seconds",
            "Expiry of the certificate: the serving one (leaf), the CA that signs (ca); 0 if there is none.",
            ["certificate"],
            registry=registry,
        )
        self.leaf_renewals = Counter(
            "bowline_certificate_renewals", "Serving certificates exchanged while serving.", registry=registry
        )
        self.ca_steps = Counter(
            "bowline_ca_steps",
            "Steps of the CA's rotation executed by this replica.",
            ["step"],
            registry=registry,
        )
        self.ca_conflicts = Counter(
            "bowline_ca_write_conflicts", "Writes rejected because another replica was first.", registry=registry
        )
        self.ca_bundle_mismatches = Gauge(
            "bowline_ca_bundle_mismatches",
            "Webhook entries with another caBundle than required; corrected if this webhook publishes it.",
            registry=registry,
        )
        init_series(self._not_after, certificate=("leaf", "ca"))
        init_series(self.ca_steps, step=Action)

    def follow(self, certificate: str, not_after: Callable[[], datetime | None]) -> None:
        """Report a certificate's expiry, evaluated at each scrape."""

        def seconds() -> float:
            end = not_after()
            return end.timestamp() if end is not None else 0.0

        self._not_after.labels(certificate=certificate).set_function(seconds)
