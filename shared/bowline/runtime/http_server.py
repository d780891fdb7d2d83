"""aiohttp's HTTP server with bounded connections; `bowline.kube.connections` is the other user of its internals.

aiohttp reads and writes HTTP. This module decides which connections exist: how many, for how long, and which one is
closed when there are too many. Every limit applies per listener, and is shared fairly between peer addresses:

- ``handshakes``: connections whose TLS handshake is not complete. Where a client certificate is required, a peer
  without one never leaves this group, so it never competes with peers that have one.
- ``connections``: connections whose handshake is complete.

At the limit of connections, the one is closed that has been without a complete request for the longest time,
whichever peer it is of: a caller that sends heads without bodies displaces no caller that completes its requests. A
request that was answered before its body arrived is not complete: such connections linger. While few are incomplete,
one that has been so for less than ``fresh_s`` is spared: its caller is about to send. Then, or if every request is
complete, the peer with the most connections loses an idle one: of those with the fewest requests the one that has
been idle for the longest time, so that callers of one request displace no API server of their address; or its newest
one if all are busy. Of handshakes, it loses its oldest. The write buffer bounds the bytes that a peer has not read,
and it must read within ``write_s``. No response names the software. A parser of our own would cost less CPU, and is
what a hostile client attacks.

That is ``HttpServer``, for reviews. ``PlainServer`` serves probes and the debug page: it only bounds the number of
connections, so that they cannot use up the process's file descriptors.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from aiohttp import web
from aiohttp.helpers import rfc822_formatted_time

from bowline.runtime.address import ListenAddress
from bowline.runtime.fairness import FairPool, peer_of

log = logging.getLogger(__name__)

Handler = Callable[[web.BaseRequest], Awaitable["Answer"]]
PlainHandler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
# Called for invalid HTTP and for failures outside the handler, with the response's status and the error.
OnError = Callable[[int, BaseException | None], None]
# Returns whether a peer whose handshake is complete is admitted, given its certificate as ``ssl`` decodes it, or {}.
Admits = Callable[[Mapping[str, Any]], bool]

# All API servers connect at the same time when another replica has ended.
_BACKLOG: Final = 512
# Kernel buffer of one connection in each direction; the kernel doubles it. Both count as the container's memory.
_SOCKET_BUFFER: Final = 32 * 1024
_READ_BUFFER: Final = 16 * 1024
_WRITE_BUFFER: Final = 32 * 1024
_LINE: Final = 4096
_HEADERS: Final = 64
# Connections accepted per turn of the event loop.
_ACCEPTS: Final = 64
# Connections of a plain server.
_PLAIN_CONNECTIONS: Final = 256
_PLAIN_FINISH_S: Final = 1.0
# Delay before accepting again if no file descriptor was free.
_ACCEPT_RETRY_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """The limits of a listener; times in seconds.

    ``fresh_s``: how long a connection without a complete request is spared. ``idle_s``: before the first request and
    between requests; longer than callers keep an idle connection, since a request that arrives while it is closed is
    lost. An API server also keeps connections that it has never used. ``write_s``: how long a peer may leave a
    response unread. ``linger_s``: how long the rest of a body is read after an early response.
    """

    connections: int
    handshakes: int = 128
    handshake_s: float = 5.0
    fresh_s: float = 1.0
    idle_s: float = 180.0
    write_s: float = 10.0
    linger_s: float = 2.0


class Answer(web.StreamResponse):
    """A complete response, written at once. Those of aiohttp can be streams, which costs each review time.

    ``content_type``: with its charset. ``fields``: further ones of the head.
    """

    def __init__(
        self, content: bytes, status: int = 200, content_type: str = "text/plain; charset=utf-8", fields: str = ""
    ) -> None:
        super().__init__(status=status)
        self._content = content
        self._fields = f"Content-Type: {content_type}\r\nContent-Length: {len(content)}\r\n{fields}"

    async def prepare(self, request: web.BaseRequest) -> None:
        """Write the response."""
        if self._keep_alive is None:
            self._keep_alive = request.keep_alive
        major, minor = request.version
        head = (
            f"HTTP/{major}.{minor} {self.status} {self.reason}\r\n{self._fields}Server: bowline\r\n"
            f"Date: {rfc822_formatted_time()}\r\n"
            f"Connection: {'keep-alive' if self._keep_alive else 'close'}\r\n\r\n"
        )
        content = b"" if request.method == "HEAD" else self._content
        await request.writer.write(head.encode() + content)
        await request.writer.drain()

    async def write_eof(self, data: bytes = b"") -> None:
        """Write nothing more."""


class WaitGroup:
    """A count, and a wait until it is zero, as Go's."""

    def __init__(self) -> None:
        self.count = 0
        self._zero = asyncio.Event()
        self._zero.set()

    def add(self) -> None:
        """Count one more."""
        self.count += 1
        self._zero.clear()

    def done(self) -> None:
        """Count one less."""
        self.count -= 1
        if not self.count:
            self._zero.set()

    async def wait(self) -> None:
        """Wait until the count is zero."""
        await self._zero.wait()


