"""The metrics address of a process: ``/healthz``, ``/readyz``, ``/metrics`` and ``/debug``, over plain HTTP.

``/healthz`` says that the event loop turns; nothing outside the process may fail it, for a restart would not help.
``/readyz`` runs named checks and says in words what is missing.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from shared.runtime.debugpages import PREFIX, DebugPages

log = logging.getLogger(__name__)

# Returns what is missing, as a sentence; None when all is well.
Check = Callable[[], str | None]


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Where to listen. An empty host is every interface; port 0 lets the system choose."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_listen(text: str) -> ListenAddress:
    """Parse ``HOST:PORT``, ``:PORT`` or ``[IPV6]:PORT``. Raises ValueError saying what is accepted."""
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    if not colon or (":" in host) != bracketed or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError(
            f"{text!r} must be HOST:PORT, such as 127.0.0.1:8080, [::1]:8080 or :8080 for all interfaces"
        )
    return ListenAddress(host, int(port))


class ProbeServer:
    """Serves these paths. ``checks`` may change while it runs; ``pages`` are served if given."""

    def __init__(
        self,
        listen: ListenAddress,
        registry: CollectorRegistry,
        checks: Mapping[str, Check],
        pages: DebugPages | None = None,
    ) -> None:
        self._listen = listen
        self._registry = registry
        self._checks = checks
        self._pages = pages
        self._runner: web.AppRunner | None = None
        self.address = listen

    async def start(self) -> None:
        """Listen; ``address`` then has the real port. Raises OSError if the address cannot be had."""
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        if self._pages is not None:
            app.router.add_get(PREFIX, self._pages.serve)
            app.router.add_get(PREFIX + "/{path:.*}", self._pages.serve)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, self._listen.host or None, self._listen.port).start()
        self.address = ListenAddress(self._listen.host, self._runner.addresses[0][1])
        log.info("serving probes and metrics", extra={"address": str(self.address)})

    async def stop(self) -> None:
        """Close the listener and its connections."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        missing = {name: reason for name, check in self._checks.items() if (reason := check()) is not None}
        if not missing:
            return web.Response(text="ok\n")
        return web.Response(status=503, text="".join(f"{name}: {reason}\n" for name, reason in missing.items()))

    async def _metrics(self, request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        # As Prometheus clients do it: all of them take the event loop for some milliseconds, a few do not.
        asked = request.query.getall("name[]", [])
        registry = self._registry.restricted_registry(asked) if asked else self._registry
        return web.Response(body=encode(registry), headers={"Content-Type": content_type})
