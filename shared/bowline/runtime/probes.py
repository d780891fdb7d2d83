"""What a process serves for its operators over plain HTTP: probes and metrics, and its debug page.

``/healthz`` reports that the event loop runs; nothing outside the process may make it fail, because a restart would
not help. ``/readyz`` runs named checks and reports why one fails.

The debug page is the present state as JSON, read-only, on an address of its own: by default of the loopback
interface, which only ``kubectl port-forward`` and a shell in the pod reach. The API server checks the right to use
these; here no caller is authorized. The page contains object names, which metrics never do, but no secrets. Its
content must be fast and bounded: it is built in the event loop, between binds.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson
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
DEBUG_PATH: Final = "/debug"
# More than an operator reads, less than would delay a bind: encoding 1 MiB takes about 2 ms.
MAX_BYTES: Final = 1024 * 1024
_OPTIONS: Final = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS
_RequestKey = tuple[Callable[[Any], bytes], tuple[str, ...]]


class ProbeServer(PlainServer):
    """Serves these paths. ``checks`` may change while it runs; ``component`` names the process in its metric."""

    def __init__(
        self, listen: ListenAddress, registry: CollectorRegistry, checks: Mapping[str, Check], component: str
    ) -> None:
        super().__init__(self.respond, listen)
        self._exposition = _Exposition(registry)
        self._checks = checks
        ready = Gauge(
            "bowline_ready", "1 while /readyz reports that the process is ready.", ["component"], registry=registry
        )
        ready.labels(component).set_function(lambda: not self._missing())

    async def start(self) -> None:
        await super().start()
        log.info("serving probes and metrics", extra={"address": str(self.address)})

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


class DebugServer(PlainServer):
    """Serves ``content`` at ``DEBUG_PATH``."""

    def __init__(self, listen: ListenAddress, content: Callable[[], Mapping[str, Any]]) -> None:
        super().__init__(self.respond, listen)
        self._content = content

    async def start(self) -> None:
        """Listen; if the address cannot be used, only log it."""
        try:
            await super().start()
        except OSError as error:
            log.warning("the debug page is not served", extra={"address": str(self.address), "error": str(error)})
        else:
            log.info("serving the debug page", extra={"address": str(self.address)})

    async def respond(self, request: web.BaseRequest) -> web.Response:
        """Respond to one request."""
        if request.path.rstrip("/") != DEBUG_PATH:
            return _answer(404, orjson.dumps({"error": f"there is no page {request.path}; read {DEBUG_PATH}"}))
        try:
            body = orjson.dumps(self._content(), default=str, option=_OPTIONS)
        except Exception as error:
            # A plugin's sizes may raise: that must not affect the process, and the caller receives the error.
            log.exception("debug page failed")
            return _answer(500, orjson.dumps({"error": f"the page failed: {type(error).__name__}: {error}"}))
        if len(body) > MAX_BYTES:
            why = f"the page has {len(body)} bytes, more than the {MAX_BYTES} that are served"
            return _answer(500, orjson.dumps({"error": why}))
        return _answer(200, body)


def _answer(status: int, body: bytes) -> web.Response:
    headers = {"Cache-Control": "no-store"}
    return web.Response(status=status, body=body, content_type="application/json", headers=headers)
