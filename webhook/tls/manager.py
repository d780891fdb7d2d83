"""What makes API servers believe the certificate that is served, by the way it came here:

- self-signed: the authority is kept in a Secret and published (``keeper``);
- from files with their authority (``ca.crt`` in the same Secret): that is published;
- from files alone: whoever makes them publishes their authority, such as cert-manager.

In each of them the process is ready when a call of our own listener shows that it worked (``dial``). It serves all
the time; nothing here is needed for that once there is a certificate.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from shared.api.names import FIELD_MANAGER_WEBHOOK
from shared.kube.client import ClientOptions, KubeClient
from shared.kube.config import wait_for_access
from shared.kube.metrics import KubeMetrics
from shared.runtime.address import ListenAddress
from shared.runtime.tasks import Stop
from webhook.metrics import CertificateMetrics
from webhook.tls.ca_bundle import Configurations, FilePublisher
from webhook.tls.ca_controller import Authorities, CaKeeper, LeafHolder
from webhook.tls.readiness import SelfDial

# A write that takes longer is better begun anew.
_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class TrustOptions:
    """Which configurations are to trust us, and by what: our own authority, that of a file, or neither."""

    kubeconfig: Path | None
    configurations: tuple[str, ...]
    authorities: Authorities | None = None
    ca_file: Path | None = None


class Trust:
    """Makes API servers believe us, and says whether they do."""

    def __init__(
        self,
        options: TrustOptions,
        address: Callable[[], ListenAddress],
        holder: LeafHolder,
        metrics: CertificateMetrics,
        kube_metrics: KubeMetrics,
    ) -> None:
        self._options = options
        self._address = address
        self._holder = holder
        self._metrics = metrics
        self._kube_metrics = kube_metrics
        self._missing: Callable[[], str | None] = lambda: "not connected to the API server yet"

    def missing(self) -> str | None:
        """Return why API servers would not believe us; None when they would."""
        return self._missing()

    async def run(self, stop: Stop) -> None:
        """Do so until cancelled, or until ``stop`` while there is no access."""
        access = await wait_for_access(self._options.kubeconfig, stop, self._no_access)
        if access is None:
            return
        chosen = ClientOptions(name=FIELD_MANAGER_WEBHOOK, timeout_s=_TIMEOUT_S, metrics=self._kube_metrics)
        async with KubeClient(access, chosen) as client:
            await self._connected(client)

    def _no_access(self, why: str) -> None:
        self._missing = lambda: why

    async def _connected(self, client: KubeClient) -> None:
        wakes: list[Callable[[], None]] = []
        configurations = Configurations(client, self._options.configurations, lambda: _call_all(wakes))
        dial = SelfDial(self._address, configurations)
        publisher = self._publisher(client, configurations)
        self._missing = lambda: _why(dial, publisher)
        wakes.append(dial.wake)
        async with asyncio.TaskGroup() as tasks:
            for name, reflector in configurations.reflectors.items():
                tasks.create_task(reflector.run(), name=f"reflector {name}")
            if publisher is not None:
                wakes.append(publisher.passes.wake)
                tasks.create_task(publisher.run(), name="publish the CA")
            tasks.create_task(dial.run(), name="dial ourselves")

    def _publisher(self, client: KubeClient, configurations: Configurations) -> "CaKeeper | FilePublisher | None":
        options = self._options
        if options.authorities is not None:
            return CaKeeper(client, configurations, self._holder, options.authorities, self._metrics)
        if options.ca_file is not None:
            return FilePublisher(options.ca_file, configurations, self._metrics, client.clock)
        return None


def _why(dial: SelfDial, publisher: CaKeeper | FilePublisher | None) -> str | None:
    """Return why we are not believed: what keeps us from being published, if that is it."""
    refusal = dial.missing()
    return refusal and ((publisher.missing() if publisher is not None else None) or refusal)


def _call_all(listeners: Iterable[Callable[[], None]]) -> None:
    for listener in listeners:
        listener()
