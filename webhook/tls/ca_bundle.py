"""The webhook configurations of the release: watched, and made to trust a bundle.

They are the chart's; they are read and patched, never created, so that nothing is left behind when the release goes.
Whatever puts one there anew, an upgrade above all, is seen at once.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from pathlib import Path

from cryptography import x509

from shared.api.meta import Object, ObjectKey
from shared.api.names import FIELD_MANAGER_CABUNDLE
from shared.kube.client import KubeClient, PatchType
from shared.kube.reflector import Reflector
from shared.kube.resources import MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS, Selection
from shared.runtime.clock import Clock
from webhook.metrics import CertificateMetrics
from webhook.tls.bundle import bundle_patch, mismatches, published
from webhook.tls.ca import from_pem, to_pem
from webhook.tls.periodic import Passes

log = logging.getLogger(__name__)

# How often the file of an authority is looked at.
_POLL = timedelta(seconds=5)
# How long authorities stay published that are not in the file: a kubelet takes up to a minute and a half to renew it,
# and a rollout, in which old replicas have another file, some minutes.
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
                on_event=lambda *_: on_change(),
            )
            for resource, name in self._targets
        }

    def seen(self) -> list[Object]:
        """Return those that are there."""
        return [found for reflector in self.reflectors.values() for found in reflector.store.values()]

    def unread(self) -> str | None:
        """Return what keeps us from knowing what the API server trusts; None when we know."""
        for name, reflector in self.reflectors.items():
            if not reflector.synced.is_set():
                return f"{name}: {reflector.problem or 'not read yet'}"
        return None

    def missing(self) -> str | None:
        """Return why nobody can call us; None if somebody can.

        One of two is enough: in an emergency the validating one is taken away, and put back when we are ready.
        """
        if self.unread() is None and not self.seen():
            return f"there is no configuration {' or '.join(self._names)}; install the chart, or name another"
        return self.unread()

    async def publish(self, bundle: bytes, settled: Callable[[], Awaitable[bytes | None]]) -> None:
        """Make every entry trust the bundle. Raises KubeError: Conflict or Invalid if one has changed meanwhile.

        What was seen may be old, by which a replica would undo what another one has done. So before a write the
        configuration is read, then ``settled`` tells the bundle anew (None: not now), and the patch is guarded by
        what was read first.
        """
        for (resource, name), reflector in zip(self._targets, self.reflectors.values(), strict=True):
            seen = reflector.store.get(ObjectKey("", name))
            if seen is None or not bundle_patch(seen, bundle):
                continue
            there = await self._client.get(resource, "", name)
            wanted = await settled()
            patch = bundle_patch(there, wanted) if wanted is not None else []
            if patch:
                await self._client.patch(
                    resource, "", name, patch, content_type=PatchType.JSON, field_manager=FIELD_MANAGER_CABUNDLE
                )
                log.info("published the CA bundle", extra={"kind": resource.kind, "configuration": name})


class Overlap:
    """Keeps published for a while what this replica does not vouch for: another may, by a file of its own.

    Replicas would otherwise overwrite each other's authorities as fast as they see them, and the certificates of all
    but one would be refused.
    """

    def __init__(self) -> None:
        # Since when, without a break, each has been seen published and not vouched for.
        self._since: dict[x509.Certificate, float] = {}

    def of(
        self, ours: Sequence[x509.Certificate], there: Sequence[x509.Certificate], now: float
    ) -> tuple[x509.Certificate, ...]:
        """Return what is to be published, in an order that is the same for every replica: the newest first."""
        self._since = {c: self._since.get(c, now) for c in there if c not in ours}
        others = (c for c, since in self._since.items() if now - since < KEPT.total_seconds())
        newest = sorted({*ours, *others}, key=lambda c: (c.not_valid_before_utc, c.serial_number), reverse=True)
        return tuple(newest)


class FilePublisher:
    """Publishes the authority that stands beside a certificate from files, if there is one.

    When it is replaced, kubelets bring the new file to each replica in their own time: ``Overlap``.
    """

    def __init__(self, path: Path, configurations: Configurations, metrics: CertificateMetrics, clock: Clock) -> None:
        self._path = path
        self._configurations = configurations
        self._metrics = metrics
        self._clock = clock
        self._overlap = Overlap()
        self.passes = Passes(self._pass, _POLL, metrics)

    def missing(self) -> str | None:
        """Return what keeps us from publishing; None when nothing does."""
        return self.passes.problem

    async def run(self) -> None:
        """Publish until cancelled."""
        await self.passes.run()

    async def _pass(self) -> None:
        bundle = await self._bundle()
        # Without an authority in the Secret somebody else publishes it, or the system's authorities vouch for us.
        if bundle is not None and self._configurations.unread() is None:
            self._metrics.ca_bundle_mismatches.set(mismatches(self._configurations.seen(), bundle))
            await self._configurations.publish(bundle, self._bundle)

    async def _bundle(self) -> bytes | None:
        try:
            ours = from_pem(await asyncio.to_thread(self._path.read_bytes))
        except OSError:
            return None
        if not ours:
            return None
        return to_pem(self._overlap.of(ours, published(self._configurations.seen()), self._clock.monotonic()))
