"""Debug pages of a process: its present state as JSON, for operators only.

Read-only, on an address of their own: by default of the loopback interface, which only ``kubectl port-forward`` and a
shell in the pod reach. The API server checks the right to use these; here no caller is authorized. Pages contain
object names, which metrics never do, but no secrets.

A page is a function from the variable parts of its path to plain data, to None if there is nothing at that path, or
to ``Misdirected`` if another process has it. It must be fast and bounded: it runs in the event loop, between binds.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from aiohttp import web

from bowline.runtime.address import ListenAddress
from bowline.runtime.http_server import PlainServer

log = logging.getLogger(__name__)

PREFIX = "/debug"
# More than an operator reads, less than would delay a bind: encoding 1 MiB takes about 2 ms.
MAX_BYTES = 1024 * 1024
_OPTIONS = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS


@dataclass(frozen=True, slots=True)
class Misdirected:
    """In place of a page's content: another process has it. Answered with 421."""

    why: str


@dataclass(frozen=True, slots=True)
class DebugPage:
    """A page below ``/debug``. ``path`` may have parts like ``{name}``, passed to ``content`` in order."""

    path: str
    about: str
    content: Callable[..., Any]


class DebugServer:
    """Serves the registered pages; a process adds them as its components are built."""

    def __init__(self, listen: ListenAddress) -> None:
        self._pages: dict[str, DebugPage] = {}
        self._server = PlainServer(self.respond)
        self.address = listen

    def add(self, *pages: DebugPage) -> None:
        """Add pages; a page replaces one with the same path."""
        self._pages.update((page.path, page) for page in pages)

    async def start(self) -> None:
        """Listen; afterwards ``address`` has the actual port. If the address cannot be used, only logs it."""
        try:
            port = await self._server.listen(self.address)
        except OSError as error:
            log.warning("debug pages are not served", extra={"address": str(self.address), "error": str(error)})
            return
        self.address = ListenAddress(self.address.host, port)
        log.info("serving debug pages", extra={"address": str(self.address)})

    async def stop(self) -> None:
        """Close the listener and its connections."""
        await self._server.stop()

    async def respond(self, request: web.BaseRequest) -> web.Response:
        """Respond to one request."""
        words = request.path.removeprefix(PREFIX).strip("/").split("/")
        if words == [""]:
            return _answer(200, self._index())
        for page in self._pages.values():
            arguments = match(page.path, words)
            if arguments is not None:
                return _page(page, arguments, request.path)
        return _answer(404, {"error": f"there is no page {request.path}", "pages": self._index()["pages"]})

    def _index(self) -> dict[str, Any]:
        return {"pages": {f"{PREFIX}/{page.path}": page.about for page in self._pages.values()}}


def match(path: str, words: list[str]) -> list[str] | None:
    """Return the values of the ``{...}`` parts of a page's path; None if the path does not match. Pure."""
    parts = path.split("/")
    if len(parts) != len(words):
        return None
    arguments = []
    for part, word in zip(parts, words, strict=True):
        if part.startswith("{") and word:
            arguments.append(word)
        elif part != word:
            return None
    return arguments


def _page(page: DebugPage, arguments: list[str], path: str) -> web.Response:
    try:
        content = page.content(*arguments)
        if content is None:
            return _answer(404, {"error": f"nothing is known of {'/'.join(arguments) or path}", "page": page.about})
        if isinstance(content, Misdirected):
            return _answer(421, {"error": content.why, "page": page.about})
        body = orjson.dumps(content, default=str, option=_OPTIONS)
    except Exception as error:
        # A plugin's page may raise: that must not affect the process, and the caller receives the error.
        log.exception("debug page failed", extra={"page": page.path})
        return _answer(500, {"error": f"the page failed: {type(error).__name__}: {error}"})
    if len(body) > MAX_BYTES:
        return _answer(500, {"error": f"the page has {len(body)} bytes, more than the {MAX_BYTES} that are served"})
    return web.Response(body=body, content_type="application/json", headers={"Cache-Control": "no-store"})


def _answer(status: int, content: Mapping[str, Any]) -> web.Response:
    return web.Response(
        status=status,
        body=orjson.dumps(content, option=_OPTIONS),
        content_type="application/json",
        headers={"Cache-Control": "no-store"},
    )
