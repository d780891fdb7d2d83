"""HTTP/1.1 connections to one API server: each carries one request at a time and is kept for the next one.

aiohttp's client takes as long for a small request as everything else that a write needs: for URL, cookies, redirects,
middlewares and traces, which no API server needs. So only its parser is used, which must withstand whatever is
between here and the API server. Nothing is sent twice. Decision 320.
"""

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit

from aiohappyeyeballs import AddrInfoType, start_connection
from aiohttp.base_protocol import BaseProtocol
from aiohttp.client_exceptions import ClientPayloadError
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import HttpResponseParser, RawResponseMessage
from aiohttp.streams import StreamReader

from bowline.kube.errors import ConnectionFailed, UntrustedServer

# The API server closes an idle connection after 90 s; the client closes it earlier, or a write could meet the close.
_KEEPALIVE_S = 60
# A peer that vanished without closing is detected after about 15 + 3 * 5 s.
_PROBE_AFTER_S, _PROBE_EVERY_S, _PROBES = 15, 5, 3
# Linux only; elsewhere the system's own, longer defaults apply.
_TCP_OPTIONS = (
    ("TCP_KEEPIDLE", _PROBE_AFTER_S),
    ("TCP_KEEPINTVL", _PROBE_EVERY_S),
    ("TCP_KEEPCNT", _PROBES),
    ("TCP_USER_TIMEOUT", 1000 * (_PROBE_AFTER_S + _PROBES * _PROBE_EVERY_S)),
)
# Until the next address of the host is tried too: one may not answer.
_NEXT_ADDRESS_S = 0.25
# Of a reply that is not consumed yet; more of it stays in the kernel.
_READ_BUFFER = 2**18
# For connections to close; only a hanging peer needs more.
_GOODBYE_S = 1.0


# The head of a response, and its body while it is received.
Reply = tuple[RawResponseMessage, StreamReader]


class Connection(BaseProtocol):
    """A connection. ``reply_to`` one request, read the body to its end, then the next one may follow.

    Failures are raised by ``reply_to``, or by the body where it is read: OSError, or of ``aiohttp`` ClientError and
    HttpProcessingError. The connection is closed then, and by ``end_request`` before the reply has been received.
    """

    __slots__ = ("_body", "_heard_at", "_keeps", "_on_lost", "_responses", "_waiter", "trust")

    def __init__(self, trust: ssl.SSLContext | None, on_lost: Callable[["Connection"], None]) -> None:
        loop = asyncio.get_running_loop()
        self._responses = HttpResponseParser(
            self, loop, _READ_BUFFER, payload_exception=ClientPayloadError, read_until_eof=True
        )
        super().__init__(loop, self._responses)
        self.trust = trust
        self._on_lost = on_lost
        self._waiter: asyncio.Future[Reply] | None = None
        self._body: StreamReader | None = None
        self._heard_at = loop.time()
        self._keeps = True  # whether the API server keeps the connection after the reply

    async def reply_to(self, request: bytes) -> Reply:
        """Send a request and return the reply when its head is there."""
        if self.transport is None:
            raise ConnectionResetError("closed by the API server")
        self._waiter, self._body = self._loop.create_future(), None
        self._keeps = False  # until the head of the reply is there
        self.transport.write(request)
        return await self._waiter

    @property
    def is_reusable(self) -> bool:
        """Whether another request may follow: the last reply has been received to its end."""
        is_complete = self._body is None or self._body.at_eof()
        return is_complete and self._keeps and self.transport is not None and not self.transport.is_closing()

    @property
    def idle_for(self) -> float:
        """Seconds since something was received."""
        return self._loop.time() - self._heard_at

    def end_request(self) -> None:
        """End the request: nothing may be awaited any more. Closes a connection that is not reusable."""
        self._waiter = None
        if not self.is_reusable:
            self.abort()

    def abort(self) -> None:
        """Close the connection at once."""
        if self.transport is not None:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Parse what was received."""
        self._heard_at = self._loop.time()
        if self._waiter is None:
            self._fail(ConnectionResetError("a reply without a request"))  # or a part of one
            return
        try:
            messages, _, _ = self._responses.feed_data(data)
        except HttpProcessingError as error:
            self._fail(error)
            return
        for message, body in messages:
            if message.code < 200 and not message.upgrade:
                continue  # provisional: the reply follows
            if self._waiter.done():
                self._fail(ConnectionResetError("a second reply"))
                return
            self._keeps = not (message.should_close or message.upgrade)
            self._body = body
            self._waiter.set_result((message, body))

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Read on, if reading is paused: a stream says so after each of its parts."""
        if self._reading_paused:
            super().resume_reading(resume_parser)

    def connection_lost(self, exc: BaseException | None) -> None:
        """End what is awaited: a body without a length ends so."""
        self._keeps = False
        if exc is None:
            with suppress(HttpProcessingError):
                self._responses.feed_eof()
        self._fail(exc or ConnectionResetError("closed by the API server"))
        super().connection_lost(exc)
        self._on_lost(self)

    def _fail(self, error: BaseException) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)
        elif self._body is not None and not self._body.is_eof():
            self._body.set_exception(error)
        self._keeps = False
        self.abort()


