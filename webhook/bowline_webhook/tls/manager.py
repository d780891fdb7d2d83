"""Connects the self-signed webhook's CA controller to the API server.

A certificate from files is made, and trust in it arranged, by others: cert-manager, or the operator. There this is
not needed, and the webhook reads and writes no webhook configuration. Serving does not depend on it once there is a
certificate.
"""

from collections.abc import Callable

from bowline.api.names import FIELD_MANAGER_WEBHOOK
from bowline.kube.client import ClientOptions, KubeClient
from bowline.kube.config import ApiServer, wait_for_access
from bowline.kube.metrics import KubeMetrics
from bowline.runtime.tasks import ShutdownSignal
from bowline_webhook.tls.ca_controller import CAController, SelfSignedConfig
from bowline_webhook.tls.metrics import CertificateMetrics
from bowline_webhook.tls.serving import ServingContext

# Retry a write rather than wait longer for it.
_TIMEOUT_S = 10.0


class CertificateManager:
    """Signs the serving certificate, and makes API servers trust it."""

    def __init__(
        self,
        api_server: ApiServer | None,
        config: SelfSignedConfig,
        serving: ServingContext,
        metrics: CertificateMetrics,
        kube_metrics: KubeMetrics,
    ) -> None:
        self._api_server = api_server
        self._config = config
        self._serving = serving
        self._metrics = metrics
        self._kube_metrics = kube_metrics
        self._missing: Callable[[], str | None] = lambda: "not connected to the API server yet"

    def not_ready_reason(self) -> str | None:
        """Return why API servers cannot verify the certificate; None if they can."""
        return self._missing()

    async def run(self, stop: ShutdownSignal) -> None:
        """Run until cancelled, or until ``stop`` while there is no access to an API server."""
        access = await wait_for_access(self._api_server, stop, self._no_access)
        if access is None:
            return
        client_options = ClientOptions(name=FIELD_MANAGER_WEBHOOK, timeout_s=_TIMEOUT_S, metrics=self._kube_metrics)
        async with KubeClient(access, client_options) as client:
            controller = CAController(client, self._serving, self._config, self._metrics)
            self._missing = controller.not_ready_reason
            await controller.run()

    def _no_access(self, why: str) -> None:
        self._missing = lambda: why