# Turns of the event loop in which it reads what is in a socket, parses it and begins to handle it.
_TURNS = 4


class Connection(web.RequestHandler):
    """A connection after its handshake. ``peer``: its address; ``is_busy``: a request is being handled.

    ``completed``: the number of its requests with a response.
    """

    __slots__ = ("_has_requests", "_raw", "_server", "_write_timer", "completed", "is_busy", "peer")

    def __init__(self, server: "HttpServer", **arguments: Any) -> None:
        super().__init__(server.manager, loop=asyncio.get_running_loop(), **arguments)
        self._server = server
        self._has_requests = False
        self._write_timer: asyncio.TimerHandle | None = None
        self._raw: asyncio.Transport | None = None
        self.peer = ""
        self.is_busy = False
        self.completed = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start to read requests, unless the peer is not admitted or there are too many connections."""
        super().connection_made(transport)
        # aiohttp drops its reference when it begins to close, which a peer that does not read can delay.
        self._raw = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self.peer = peer_of(str(peer[0])) if peer else ""
        self._raw.set_write_buffer_limits(_WRITE_BUFFER)
        admits = self._server.admits
        is_admitted = admits is None or admits(transport.get_extra_info("peercert") or {})
        self._server.register(self, is_admitted=is_admitted)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Release the connection's place."""
        self.record_request()
        if self._write_timer is not None:
            self._write_timer.cancel()
        self._raw = None
        self._server.unregister(self)
        super().connection_lost(exc)

    def record_request(self) -> None:
        """Record that a request has arrived."""
        if not self._has_requests:
            self._has_requests = True
            self._server.before_first_request.done()

    def record_complete_request(self) -> None:
        """Record that the present request is complete."""
        self._server.request_received(self)

    def pause_writing(self) -> None:
        """Wait for the peer to read, for at most ``write_s``."""
        super().pause_writing()
        self._write_timer = self._loop.call_later(self._server.limits.write_s, self.abort)

    def resume_writing(self) -> None:
        """Continue: the peer has read."""
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    async def send_continue(self, request: web.BaseRequest) -> None:
        """Ask for the body of a request whose caller waits for that."""
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # it is not part of the response

    def abort(self) -> None:
        """Close the connection without waiting for the peer."""
        if self._raw is not None:
            self._raw.abort()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Respond to invalid HTTP or to a failure of the handler, and close the connection."""
        self._server.on_error(status, exc)
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun; it cannot become an error")
        text = (
            "the server has failed; its log has the reason" if status >= 500 else "this is not a valid HTTP request"
        )
        response = Answer(f"{text}\n".encode(), status)
        response.force_close()
        return response


class HttpServer:
    """Serves a handler on one address. ``context`` makes it HTTPS.

    ``before_first_request``: connections without a request so far.
    """

    def __init__(
        self, handler: Handler, limits: ServerLimits, on_error: OnError, admits: Admits | None = None
    ) -> None:
        self.limits = limits
        self.admits = admits
        self.on_error = on_error
        self.before_first_request = WaitGroup()
        self._handler = handler
        self._requests = WaitGroup()  # without a complete response
        self._open = WaitGroup()  # connections, including those being closed
        self._context: ssl.SSLContext | None = None
        self._sockets: list[socket.socket] = []
        self._handshakes: FairPool[asyncio.Task[None]] = FairPool(limits.handshakes)
        self._connections: FairPool[Connection] = FairPool(limits.connections, self._victim)
        # Connections without a complete request, in the order in which the wait for it began, and when it did.
        self._incomplete: dict[Connection, float] = {}
        # A handler waits only for its request's body, which cannot arrive after the connection is lost.
        self.manager = web.Server(self._handle, handler_cancellation=True)

    @property
    def in_flight(self) -> int:
        """The number of requests without a complete response."""
        return self._requests.count

    async def listen(self, address: ListenAddress, context: ssl.SSLContext | None = None) -> int:
        """Accept connections; returns the port. Raises OSError if the address cannot be used."""
        self._context = context
        self._sockets = await _bind(address)
        for listener in self._sockets:
            self._accept_from(listener)
        port: int = self._sockets[0].getsockname()[1]
        return port

    async def stop(self, finish_s: float) -> None:
        """Stop accepting, give requests in flight ``finish_s`` seconds, then close all connections.

        A peer that has connected before gets ``linger_s`` for its first request: it is about to send it. What has
        arrived on an idle connection is answered: its caller would see the end of the connection in its place.
        """
        sockets, self._sockets = self._sockets, []
        for listener in sockets:
            self._accept(listener)  # closing the listener would reset the pending ones
            asyncio.get_running_loop().remove_reader(listener)
            listener.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(finish_s):
                await self._first_requests()
                for _ in range(_TURNS):
                    await asyncio.sleep(0)
                await self._requests.wait()
        for task in self._handshakes.items():
            task.cancel()
        self.manager.pre_shutdown()
        await self.manager.shutdown(self.limits.linger_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.limits.linger_s):
                await self._open.wait()
        for connection in self.manager.connections:
            cast("Connection", connection).abort()
        await self._open.wait()

    async def _first_requests(self) -> None:
        """Wait for handshakes, and for the first request of each new connection."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.limits.linger_s):
                if handshakes := self._handshakes.items():
                    await asyncio.wait(handshakes)
                await self.before_first_request.wait()

    # --- called by connections ---

    def register(self, connection: Connection, *, is_admitted: bool) -> None:
        """Register a connection, and abort those that it displaces; one not admitted takes no place."""
        self._open.add()
        self.before_first_request.add()
        if not is_admitted:
            connection.abort()
            return
        late = self._late_connection() if self._connections.total >= self.limits.connections else None
        if late is not None:
            self._release(late)
            late.abort()
        self._await_request(connection)
        for victim in self._connections.put(connection.peer, connection):
            self._release(victim)
            victim.abort()

    def unregister(self, connection: Connection) -> None:
        """Release the connection's place."""
        self._release(connection)
        self._open.done()

    def request_received(self, connection: Connection) -> None:
        """Record that the connection's present request is complete."""
        self._incomplete.pop(connection, None)

    def _await_request(self, connection: Connection) -> None:
        self._incomplete[connection] = asyncio.get_running_loop().time()

    def _late_connection(self) -> Connection | None:
        """Return the connection without a complete request that is displaced first; None if all are to be spared."""
        oldest = next(iter(self._incomplete), None)
        if oldest is None:
            return None
        waited = asyncio.get_running_loop().time() - self._incomplete[oldest]
        # A flood of heads displaces its own kind, however young.
        are_many = 2 * len(self._incomplete) >= self.limits.connections
        return oldest if are_many or waited >= self.limits.fresh_s else None

    def _victim(self, connections: Iterable[Connection]) -> Connection:
        """Return the connection that a peer loses, of those passed in the order of their last request."""
        candidates = list(connections)
        idle = [connection for connection in candidates if not connection.is_busy]
        complete = [connection for connection in idle if connection not in self._incomplete]
        return min(complete or idle or candidates[-1:], key=lambda connection: connection.completed)

    def _release(self, connection: Connection) -> None:
        self._connections.drop(connection.peer, connection)
        self._incomplete.pop(connection, None)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = connection_of(request)
        connection.record_request()
        connection.is_busy = True
        self._incomplete.pop(connection, None)
        if not request.content.is_eof():
            self._await_request(connection)
        self._requests.add()
        try:
            response = await self._handler(request)
        finally:
            connection.is_busy = False
            connection.completed += 1
            if request.content.is_eof():
                self._incomplete.pop(connection, None)
            self._connections.renew(connection.peer, connection)
            self._requests.done()
        return response

    # --- accepting ---

    def _accept(self, listener: socket.socket) -> None:
        """Accept pending connections. Accepting is cheap; limits are applied to the accepted connection."""
        for _ in range(_ACCEPTS):
            try:
                peer_socket, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # there is no free file descriptor
                log.warning("a connection could not be accepted", extra={"error": str(error)})
                loop = asyncio.get_running_loop()
                loop.remove_reader(listener)
                loop.call_later(_ACCEPT_RETRY_S, self._accept_from, listener)
                return
            peer_socket.setblocking(False)
            self._begin(peer_socket, peer_of(str(address[0])))

    def _accept_from(self, listener: socket.socket) -> None:
        if listener in self._sockets:
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _begin(self, peer_socket: socket.socket, peer: str) -> None:
        task = asyncio.create_task(self._shake_hands(peer_socket), name="handshake")

        def on_end(_: asyncio.Task[None]) -> None:
            self._handshakes.drop(peer, task)
            if task.cancelled() or task.exception() is not None:
                peer_socket.close()

        task.add_done_callback(on_end)
        for surplus_task in self._handshakes.put(peer, task):
            surplus_task.cancel()

    async def _shake_hands(self, peer_socket: socket.socket) -> None:
        limits = self.limits
        times: dict[str, float] = {}
        if self._context is not None:
            times = {"ssl_handshake_timeout": limits.handshake_s, "ssl_shutdown_timeout": limits.linger_s}
        # A peer that disconnects, is too slow or has no acceptable certificate is not logged.
        with contextlib.suppress(OSError):
            loop = asyncio.get_running_loop()
            await loop.connect_accepted_socket(self._connection, peer_socket, ssl=self._context, **times)
            return
        peer_socket.close()

    def _connection(self) -> Connection:
        return Connection(
            self,
            access_log=None,
            keepalive_timeout=self.limits.idle_s,
            lingering_time=self.limits.linger_s,
            read_bufsize=_READ_BUFFER,
            max_line_size=_LINE,
            max_field_size=_LINE,
            max_headers=_HEADERS,
            auto_decompress=False,
        )


