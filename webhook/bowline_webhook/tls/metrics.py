"""Metrics of certificates. Every series exists from the start, so that ``rate`` counts the first event."""

from collections.abc import Callable
from datetime import datetime

from prometheus_client import CollectorRegistry, Counter, Gauge

from bowline.runtime.metrics import init_series
from bowline_webhook.tls.rotation import Action


class CertificateMetrics:
    """Certificate metrics: expiry, renewals, steps of the rotation, and whether they can be written."""

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
        self.ca_unwritable = Gauge(
            "bowline_ca_unwritable",
            "1 while the CA's Secret or a webhook configuration cannot be read or written; the log has the reason.",
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
