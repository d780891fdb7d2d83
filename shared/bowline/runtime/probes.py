"""The metrics address of a process: ``/healthz``, ``/readyz`` and ``/metrics``, over plain HTTP.

``/healthz`` reports that the event loop runs; nothing outside the process may make it fail, because a restart would
not help. ``/readyz`` runs named checks and reports why one fails.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from aiohttp import web
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.exposition import choose_encoder

from bowline.runtime.address import ListenAddress
from bowline.runtime.http_server import PlainServer

log = logging.getLogger(__name__)

# Returns the not-ready reason as a sentence; None if ready.
Check = Callable[[], str | None]
# Pause after an encoding of the metrics, as a multiple of its duration.
_PACE: Final = 9
_RequestKey = tuple[Callable[[Any], bytes], tuple[str, ...]]


class ProbeServer:
    """Serves these paths. ``checks`` may change while it runs; ``component`` names the process in its metric."""

    def __init__(
        self, listen: ListenAddress, registry: CollectorRegistry, checks: Mapping[str, Check], component: str
    ) -> None:
        self._exposition = _Exposition(registry)
        self._checks = checks
        ready = Gauge(
            "bowline_ready", "1 while /readyz reports that the process is ready.", ["component"], registry=registry
        )
        ready.labels(component).set_function(lambda: not self._missing())
        self._server = PlainServer(self.respond)
        self.address = listen

    async def start(self) -> None:
        """Listen; afterwards ``address`` has the actual port. Raises OSError if the address cannot be used."""
        port = await self._server.listen(self.address)
        self.address = ListenAddress(self.address.host, port)
        log.info("serving probes and metrics", extra={"address": str(self.address)})

    async def stop(self) -> None:
        """Close the listener and its connections."""
        await self._server.stop()

    async def respond(self, request: web.BaseRequest) -> web.StreamResponse:
        """Respond to one request."""
        if request.method not in ("GET", "HEAD"):
            return web.Response(status=405, text="only GET is answered here\n", headers={"Allow": "GET, HEAD"})
        path = request.path
        if path == "/healthz":
            return web.Response(text="ok\n")
        if path == "/readyz":
            return self._ready()
        if path == "/metrics":
            return await self._exposition.answer(request)
        return web.Response(status=404, text="this path is not served\n")

    def _ready(self) -> web.Response:
        missing = self._missing()
        if not missing:
            return web.Response(text="ok\n")
        return web.Response(status=503, text="".join(f"{name}: {reason}\n" for name, reason in missing.items()))

    def _missing(self) -> Mapping[str, str]:
        return {name: reason for name, check in self._checks.items() if (reason := check()) is not None}


class _Exposition:
    """The metrics as text, encoded for a tenth of the time at most.

    Encoding takes milliseconds of the event loop, so it is paced, whatever the number of requests. Requests that wait
    for the same text share it.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._waiting: dict[_RequestKey, asyncio.Task[bytes]] = {}
        self._pace = asyncio.Lock()
        self._not_before = 0.0

    async def answer(self, request: web.BaseRequest) -> web.Response:
        """Return the requested metrics, as of the time of their encoding."""
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        names = tuple(sorted(set(request.query.getall("name[]", []))))
        request_key = (encode, names)
        if request_key not in self._waiting:
            self._waiting[request_key] = asyncio.create_task(self._encode(request_key), name="metrics")
        body = await asyncio.shield(self._waiting[request_key])
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _encode(self, request_key: _RequestKey) -> bytes:
        loop = asyncio.get_running_loop()
        async with self._pace:
            await asyncio.sleep(max(0.0, self._not_before - loop.time()))
            # A request that arrives from here on needs a newer text.
            del self._waiting[request_key]
            encode, names = request_key
            began_at = loop.time()
            body = encode(self._registry.restricted_registry(names) if names else self._registry)
            ended_at = loop.time()
            self._not_before = ended_at + _PACE * (ended_at - began_at)
            return body
