"""The proxy itself: TLS to the process, TLS to the API server, rules in between.

Each process has its own proxy, so that the record contains only its requests. The proxy runs on its own thread and
serves synchronous and asynchronous tests. The process's credentials are forwarded in the Authorization header; a
client certificate cannot be forwarded, because TLS ends here.

Not forwarded: protocol upgrades (exec, attach, port-forward).
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

from bowline.localcluster.certs import LocalAuthority, write_pair
from bowline.localcluster.kubeconfig import redirect
from bowline.testing.fault_proxy.exchange import Relay
from bowline.testing.fault_proxy.record import Exchange, Record
from bowline.testing.fault_proxy.rules import FaultRule, RuleBook

_HOST = "127.0.0.1"
_START_S = 30.0
# Requests that are in flight at the end of a test are discarded.
_SHUTDOWN_S = 0.2
# For connections to the API server to close; a loop that ends earlier leaks their sockets.
_GOODBYE_S = 5.0
_MAX_BODY = 16 << 20
_POLL_S = 0.005


class FaultProxy:
    """Listens within ``with``. ``server`` and ``ca_pem`` are the API server's; ``seed`` is for ``chance``."""

    def __init__(self, server: str, ca_pem: bytes, *, seed: int = 0) -> None:
        self.url = ""
        self._authority = LocalAuthority("fault-proxy-ca")
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
        """The CA that signed the proxy's certificate."""
        return self._authority.pem

    def rotate_authority(self) -> None:
        """Use a certificate of a new CA for new connections; ``ca_pem`` is that CA afterwards."""
        self._authority = LocalAuthority(f"fault-proxy-ca-{uuid.uuid4().hex[:8]}")
        if self._context is not None:
            self._present(self._context)

    def kubeconfig(self, original: Path, target: Path) -> Path:
        """Write a kubeconfig for the proxy with the credentials of another; returns its path.

        Raises ValueError for one whose user has a client certificate.
        """
        ca_file = target.with_name(f"{target.name}.ca.crt")
        ca_file.write_bytes(self.ca_pem)
        text = redirect(original.read_text(), original, self.url, ca_file)
        target.touch(mode=0o600)
        target.write_text(text)
        return target

    def add(self, *rules: FaultRule) -> None:
        """Append rules."""
        self._rules.add(*rules)

    def clear(self) -> None:
        """Remove all rules; held and stalled requests stay so."""
        self._rules.clear()

    def exchanges(self, since: int = 0) -> list[Exchange]:
        """Return the completed exchanges after the exchange number ``since``, in order of arrival."""
        return self._record.exchanges(since)

    def latest(self) -> int:
        """Return the number of the latest completed exchange; 0 if there is none."""
        return self._record.latest()

    # --- on the proxy's thread ---

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - re-raised by the caller of start
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        trust = ssl.create_default_context(cadata=self._server_ca.decode())
        # From Python 3.13 on, the default refuses authorities without an LocalAuthority Key Identifier.
        trust.verify_flags &= ~ssl.VERIFY_X509_STRICT
        connector = aiohttp.TCPConnector(ssl=trust, limit=0, socket_factory=self._new_socket)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as session:
            app = web.Application(client_max_size=_MAX_BODY)
            app.router.add_route("*", "/{path:.*}", Relay(session, self._server, self._rules, self._record).handle)
            # A client that disconnects cancels its handler, as at the API server.
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
                while any(connection.fileno() >= 0 for connection in self._sockets):  # noqa: ASYNC110 - aiohttp has no event for it
                    await asyncio.sleep(_POLL_S)

    def _new_socket(self, address: aiohttp.AddrInfoType) -> socket.socket:
        family, kind, protocol, _, _ = address
        connection = socket.socket(family, kind, protocol)
        self._sockets.add(connection)
        return connection

    def _tls(self) -> ssl.SSLContext:
        context = self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._present(context)
        return context

    def _present(self, context: ssl.SSLContext) -> None:
        # ssl loads a certificate and its key only from files.
        with tempfile.TemporaryDirectory() as folder:
            pair = self._authority.server(("localhost",), (_HOST,))
            context.load_cert_chain(*write_pair(Path(folder), "proxy", pair))
