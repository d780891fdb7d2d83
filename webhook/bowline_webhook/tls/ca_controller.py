"""CA controller of the self-signed webhook: the I/O layer around ``rotation``.

Every replica runs it, without leader election: a pass reads the Secret and the webhook configurations, executes the
rotation step that is due, publishes the bundle and signs this replica's leaf. It runs after each event, and at an
interval. The cache may be stale, so before a write the step is decided again on a live read, and the write carries
its resourceVersion; after a conflict the pass is repeated. What prevents a pass is logged once, reported in
``problem`` and in the metrics, and retried.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509

from bowline.api.meta import Object, ObjectKey
from bowline.kube.client import KubeClient
from bowline.kube.errors import Conflict, Invalid, KubeError, NotFound
from bowline.kube.reflector import Listener, Reflector
from bowline.kube.resources import SECRETS, Selection
from bowline.runtime.backoff import Backoff
from bowline.runtime.tasks import wait_until
from bowline_webhook.tls.bundle import published_cas, trusted_by_all
from bowline_webhook.tls.ca import is_valid_at, make_authority, sign_leaf, to_pem
from bowline_webhook.tls.ca_bundle import Configurations
from bowline_webhook.tls.metrics import CertificateMetrics
from bowline_webhook.tls.rotation import (
    CA_LIFE,
    GRACE,
    LEAF_LIFE,
    Action,
    CaObservation,
    CaState,
    RotationStep,
    after,
    leaf_due,
    rotate,
)
from bowline_webhook.tls.secret import read_secret, with_state
from bowline_webhook.tls.serving import CertificateError, ServingContext

log = logging.getLogger(__name__)

# Also without an event: lifetimes pass, and clocks are adjusted.
_RECHECK = timedelta(seconds=7.5)
# API server outages last minutes; passes resume within the maximum after one.
_BACKOFF = (timedelta(seconds=0.2), timedelta(seconds=10))
# More conflicts in a row than this are not caused by concurrent replicas.
_BAD_LUCK = 5


@dataclass(frozen=True, slots=True)
class SelfSignedConfig:
    """Configuration of the self-signed webhook: the CA's Secret, the names in the certificate, and the name of the
    webhook configurations that are to trust it.
    """

    secret: ObjectKey
    names: tuple[str, ...]
    webhook_configuration: str


class CAController:
    """Keeps the CA in its Secret valid, signs this replica's leaf, and makes API servers trust it."""

    def __init__(
        self, client: KubeClient, serving: ServingContext, config: SelfSignedConfig, metrics: CertificateMetrics
    ) -> None:
        self.problem: str | None = None
        self._client = client
        self._clock = client.clock
        self._serving = serving
        self._config = config
        self._metrics = metrics
        self._last_good: CaState | None = None
        self._trusted_since: dict[x509.Certificate, float] = {}
        self._woken = asyncio.Event()
        self._backoff = Backoff(*_BACKOFF)
        self._configurations = Configurations(client, config.webhook_configuration, self.wake)
        self._reflector = Reflector(
            client,
            Selection(SECRETS, config.secret.namespace, field_selector=f"metadata.name={config.secret.name}"),
            listener=Listener(lambda *_: self.wake()),
        )
        metrics.follow("ca", self._ca_end)

    def not_ready_reason(self) -> str | None:
        """Return why API servers do not trust the certificate; None if they do."""
        why = self._untrusted()
        return why and (self._unsynced() or self.problem or why)

    def wake(self) -> None:
        """Run a pass soon: something has changed."""
        self._woken.set()

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._reflector.run(), name="reflector of the CA's Secret")
            for resource, reflector in self._configurations.reflectors.items():
                tasks.create_task(reflector.run(), name=f"reflector of {resource.plural}")
            tasks.create_task(self._run_passes(), name="passes over the CA")

    async def _run_passes(self) -> None:
        while True:
            self._woken.clear()
            wait = await self._pass_or_report()
            await wait_until(self._woken, wait)

    async def _pass_or_report(self) -> timedelta:
        """Run a pass; return the time to the next one."""
        try:
            await self._pass()
        except (KubeError, CertificateError) as error:
            wait = min(self._backoff.next_delay(), _RECHECK)
            # Another replica wrote first; the watch will deliver its write.
            if isinstance(error, Conflict | Invalid) and self._backoff.count <= _BAD_LUCK:
                return wait
            if str(error) != self.problem:
                log.warning("the CA cannot be maintained, retrying", extra={"error": str(error)})
            self.problem = str(error)
            self._metrics.ca_unwritable.set(1)
            return wait
        self._backoff.reset()
        self._metrics.ca_unwritable.set(0)
        self.problem = None
        return _RECHECK

    async def _pass(self) -> None:
        if self._last_good is not None and (self._reflector.last_error or self.problem):
            # Without the API server, a usable Secret, or permission for a step, at least the leaf is renewed.
            self._sign(self._last_good)
        if self._unsynced() is None:
            await self._serve(await self._rotate_if_due())

    async def _serve(self, state: CaState) -> None:
        """Sign a leaf if one is due, and publish the bundle."""
        self._last_good = state
        self._sign(state)
        bundle = to_pem(state.bundle)
        await self._configurations.publish(bundle, self._settled_bundle)

    async def _rotate_if_due(self) -> CaState:
        """Execute the rotation step that is due, if any; return the Secret's state after it. Raises CertificateError
        if the Secret must not be used.
        """
        cached_secret = self._reflector.store.get(self._config.secret)
        if cached_secret is not None:
            state = read_secret(cached_secret)
            step = self._step(self._observation(state))
            if step.action is None and not step.is_broken:
                return state
        # Decide on a live read: the cache may be stale.
        secret = await self._read()
        observation = self._observation(read_secret(secret))
        step = self._step(observation)
        if step.is_broken:
            raise CertificateError(
                f"Secret {self._config.secret} is not used: {step.why}; this replica serves with the CA that it has, "
                "restart the webhook to repair the Secret"
            )
        if step.action is None:
            return observation.secret
        now = self._clock.now()
        state_after = after(step.action, observation, make_authority(now, CA_LIFE), now)
        try:
            await self._client.update(SECRETS, *self._config.secret, with_state(secret, state_after))
        except KubeError:
            if step.action is not Action.REPAIR:
                # A process that has just started serves as well, although the step is denied.
                await self._serve(observation.secret)
            raise
        self._metrics.ca_steps.labels(step=step.action).inc()
        log.info("executed a step of the CA's rotation", extra={"step": str(step.action), "why": step.why})
        return state_after

    async def _read(self) -> Object:
        """Return the Secret. Raises CertificateError if it does not exist: it may not be created from here."""
        namespace, name = self._config.secret
        try:
            return await self._client.get(SECRETS, namespace, name)
        except NotFound as error:
            raise CertificateError(
                f"Secret {self._config.secret} is missing; make it, empty, by helm upgrade or "
                f"kubectl --namespace {namespace} create secret generic {name}, then restart the webhook"
            ) from error

    async def _settled_bundle(self) -> bytes | None:
        """Return the bundle to publish from a live read; None while the Secret must not be used as it is."""
        state = read_secret(await self._read())
        step = self._step(self._observation(state))
        return None if step.is_broken or step.action is Action.REPAIR else to_pem(state.bundle)

    def _step(self, observation: CaObservation) -> RotationStep:
        return rotate(observation, self._clock.now())

    def _observation(self, state: CaState) -> CaObservation:
        since = self._trusted_cas().get(state.upcoming.certificate) if state.upcoming is not None else None
        return CaObservation(
            secret=state,
            own=self._last_good.active if self._last_good is not None else None,
            serving=self._serving.leaf.signer if self._serving.leaf is not None else None,
            published_cas=published_cas(self._configurations.objects()),
            trusted_for=None if since is None else timedelta(seconds=self._clock.monotonic() - since),
        )

    def _unsynced(self) -> str | None:
        """Return what has not been read yet, and why; None after all has been."""
        if not self._reflector.synced.is_set():
            return f"Secret {self._config.secret}: {self._reflector.last_error or 'not read yet'}"
        return self._configurations.unread()

    def _untrusted(self) -> str | None:
        missing = self._configurations.not_ready_reason()
        if missing is not None:
            return missing
        leaf = self._serving.leaf
        if leaf is None or not is_valid_at(leaf.certificate, self._clock.now()):
            return "there is no valid serving certificate"
        if leaf.signer not in trusted_by_all(self._configurations.objects()):
            return "the caBundle of a webhook entry lacks the CA of the serving certificate"
        return None

    def _trusted_cas(self) -> dict[x509.Certificate, float]:
        """Return since when (monotonic) every entry has been observed to trust each CA, without interruption."""
        cas = trusted_by_all(self._configurations.objects())
        now = self._clock.monotonic()
        self._trusted_since = {certificate: self._trusted_since.get(certificate, now) for certificate in cas}
        return self._trusted_since

    def _sign(self, state: CaState) -> None:
        """Sign a leaf if one is due."""
        signer, leaf, now = state.active, self._serving.leaf, self._clock.now()
        latest = self._clock.monotonic() - GRACE.total_seconds()
        trusted_cas = [certificate for certificate, since in self._trusted_cas().items() if since <= latest]
        if signer is None or not leaf_due(leaf, signer, trusted_cas, now):
            return
        fresh = sign_leaf(signer, self._config.names, now, LEAF_LIFE)
        self._serving.serve_leaf(fresh)
        if leaf is not None:
            self._metrics.leaf_renewals.inc()
        log.info("serving a new certificate", extra={"until": fresh.certificate.not_valid_after_utc.isoformat()})

    def _ca_end(self) -> datetime | None:
        signer = self._last_good.active if self._last_good is not None else None
        return signer.certificate.not_valid_after_utc if signer is not None else None


class CertificateManager:
    """Signs the serving certificate, and makes API servers trust it, as soon as there is access to one.

    A certificate from files is made, and trust in it arranged, by others: there this is not needed. Serving does not
    depend on it once there is a certificate.
    """

    def __init__(self, config: SelfSignedConfig, serving: ServingContext, metrics: CertificateMetrics) -> None:
        self._config, self._serving, self._metrics = config, serving, metrics
        self._missing: Callable[[], str | None] = lambda: "not connected to the API server yet"

    def not_ready_reason(self) -> str | None:
        """Return why API servers cannot verify the certificate; None if they can."""
        return self._missing()

    def no_access(self, why: str) -> None:
        """Report why there is no access to an API server yet."""
        self._missing = lambda: why

    async def run(self, client: KubeClient) -> None:
        """Run until cancelled."""
        controller = CAController(client, self._serving, self._config, self._metrics)
        self._missing = controller.not_ready_reason
        await controller.run()
