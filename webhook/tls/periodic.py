"""A loop that looks at the cluster and acts on what it sees: soon after an event, else every so often.

What goes wrong is said once, shown in ``problem`` and tried again; nothing ends it but cancellation.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta

from shared.kube.errors import Conflict, Invalid, KubeError
from shared.runtime.backoff import Backoff
from webhook.metrics import CertificateMetrics
from webhook.tls.serving import CertificateError

log = logging.getLogger(__name__)

# An outage of the API server lasts minutes; this long after it at most we are at work again.
_BACKOFF = (timedelta(seconds=0.2), timedelta(seconds=10))
# Losing to other replicas as often as this in a row is something else.
_BAD_LUCK = 5


class Passes:
    """Makes one pass after the other."""

    def __init__(self, look: Callable[[], Awaitable[None]], every: timedelta, metrics: CertificateMetrics) -> None:
        self.problem: str | None = None
        self._look = look
        self._every = every
        self._metrics = metrics
        self._woken = asyncio.Event()
        self._backoff: Backoff[str] = Backoff(*_BACKOFF)

    def wake(self) -> None:
        """Look again soon: something has changed."""
        self._woken.set()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            self._woken.clear()
            wait = await self._once()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait.total_seconds()):
                    await self._woken.wait()

    async def _once(self) -> timedelta:
        try:
            await self._look()
        except (KubeError, CertificateError) as error:
            wait = self._backoff.failed("")
            if isinstance(error, Conflict | Invalid):
                # Another replica was first; what it did will be seen.
                self._metrics.ca_conflicts.inc()
                if self._backoff.failures("") <= _BAD_LUCK:
                    return wait
            if str(error) != self.problem:
                log.warning("the CA cannot be written, trying again", extra={"error": str(error)})
            self.problem = str(error)
            return wait
        self._backoff.succeeded("")
        self.problem = None
        return self._every
