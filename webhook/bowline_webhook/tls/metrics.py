"""Metrics of certificates. Every series exists from the start, so that ``rate`` counts the first event."""

from collections.abc import Callable
from datetime import datetime

from prometheus_client import CollectorRegistry, Counter, Gauge

from bowline.runtime.metrics import init_series
from bowline_webhook.tls.rotation import Action

_RENEW = "renew"


class CertificateMetrics:
    """Certificate metrics: expiry, steps of the rotation with renewals, and whether they can be written."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._not_after = Gauge(
            "bowline_certificate_not_after_timestamp_seconds",
            "Expiry of the certificate: the serving one (leaf), the CA that signs (ca); 0 if there is none.",
            ["certificate"],
            registry=registry,
        )
        steps = Counter(
            "bowline_certificate_steps",
            "Steps of the CA's rotation executed by this replica; renew: its serving certificate was exchanged.",
            ["step"],
            registry=registry,
        )
        self.ca_unwritable = Gauge(
            "bowline_ca_unwritable",
            "1 while the CA's Secret or a webhook configuration cannot be read or written; the log has the reason.",
            registry=registry,
        )
        init_series(self._not_after, certificate=("leaf", "ca"))
        init_series(steps, step=(*(action.value for action in Action), _RENEW))
        self.ca_steps, self.leaf_renewals = steps, steps.labels(_RENEW)

    def follow(self, certificate: str, not_after: Callable[[], datetime | None]) -> None:
        """Report a certificate's expiry, evaluated at each scrape."""

        def seconds() -> float:
            end = not_after()
            return end.timestamp() if end is not None else 0.0

        self._not_after.labels(certificate=certificate).set_function(seconds)
