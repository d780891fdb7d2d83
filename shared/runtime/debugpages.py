"""Debug pages of a process: its present state as JSON, for operators only.

Read-only, on the metrics address, and only for callers on the loopback interface, which have been authorized
elsewhere: ``kubectl port-forward`` arrives in the pod's network from loopback, and the API server checks the right to
use it. All other callers, including requests forwarded by a proxy or a browser, receive a 403 with the reason. Pages
contain object names, which metrics never do, but no secrets.

A page is a function from the variable parts of its path to plain data, or None if there is nothing at that path. It
must be fast and bounded, because it runs in the event loop, between binds.
"""

import ipaddress
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from aiohttp import web

log = logging.getLogger(__name__)

PREFIX = "/debug"
# More than an operator reads, less than would delay a bind: encoding 1 MiB takes about 2 ms.
MAX_BYTES = 1024 * 1024
# The source addresses of kubectl port-forward and of a shell in the pod. Not all of 127.0.0.0/8: the proxies of a
# service mesh forward requests from other addresses in it.
_LOCAL = frozenset((ipaddress.ip_address("127.0.0.1"), ipaddress.ip_address("::1")))
# Only proxies set these headers.
_PASSED_ON = ("Forwarded", "X-Forwarded-For", "Via")
_OPTIONS = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS


@dataclass(frozen=True, slots=True)
class DebugPage:
    """A page below ``/debug``. ``path`` may have parts like ``{name}``, passed to ``content`` in order."""

    path: str
    about: str
    content: Callable[..., Any]


class DebugPages:
    """Serves the registered pages; a process adds them as its components are built."""

    def __init__(self) -> None:
        self._pages: dict[str, DebugPage] = {}

    def add(self, *pages: DebugPage) -> None:
        """Add pages; a page replaces one with the same path."""
        self._pages.update((page.path, page) for page in pages)

    async def serve(self, request: web.BaseRequest) -> web.Response:
        """Handle a request for a path below ``/debug``."""
        refused = refusal(request.remote, request.host, request.headers)
        if refused is not None:
            return _answer(403, {"error": refused})
        words = request.path.removeprefix(PREFIX).strip("/").split("/")
        if words == [""]:
            return _answer(200, self._index())
        for page in self._pages.values():
            found = match(page.path, words)
            if found is not None:
                return _page(page, found, request.path)
        return _answer(404, {"error": f"there is no page {request.path}", "pages": self._index()["pages"]})

    def _index(self) -> dict[str, Any]:
        return {"pages": {f"{PREFIX}/{page.path}": page.about for page in self._pages.values()}}


def refusal(peer: str | None, host: str, headers: Mapping[str, str]) -> str | None:
    """Return why a caller may not read debug pages; None if it may. Pure."""
    remedy = "use kubectl port-forward and ask 127.0.0.1"
    if not _is_local(peer or ""):
        return f"debug pages are for callers on the machine itself; {remedy}"
    if any(name in headers for name in _PASSED_ON):
        return f"debug pages are not for what a proxy passes on; {remedy}"
    # DNS rebinding: a web site can resolve its name to 127.0.0.1 and read the pages in the operator's browser.
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    if name != "localhost" and not _is_local(name.strip("[]")):
        return f"debug pages are not for a browser that was sent here; {remedy}"
    return None


def match(path: str, words: list[str]) -> list[str] | None:
    """Return the values of the ``{...}`` parts of a page's path; None if the path does not match. Pure."""
    parts = path.split("/")
    if len(parts) != len(words):
        return None
    found = []
    for part, word in zip(parts, words, strict=True):
        if part.startswith("{") and word:
            found.append(word)
        elif part != word:
            return None
    return found


def _is_local(address: str) -> bool:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    # A listener on all interfaces may report an IPv4 peer as ::ffff:127.0.0.1.
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return (mapped or parsed) in _LOCAL


def _page(page: DebugPage, found: list[str], path: str) -> web.Response:
    try:
        content = page.content(*found)
        if content is None:
            return _answer(404, {"error": f"nothing is known of {'/'.join(found) or path}", "page": page.about})
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
