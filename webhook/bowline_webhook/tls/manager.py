"""Makes API servers trust the serving certificate, depending on its source:

- self-signed: the CA is kept in a Secret and published (``ca_controller``);
- from files with their CA (``ca.crt`` in the same Secret): that CA is published (``ca_bundle``);
- from files alone: their issuer, such as cert-manager, publishes its own CA.

In each case the process is ready when a TLS handshake with its own listener verifies (``readiness``). Serving does
not depend on this once there is a certificate.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from bowline.api.names import FIELD_MANAGER_WEBHOOK
from bowline.kube.client import ClientOptions, KubeClient
from bowline.kube.config import ApiServer, wait_for_access
from bowline.kube.metrics import KubeMetrics
from bowline.runtime.address import ListenAddress
from bowline.runtime.tasks import ShutdownSignal
from bowline_webhook.tls.ca_bundle import Configurations, FilePublisher
from bowline_webhook.tls.ca_controller import CAController, SelfSignedConfig
from bowline_webhook.tls.metrics import CertificateMetrics
from bowline_webhook.tls.readiness import ListenerProbe
from bowline_webhook.tls.serving import ServingContext

# Retry a write rather than wait longer for it.
_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class TrustOptions:
    """Which configurations must trust the certificate, and by which CA: self-signed, from a file, or neither."""

    api_server: ApiServer | None
    configurations: tuple[str, ...]
    authorities: SelfSignedConfig | None = None
    ca_file: Path | None = None


class CertificateManager:
    """Publishes the CA if it is Bowline's task, and verifies the result."""

    def __init__(
        self,
        options: TrustOptions,
        address: Callable[[], ListenAddress],
        serving: ServingContext,
        metrics: CertificateMetrics,
        kube_metrics: KubeMetrics,
    ) -> None:
        self._options = options
        self._address = address
        self._serving = serving
        self._metrics = metrics
        self._kube_metrics = kube_metrics
        self._missing: Callable[[], str | None] = lambda: "not connected to the API server yet"

    def not_ready_reason(self) -> str | None:
        """Return why API servers cannot verify the certificate; None if they can."""
        return self._missing()

    async def run(self, stop: ShutdownSignal) -> None:
        """Run until cancelled, or until ``stop`` while there is no access to an API server."""
        access = await wait_for_access(self._options.api_server, stop, self._no_access)
        if access is None:
            return
        client_options = ClientOptions(name=FIELD_MANAGER_WEBHOOK, timeout_s=_TIMEOUT_S, metrics=self._kube_metrics)
        async with KubeClient(access, client_options) as client:
            await self._run_with(client)

    def _no_access(self, why: str) -> None:
        self._missing = lambda: why

    async def _run_with(self, client: KubeClient) -> None:
        wakes: list[Callable[[], None]] = []
        configurations = Configurations(client, self._options.configurations, lambda: _call_all(wakes))
        probe = ListenerProbe(self._address, configurations)
        publisher = self._publisher(client, configurations)
        self._missing = lambda: _why(probe, publisher)
        wakes.append(probe.wake)
        async with asyncio.TaskGroup() as tasks:
            for name, reflector in configurations.reflectors.items():
                tasks.create_task(reflector.run(), name=f"reflector {name}")
            if publisher is not None:
                wakes.append(publisher.periodic.wake)
                tasks.create_task(publisher.run(), name="publish the CA")
            tasks.create_task(probe.run(), name="probe the listener")

    def _publisher(self, client: KubeClient, configurations: Configurations) -> "CAController | FilePublisher | None":
        options = self._options
        if options.authorities is not None:
            return CAController(client, configurations, self._serving, options.authorities, self._metrics)
        if options.ca_file is not None:
            return FilePublisher(options.ca_file, configurations, self._metrics, client.clock)
        return None


def _why(probe: ListenerProbe, publisher: CAController | FilePublisher | None) -> str | None:
    """Return the not-ready reason: the publisher's if it has one, else the failed verification's."""
    refusal = probe.not_ready_reason()
    return refusal and ((publisher.not_ready_reason() if publisher is not None else None) or refusal)


def _call_all(listeners: Iterable[Callable[[], None]]) -> None:
    for listener in listeners:
        listener()