class PlainServer(web.Server):
    """aiohttp's own server. At most ``_PLAIN_CONNECTIONS``: a new connection displaces the oldest, of any peer."""

    def __init__(self, handler: PlainHandler, address: ListenAddress) -> None:
        super().__init__(handler, access_log=None)
        self._runner = web.ServerRunner(self, shutdown_timeout=_PLAIN_FINISH_S)
        self.address = address

    async def start(self) -> None:
        """Listen; afterwards ``address`` has the actual port. Raises OSError if the address cannot be used."""
        await self._runner.setup()
        await web.TCPSite(self._runner, self.address.host or None, self.address.port).start()
        self.address = ListenAddress(self.address.host, self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Close the listener, wait a second for requests in flight, then close all connections."""
        await self._runner.cleanup()

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        """Register a connection, and abort those that it displaces."""
        super().connection_made(handler, transport)
        for displaced in self.connections[:-_PLAIN_CONNECTIONS]:
            if displaced.transport is not None:
                displaced.transport.abort()


def connection_of(request: web.BaseRequest) -> Connection:
    """Return the connection of a request that an ``HttpServer`` handles."""
    return cast("Connection", request.protocol)


async def _bind(address: ListenAddress) -> list[socket.socket]:
    """Return a listening socket per address of the host; for all interfaces one socket serves both IP families."""
    if not address.host:
        dualstack = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dualstack else socket.AF_INET
        return [_create_listener(family, ("", address.port), dualstack=dualstack)]
    loop = asyncio.get_running_loop()
    addresses = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, _, _, _, target in dict.fromkeys(addresses):
            sockets.append(_create_listener(family, target, dualstack=False))
    except OSError:
        for listener in sockets:
            listener.close()
        raise
    return sockets


def _create_listener(family: int, target: Any, *, dualstack: bool) -> socket.socket:
    listener = socket.create_server(target[:2], family=family, backlog=_BACKLOG, dualstack_ipv6=dualstack)
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        listener.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BUFFER)  # accepted connections inherit it
    listener.setblocking(False)
    return listener
