"""Readiness from an API server's view: a TLS handshake with the own listener.

Each webhook entry names an address and a CA bundle; the handshake must give a certificate for that name which the
bundle verifies. It connects to the listener and not to the Service: the Service has no endpoints until a replica is
ready. Decision 47.
"""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable
from datetime import timedelta

from bowline.runtime.address import ListenAddress
from bowline.runtime.tasks import wait_until
from bowline_webhook.tls.bundle import WebhookCall, calls
from bowline_webhook.tls.ca_bundle import Configurations
from bowline_webhook.tls.serving import client_context

log = logging.getLogger(__name__)

# The kubelet's probe interval; shorter while not ready.
_EVERY, _SOON = timedelta(seconds=5), timedelta(seconds=0.25)
_TIMEOUT_S = 5.0
_WILDCARDS = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared, not listened on


class ListenerProbe:
    """Verifies periodically that API servers can verify the certificate."""

    def __init__(self, address: Callable[[], ListenAddress], configurations: Configurations) -> None:
        self._address = address
        self._configurations = configurations
        self._woken = asyncio.Event()
        self._missing: str | None = "not verified yet"

    def not_ready_reason(self) -> str | None:
        """Return why API servers cannot verify the certificate; None if they can."""
        return self._missing

    def wake(self) -> None:
        """Verify soon: something has changed."""
        self._woken.set()

    async def run(self) -> None:
        """Verify until cancelled."""
        while True:
            self._woken.clear()
            error = await self._ask()
            if error is None and self._missing is not None:
                log.info("API servers can verify the certificate")
            elif error is not None and self._missing is None:
                log.warning("API servers cannot verify the certificate", extra={"error": error})
            self._missing = error
            await wait_until(self._woken, _EVERY if error is None else _SOON)

    async def _ask(self) -> str | None:
        missing = self._configurations.not_ready_reason()
        if missing is not None:
            return missing
        for call in sorted(calls(self._configurations.objects())):
            refusal = await self._refusal(call)
            if refusal is not None:
                return f"{call.name}: {refusal}"
        return None

    async def _refusal(self, call: WebhookCall) -> str | None:
        listen = self._address()
        host = _WILDCARDS.get(listen.host, listen.host)
        try:
            context = client_context(call.bundle)
        except ssl.SSLError:
            return "there is no certificate in the caBundle of its webhook entry"
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                _, writer = await asyncio.open_connection(host, listen.port, ssl=context, server_hostname=call.name)
        except ssl.SSLCertVerificationError as error:
            return f"its webhook entry's caBundle does not verify the serving certificate: {error.verify_message}"
        except (OSError, ValueError) as error:  # includes TimeoutError; ValueError for a malformed server name
            return f"the own listener does not answer: {str(error) or type(error).__name__}"
        writer.close()
        with contextlib.suppress(OSError):
            async with asyncio.timeout(_TIMEOUT_S):
                await writer.wait_closed()
        return None
