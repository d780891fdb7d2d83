"""CA controller of the self-signed webhook: the I/O layer around ``rotation``.

Every replica runs it, without leader election: a pass reads the Secret and the webhook configurations, executes the
rotation step that is due, publishes the bundle and signs this replica's leaf. The cache may be stale, so before a
write the step is decided again on a live read, and the write carries its resourceVersion; after a conflict the pass
is repeated.
"""

import asyncio
import logging
import random
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from cryptography import x509

from bowline.api.meta import Object, ObjectKey
from bowline.kube.client import KubeClient
from bowline.kube.errors import Forbidden, KubeError, NotFound
from bowline.kube.reflector import Listener, Reflector
from bowline.kube.resources import SECRETS, Selection
from bowline_webhook.tls.bundle import is_ours, mismatches, published_by_us, published_cas, trusted_by_all
from bowline_webhook.tls.ca import make_authority, sign_leaf, to_pem
from bowline_webhook.tls.ca_bundle import BundleOverlap, Configurations
from bowline_webhook.tls.metrics import CertificateMetrics
from bowline_webhook.tls.periodic import PeriodicTask
from bowline_webhook.tls.rotation import (
    REPAIRING,
    CaObservation,
    CaState,
    CertLifetimes,
    RotationStep,
    after,
    leaf_due,
    rotate,
    stale_leaf_due,
)
from bowline_webhook.tls.secret import new_secret, read_secret, with_state
from bowline_webhook.tls.serving import CertificateError, ServingContext

log = logging.getLogger(__name__)

# Also without an event: lifetimes pass, and clocks are adjusted.
_RECHECK = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class SelfSignedConfig:
    """Configuration of the self-signed webhook: the CA's Secret, lifetimes and the names in the certificate."""

    secret: ObjectKey
    lifetimes: CertLifetimes
    names: tuple[str, ...]


