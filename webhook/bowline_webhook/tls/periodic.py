"""A periodic task: runs soon after an event, else at a fixed interval.

A failure is logged once, reported in ``problem`` and retried with backoff; only cancellation ends the loop.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta

from bowline.kube.errors import Conflict, Invalid, KubeError
from bowline.runtime.backoff import Backoff
from bowline.runtime.tasks import wait_until
from bowline_webhook.tls.metrics import CertificateMetrics
from bowline_webhook.tls.serving import CertificateError

log = logging.getLogger(__name__)

# API server outages last minutes; the task resumes within the maximum after one.
_BACKOFF = (timedelta(seconds=0.2), timedelta(seconds=10))
# More conflicts in a row than this are not caused by concurrent replicas.
_BAD_LUCK = 5


class PeriodicTask:
    """Runs ``run_once`` repeatedly: every ``every``, after each ``wake``, and with backoff after a KubeError or
    CertificateError.
    """

    def __init__(
        self, run_once: Callable[[], Awaitable[None]], every: timedelta, metrics: CertificateMetrics
    ) -> None:
        self.problem: str | None = None
        self._run_once = run_once
        self._every = every
        self._metrics = metrics
        self._woken = asyncio.Event()
        self._backoff = Backoff(*_BACKOFF)

    def wake(self) -> None:
        """Run soon: something has changed."""
        self._woken.set()

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            self._woken.clear()
            wait = await self._once()
            await wait_until(self._woken, wait)

    async def _once(self) -> timedelta:
        try:
            await self._run_once()
        except (KubeError, CertificateError) as error:
            wait = self._backoff.next_delay()
            if isinstance(error, Conflict | Invalid):
                # Another replica wrote first; the watch will deliver its write.
                self._metrics.ca_conflicts.inc()
                if self._backoff.count <= _BAD_LUCK:
                    return wait
            if str(error) != self.problem:
                log.warning("the CA cannot be written, retrying", extra={"error": str(error)})
            self.problem = str(error)
            self._metrics.ca_unwritable.set(1)
            return wait
        self._backoff.reset()
        self._metrics.ca_unwritable.set(0)
        self.problem = None
        return self._every
