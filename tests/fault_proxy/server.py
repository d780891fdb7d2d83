"""The proxy itself: TLS to the process, TLS to the API server, rules in between.

One proxy stands before one process, so that what it records is that process's doing. It runs on a thread of its own
and is used from synchronous tests and from asynchronous ones alike. The process's credentials are passed on in its
Authorization header; a client certificate cannot be, because TLS ends here.

Not passed on: protocol upgrades (exec, attach, port-forward).
"""

import asyncio
import socket
import ssl
import tempfile
import threading
import uuid
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any
from weakref import WeakSet

import aiohttp
from aiohttp import web

from localcluster.certs import Authority, write_pair
from tests.fault_proxy.exchange import Relay
from tests.fault_proxy.kubeconfig import redirected
from tests.fault_proxy.record import Exchange, Record
from tests.fault_proxy.rules import Look, Match, Rule, RuleBook

_HOST = "127.0.0.1"
_START_S = 30.0
# Requests under way at the end of a test are of no use to anyone.
_SHUTDOWN_S = 0.2
# For connections to the API server to close; a loop that ends before that leaks their sockets.
_GOODBYE_S = 5.0
_MAX_BODY = 16 << 20
_POLL_S = 0.005


class FaultProxy:
    """Listens from ``with`` on. ``server`` and ``ca_pem`` are the API server's; ``seed`` is for rules by chance."""

    def __init__(self, server: str, ca_pem: bytes, *, seed: int = 0) -> None:
        self.url = ""
        self._authority = Authority("fault-proxy-ca")
        self._context: ssl.SSLContext | None = None
        self._server = server.rstrip("/")
        self._server_ca = ca_pem
        self._rules = RuleBook(seed)
        self._record = Record()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._sockets: WeakSet[socket.socket] = WeakSet()
        self._thread = threading.Thread(target=self._run, name="fault proxy", daemon=True)

    def __enter__(self) -> "FaultProxy":
        self._thread.start()
        if not self._ready.wait(_START_S):
            raise TimeoutError("the fault proxy did not start")
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._loop is not None and self._stop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_START_S)

    @property
    def ca_pem(self) -> bytes:
        """The authority that signed the proxy's certificate."""
        return self._authority.pem

    def rotate_authority(self) -> None:
        """Present a certificate of a new authority to new connections; ``ca_pem`` is that one from now on."""
        self._authority = Authority(f"fault-proxy-ca-{uuid.uuid4().hex[:8]}")
        if self._context is not None:
            self._present(self._context)

    def kubeconfig(self, original: Path, target: Path) -> Path:
        """Write a kubeconfig that leads to the proxy with the credentials of another; returns where it is.

        Raises ValueError for one that identifies its user by a client certificate.
        """
        text = redirected(original.read_text(), original, self.url, self.ca_pem)
        target.touch(mode=0o600)
        target.write_text(text)
        return target

    def add(self, *rules: Rule) -> None:
        """Put rules in force, behind those there are."""
        self._rules.add(*rules)

    def inspect(self, match: Match, look: Look) -> None:
        """Have ``look`` called for each such request before it goes on. It stands still meanwhile, as does all else
        that comes through this proxy; ``look`` is to note what it finds and must not raise."""
        self._rules.inspect(match, look)

    def clear(self) -> None:
        """Disturb nothing from now on; what is held or stalled stays so."""
        self._rules.clear()

    def exchanges(self) -> list[Exchange]:
        """Return what has gone through, in the order of arrival."""
        return self._record.exchanges()

    # --- on the proxy's thread ---

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits for the start
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        trusted = ssl.create_default_context(cadata=self._server_ca.decode())
        # From Python 3.13 on, the default refuses authorities without an Authority Key Identifier.
        trusted.verify_flags &= ~ssl.VERIFY_X509_STRICT
        connector = aiohttp.TCPConnector(ssl=trusted, limit=0, socket_factory=self._new_socket)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as session:
            app = web.Application(client_max_size=_MAX_BODY)
            app.router.add_route("*", "/{path:.*}", Relay(session, self._server, self._rules, self._record).handle)
            # A sender that goes away ends what is done for it, as it would at the API server.
            options: dict[str, Any] = {"handler_cancellation": True, "shutdown_timeout": _SHUTDOWN_S}
            runner = web.AppRunner(app, access_log=None, handle_signals=False, **options)
            await runner.setup()
            try:
                site = web.TCPSite(runner, _HOST, 0, ssl_context=self._tls())
                await site.start()
                self.url = f"https://{_HOST}:{runner.addresses[0][1]}"
                self._ready.set()
                await self._stop.wait()
            finally:
                await runner.cleanup()
        with suppress(TimeoutError):
            async with asyncio.timeout(_GOODBYE_S):
                while any(made.fileno() >= 0 for made in self._sockets):  # noqa: ASYNC110 - aiohttp has no event
                    await asyncio.sleep(_POLL_S)

    def _new_socket(self, address: aiohttp.AddrInfoType) -> socket.socket:
        family, kind, protocol, _, _ = address
        made = socket.socket(family, kind, protocol)
        self._sockets.add(made)
        return made

    def _tls(self) -> ssl.SSLContext:
        context = self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._present(context)
        return context

    def _present(self, context: ssl.SSLContext) -> None:
        # ssl reads a certificate and its key from files alone.
        with tempfile.TemporaryDirectory() as folder:
            pair = self._authority.server(("localhost",), (_HOST,))
            context.load_cert_chain(*write_pair(Path(folder), "proxy", pair))