def _new_socket(address: AddrInfoType) -> socket.socket:
    """Return a socket for an address; it detects a vanished peer."""
    family, kind, protocol, _, _ = address
    own_socket = socket.socket(family, kind, protocol)
    own_socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _TCP_OPTIONS:
        if hasattr(socket, option):
            own_socket.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return own_socket


class ConnectionPool:
    """The connections to one server, made when there is no idle one. ``server``: its URL."""

    def __init__(self, server: str, connect_timeout_s: float) -> None:
        parts = urlsplit(server)
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._timeout_s = connect_timeout_s
        self._idle: deque[Connection] = deque()  # the last one that was used is the first one to be used again
        self._open: set[Connection] = set()
        self._is_closed = False

    async def connection(self, trust: ssl.SSLContext | None) -> Connection:
        """Return a connection without a request; ``trust``: of a new one, and idle ones with another are closed.

        Raises ConnectionFailed and UntrustedServer: nothing has been sent.
        """
        if self._is_closed:
            raise ConnectionFailed("not sent: the client is closed")
        while self._idle:
            idle = self._idle.pop()
            if idle.is_reusable and idle.trust is trust and idle.idle_for < _KEEPALIVE_S:
                return idle
            idle.abort()
        try:
            async with asyncio.timeout(self._timeout_s):
                connection = await self._connect(trust)
        except TimeoutError as error:
            raise ConnectionFailed("no connection to the API server in time") from error
        except ssl.SSLError as error:
            raise UntrustedServer(f"no connection to the API server: {error}") from error
        except OSError as error:
            raise ConnectionFailed(f"no connection to the API server: {error or type(error).__name__}") from error
        if connection.transport is not None:
            self._open.add(connection)
        return connection

    async def _connect(self, trust: ssl.SSLContext | None) -> Connection:
        loop = asyncio.get_running_loop()
        addresses = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        own_socket = await start_connection(
            addresses, happy_eyeballs_delay=_NEXT_ADDRESS_S, socket_factory=_new_socket
        )
        try:
            _, connection = await loop.create_connection(
                lambda: Connection(trust, self._open.discard),
                ssl=trust,
                sock=own_socket,
                # A certificate names a host without the dot that ends a complete name.
                server_hostname=self._host.rstrip(".") if trust is not None else None,
            )
        except BaseException:
            own_socket.close()
            raise
        return connection

    def release(self, connection: Connection) -> None:
        """End a connection's request, and keep it for the next one if its reply was received to its end."""
        connection.end_request()
        if connection.is_reusable:
            self._idle.append(connection)
        while self._idle and not (self._idle[0].is_reusable and self._idle[0].idle_for < _KEEPALIVE_S):
            self._idle.popleft().abort()

    async def close(self) -> None:
        """Close all connections; requests in flight and later ones fail. A loop that ends before leaks sockets."""
        self._is_closed = True
        for connection in self._open:
            connection.abort()
        with suppress(TimeoutError):
            async with asyncio.timeout(_GOODBYE_S):
                while self._open:  # noqa: ASYNC110 - without an event for each
                    await asyncio.sleep(0.005)