class CAController:
    """Keeps the CA in its Secret valid, and signs this replica's leaf."""

    def __init__(
        self,
        client: KubeClient,
        configurations: Configurations,
        serving: ServingContext,
        config: SelfSignedConfig,
        metrics: CertificateMetrics,
    ) -> None:
        self._client = client
        self._clock = client.clock
        self._configurations = configurations
        self._serving = serving
        self._secret_key = config.secret
        self._names = config.names
        self._lifetimes = replace(config.lifetimes, jitter=random.random())  # noqa: S311 - spreads load, guards nothing
        self._metrics = metrics
        self._last_good: CaState | None = None
        self._overlap = BundleOverlap()
        self._trusted_since: dict[x509.Certificate, float] = {}
        self.periodic = PeriodicTask(self._pass, _every(config.lifetimes), metrics)
        self.reflector = Reflector(
            client,
            Selection(SECRETS, config.secret.namespace, field_selector=f"metadata.name={config.secret.name}"),
            listener=Listener(lambda *_: self.periodic.wake()),
        )
        metrics.follow("ca", self._ca_end)

    def not_ready_reason(self) -> str | None:
        """Return the not-ready reason; None while the Secret is synced and the last pass succeeded."""
        if not self.reflector.synced.is_set():
            return f"Secret {self._secret_key}: {self.reflector.last_error or 'not read yet'}"
        return self.periodic.problem

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.reflector.run(), name="reflector of the CA's Secret")
            tasks.create_task(self.periodic.run(), name="passes over the CA")

    async def _pass(self) -> None:
        self._renew_stale_leaf()
        if not self.reflector.synced.is_set() or self._configurations.unread() is not None:
            return
        await self._serve(await self._rotate_if_due())

    async def _serve(self, state: CaState) -> None:
        """Sign a leaf if one is due, and publish the bundle."""
        self._last_good = state
        self._sign(state, is_stale=self.reflector.last_error is not None)
        bundle = self._bundle(state)
        self._metrics.ca_bundle_mismatches.set(mismatches(self._configurations.objects(), bundle))
        await self._configurations.publish(bundle, self._settled_bundle)

    async def _rotate_if_due(self) -> CaState:
        """Execute the rotation step that is due, if any; return the Secret's state after it."""
        secret = self.reflector.store.get(self._secret_key)
        if secret is not None:
            state = read_secret(secret)
            if rotate(self._observation(state), self._clock.now(), self._lifetimes).action is None:
                return state
        # Decide on a live read: the cache may be stale.
        secret = await self._read()
        observation = self._observation(read_secret(secret) if secret is not None else None)
        now = self._clock.now()
        step = rotate(observation, now, self._lifetimes)
        if step.action is None:
            return observation.secret or CaState(None)
        state_after = after(step.action, observation, make_authority(now, self._lifetimes.authority), now)
        try:
            await self._write(secret, state_after, step)
        except KubeError:
            if observation.secret is not None and step.action not in REPAIRING:
                # A process that has just started serves as well, although the step is denied.
                await self._serve(observation.secret)
            raise
        return state_after

    async def _write(self, secret: Object | None, state: CaState, step: RotationStep) -> None:
        namespace, name = self._secret_key
        if secret is None:
            try:
                await self._client.create(SECRETS, namespace, new_secret(name, namespace, state))
            except Forbidden as error:
                raise CertificateError(
                    f"Secret {self._secret_key} is missing, and it may not be created from here; make it, empty, "
                    f"by helm upgrade or kubectl --namespace {namespace} create secret generic {name}"
                ) from error
        else:
            await self._client.update(SECRETS, namespace, name, with_state(secret, state))
        self._metrics.ca_steps.labels(step=step.action).inc()
        log.info("executed a step of the CA's rotation", extra={"step": str(step.action), "why": step.why})

    async def _read(self) -> Object | None:
        with suppress(NotFound):
            return await self._client.get(SECRETS, self._secret_key.namespace, self._secret_key.name)
        return None

    async def _settled_bundle(self) -> bytes | None:
        """Return the bundle to publish from a live read; None while the Secret must be repaired first."""
        secret = await self._read()
        if secret is None:
            return None
        state = read_secret(secret)
        if rotate(self._observation(state), self._clock.now(), self._lifetimes).action in REPAIRING:
            return None
        return self._bundle(state)

    def _bundle(self, state: CaState) -> bytes:
        """Return the bundle to publish: the Secret's, and for the overlap period the CAs of replicas with files."""
        present_cas = published_cas(self._configurations.objects())
        foreign_cas = [ca for ca in present_cas if ca not in state.bundle and not is_ours(ca)]
        overlap = self._overlap.of(state.bundle, foreign_cas, self._clock.monotonic())
        return to_pem(overlap if len(overlap) > len(state.bundle) else state.bundle)

    def _observation(self, state: CaState | None) -> CaObservation:
        upcoming = state.upcoming if state is not None else None
        since = self._trusted_cas().get(upcoming.certificate) if upcoming is not None else None
        return CaObservation(
            secret=state,
            last_good=self._last_good,
            serving=self._serving.leaf.signer if self._serving.leaf is not None else None,
            published_cas=published_by_us(self._configurations.objects()),
            trusted_for=None if since is None else timedelta(seconds=self._clock.monotonic() - since),
        )

    def _trusted_cas(self) -> dict[x509.Certificate, float]:
        """Return since when (monotonic) every entry has been observed to trust each CA, without interruption."""
        cas = trusted_by_all(self._configurations.objects())
        now = self._clock.monotonic()
        self._trusted_since = {certificate: self._trusted_since.get(certificate, now) for certificate in cas}
        return self._trusted_since

    def _sign(self, state: CaState, *, is_stale: bool) -> None:
        """Sign a leaf if one is due. ``is_stale``: the Secret's cache is not current, so the signer may have been
        replaced.
        """
        signer, leaf, now = state.active, self._serving.leaf, self._clock.now()
        grace, moment = self._lifetimes.grace.total_seconds(), self._clock.monotonic()
        trusted_cas = [certificate for certificate, since in self._trusted_cas().items() if since + grace <= moment]
        if signer is None or not leaf_due(leaf, signer, trusted_cas, now, self._lifetimes):
            return
        if leaf is not None and is_stale and not stale_leaf_due(leaf, now):
            return
        fresh = sign_leaf(signer, self._names, now, self._lifetimes.leaf)
        self._serving.serve_leaf(fresh)
        if leaf is not None:
            self._metrics.leaf_renewals.inc()
        log.info("serving a new certificate", extra={"until": fresh.certificate.not_valid_after_utc.isoformat()})

    def _renew_stale_leaf(self) -> None:
        """Without the API server, or without permission for a step, at least renew the leaf before it expires."""
        if self._last_good is not None and (self.reflector.last_error or self.periodic.problem):
            self._sign(self._last_good, is_stale=True)

    def _ca_end(self) -> datetime | None:
        signer = self._last_good.active if self._last_good is not None else None
        return signer.certificate.not_valid_after_utc if signer is not None else None


def _every(lifetimes: CertLifetimes) -> timedelta:
    """Return the interval between passes: ``_RECHECK``, or less for the short lifetimes used in tests."""
    return min(_RECHECK, lifetimes.leaf / 20, max(lifetimes.grace / 4, timedelta(milliseconds=100)))
