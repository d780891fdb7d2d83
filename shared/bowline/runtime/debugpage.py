"""The debug page of a process: its present state as JSON, for operators only.

Read-only, on an address of its own: by default of the loopback interface, which only ``kubectl port-forward`` and a
shell in the pod reach. The API server checks the right to use these; here no caller is authorized. The page contains
object names, which metrics never do, but no secrets. Its content must be fast and bounded: it is built in the event
loop, between binds.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any

import orjson
from aiohttp import web

from bowline.runtime.address import ListenAddress
from bowline.runtime.http_server import PlainServer

log = logging.getLogger(__name__)

PATH = "/debug"
# More than an operator reads, less than would delay a bind: encoding 1 MiB takes about 2 ms.
MAX_BYTES = 1024 * 1024
_OPTIONS = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS


class DebugServer:
    """Serves ``content`` at ``PATH``."""

    def __init__(self, listen: ListenAddress, content: Callable[[], Mapping[str, Any]]) -> None:
        self._content = content
        self._server = PlainServer(self.respond)
        self.address = listen

    async def start(self) -> None:
        """Listen; afterwards ``address`` has the actual port. If the address cannot be used, only logs it."""
        try:
            port = await self._server.listen(self.address)
        except OSError as error:
            log.warning("the debug page is not served", extra={"address": str(self.address), "error": str(error)})
            return
        self.address = ListenAddress(self.address.host, port)
        log.info("serving the debug page", extra={"address": str(self.address)})

    async def stop(self) -> None:
        """Close the listener and its connections."""
        await self._server.stop()

    async def respond(self, request: web.BaseRequest) -> web.Response:
        """Respond to one request."""
        if request.path.rstrip("/") != PATH:
            return _answer(404, orjson.dumps({"error": f"there is no page {request.path}; read {PATH}"}))
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
