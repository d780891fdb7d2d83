"""The release's webhook configurations: watched, and patched so that every entry trusts the CA bundle.

The chart owns them; they are read and patched, never created, so that uninstalling the release leaves nothing behind.
The watch detects a recreated one, for example after an upgrade.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from pathlib import Path

from cryptography import x509

from bowline.api.meta import Object, ObjectKey
from bowline.api.names import FIELD_MANAGER_CABUNDLE
from bowline.kube.client import KubeClient
from bowline.kube.messages import PatchType
from bowline.kube.reflector import Listener, Reflector
from bowline.kube.resources import MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS, Selection
from bowline.runtime.clock import Clock
from bowline_webhook.tls.bundle import bundle_patch, mismatches, published_cas
from bowline_webhook.tls.ca import from_pem, to_pem
from bowline_webhook.tls.metrics import CertificateMetrics
from bowline_webhook.tls.periodic import PeriodicTask

log = logging.getLogger(__name__)

# Poll interval of the CA file.
_POLL = timedelta(seconds=5)
# How long CAs that are not in the file stay published: a kubelet takes up to 90 s to update it, and a rollout, in
# which old replicas have another file, some minutes.
KEPT = timedelta(minutes=10)


class Configurations:
    """The mutating and the validating configuration of each name. ``on_change`` is called after every event."""

    def __init__(self, client: KubeClient, names: Sequence[str], on_change: Callable[[], None]) -> None:
        self._client = client
        self._names = names
        self._targets = [(resource, name) for name in names for resource in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS)]
        self.reflectors = {
            f"{resource.plural} {name}": Reflector(
                client,
                Selection(resource, field_selector=f"metadata.name={name}"),
                listener=Listener(lambda *_: on_change()),
            )
            for resource, name in self._targets
        }

    def objects(self) -> list[Object]:
        """Return the cached configurations."""
        return [configuration for reflector in self.reflectors.values() for configuration in reflector.store.values()]

    def unread(self) -> str | None:
        """Return which configurations have not been read yet, and why; None after all have synced."""
        for name, reflector in self.reflectors.items():
            if not reflector.synced.is_set():
                return f"{name}: {reflector.last_error or 'not read yet'}"
        return None

    def not_ready_reason(self) -> str | None:
        """Return why no API server is configured to call the webhook; None if at least one configuration exists.

        One of the two is enough: in an emergency the operator deletes the validating one and restores it once the
        webhook is ready.
        """
        if self.unread() is None and not self.objects():
            return f"there is no configuration {' or '.join(self._names)}; install the chart, or name another"
        return self.unread()

    async def publish(self, bundle: bytes, current_bundle: Callable[[], Awaitable[bytes | None]]) -> None:
        """Set the bundle in every entry of every cached configuration. Raises KubeError; Conflict or Invalid after a
        concurrent change.

        The cache may be stale, and a write from it could revert another replica's. So before a write the
        configuration is read live, then ``current_bundle`` recomputes the bundle (None: skip this write), and the
        patch tests the resourceVersion that was read first.
        """
        for (resource, name), reflector in zip(self._targets, self.reflectors.values(), strict=True):
            cached_object = reflector.store.get(ObjectKey("", name))
            if cached_object is None or not bundle_patch(cached_object, bundle):
                continue
            configuration = await self._client.get(resource, "", name)
            live_bundle = await current_bundle()
            patch = bundle_patch(configuration, live_bundle) if live_bundle is not None else []
            if patch:
                await self._client.patch(
                    resource, "", name, patch, content_type=PatchType.JSON, field_manager=FIELD_MANAGER_CABUNDLE
                )
                log.info("published the CA bundle", extra={"kind": resource.kind, "configuration": name})


class BundleOverlap:
    """Keeps CAs published for ``KEPT`` that this replica does not have: another replica may have them, from its own
    file.

    Otherwise replicas would overwrite each other's CAs continuously, and only the last writer's certificate would
    verify.
    """

    def __init__(self) -> None:
        # Foreign CAs and the monotonic time since which each has been published without interruption.
        self._since: dict[x509.Certificate, float] = {}

    def of(
        self, ours: Sequence[x509.Certificate], published_cas: Sequence[x509.Certificate], now: float
    ) -> tuple[x509.Certificate, ...]:
        """Return the CAs to publish, newest first: the same order for every replica."""
        self._since = {c: self._since.get(c, now) for c in published_cas if c not in ours}
        foreign_cas = (c for c, since in self._since.items() if now - since < KEPT.total_seconds())
        newest = sorted({*ours, *foreign_cas}, key=lambda c: (c.not_valid_before_utc, c.serial_number), reverse=True)
        return tuple(newest)


class FilePublisher:
    """Publishes the CA file that accompanies a certificate from files, if it exists.

    After a replacement, kubelets update the file of each replica at different times: see ``BundleOverlap``.
    """

    def __init__(self, path: Path, configurations: Configurations, metrics: CertificateMetrics, clock: Clock) -> None:
        self._path = path
        self._configurations = configurations
        self._metrics = metrics
        self._clock = clock
        self._overlap = BundleOverlap()
        self.periodic = PeriodicTask(self._pass, _POLL, metrics)

    def not_ready_reason(self) -> str | None:
        """Return the not-ready reason; None while publishing works."""
        return self.periodic.problem

    async def run(self) -> None:
        """Publish until cancelled."""
        await self.periodic.run()

    async def _pass(self) -> None:
        bundle = await self._bundle()
        # Without a CA in the Secret another component publishes it, or the system's CAs verify the certificate.
        if bundle is not None and self._configurations.unread() is None:
            self._metrics.ca_bundle_mismatches.set(mismatches(self._configurations.objects(), bundle))
            await self._configurations.publish(bundle, self._bundle)

    async def _bundle(self) -> bytes | None:
        try:
            ours = from_pem(await asyncio.to_thread(self._path.read_bytes))
        except OSError:
            return None
        if not ours:
            return None
        return to_pem(self._overlap.of(ours, published_cas(self._configurations.objects()), self._clock.monotonic()))
