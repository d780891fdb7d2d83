"""Handshakes with every replica, verified as by an API server that has just read the CA bundle.

API servers keep their connections, so a short time with wrong certificates may cost no call; here it is detected.
Each round reads the published bundle and then connects: a certificate that the bundle does not cover is served too
early.
"""

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from bowline.kube.client import KubeClient
from bowline.kube.errors import KubeError
from bowline.kube.resources import VALIDATING_WEBHOOKS
from bowline_webhook.tls.bundle import bundle_of, entries
from tests.availability.balancer import Balancer
from tests.unit.webhook.tls import client_context

_EVERY_S = 0.02
_TIMEOUT_S = 10.0


@dataclass(slots=True)
class Probe:
    """A run of handshakes. ``grace_s``: a bundle read longer ago may lack a CA that is in use by now."""

    client: KubeClient
    balancer: Balancer
    name: str
    grace_s: float
    handshakes: int = 0
    refusals: list[str] = field(default_factory=list)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Make handshakes until the block ends."""
        task = asyncio.create_task(self._probe(), name="probe")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _probe(self) -> None:
        while True:
            with contextlib.suppress(KubeError):
                began = time.monotonic()
                configuration = await self.client.get(VALIDATING_WEBHOOKS, "", self.name)
                trust = client_context(bundle_of(next(entries([configuration]))))
                ready = [backend.listen for backend in self.balancer.backends if backend.ready]
                await asyncio.gather(*(self._shake_hands(listen, trust, began) for listen in ready))
            await asyncio.sleep(_EVERY_S)

    async def _shake_hands(self, listen: str, trust: ssl.SSLContext, began: float) -> None:
        host, _, port = listen.rpartition(":")
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                _, writer = await asyncio.open_connection(host, int(port), ssl=trust)
        except ssl.SSLCertVerificationError as error:
            if time.monotonic() - began < self.grace_s:
                self.refusals.append(f"handshake: {error.verify_message}")
            return
        except OSError:
            return  # it is stopping, or has been killed
        self.handshakes += 1
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
