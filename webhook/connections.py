"""The connections of the listener: sockets and deadlines around ``webhook.exchange``.

A request arms no timer: each connection notes since when it waits for what it waits for, and one sweep over all of
them, four times a second, ends those that have waited for too long. A caller that does not take its answers is read
no further until it does.

Must not look into requests: what they say is the exchange's matter, how long a body may take the handler's.
"""

import asyncio
import ssl
from collections.abc import Mapping
from typing import Final, cast

from shared.runtime.probes import ListenAddress
from webhook.exchange import Exchange, Phase
from webhook.http import Handler

# Longer than the 90 s after which API servers close an idle connection: theirs is the side to do it, or a request
# would meet a connection that is being closed.
_KEEPALIVE_S: Final = 180.0
# A head is one packet or two.
_HEAD_S: Final = 10.0
# After an answer that did not wait for the whole body: how long to read on, so that the caller sees it and no reset.
_LINGER_S: Final = 2.0
# The longest that any call may last: who has not taken an answer by then waits for it no more.
FINISH_S: Final = 30.0
_SWEEP_S: Final = 0.25
# Bodies that are not complete yet, together: room for nine of the longest, and for thousands of ordinary reviews.
MAX_HELD: Final = 64 * 1024 * 1024
# Connections that may wait to be accepted: API servers come all at once when another replica has gone.
_BACKLOG: Final = 512
# How long each may last; that of a body is its request's own.
_LIMITS_S: Final[Mapping[Phase, float]] = {
    Phase.IDLE: _KEEPALIVE_S,
    Phase.HEAD: _HEAD_S,
    Phase.REST: _LINGER_S,
    Phase.DEAF: _LINGER_S,
    Phase.OVER: _LINGER_S,
}


class Connections:
    """All connections of one listener. After ``stop`` there are none, and there will be none."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self._loop = asyncio.get_running_loop()
        self._open: set[Connection] = set()
        # Who keeps how much of a body that is not complete; most bodies are, with their first packet.
        self._held: dict[Connection, int] = {}
        self._server: asyncio.Server | None = None
        self._sweep: asyncio.TimerHandle | None = None
        self.is_stopped = False
        self._none_left = asyncio.Event()
        self._none_left.set()

    async def listen(self, address: ListenAddress, context: ssl.SSLContext | None) -> int:
        """Listen; returns the port. Raises OSError if the address cannot be had."""
        server = await self._loop.create_server(
            lambda: Connection(self), address.host or None, address.port, ssl=context, backlog=_BACKLOG
        )
        self._server = server
        port: int = server.sockets[0].getsockname()[1]
        return port

    async def stop(self) -> None:
        """Close the listener and what is idle; let the rest finish for as long as a call may last, then close it."""
        if self._server is not None:
            self._server.close()
        self.is_stopped = True
        for connection in list(self._open):
            connection.look_at_the_clock(self.now())
        try:
            async with asyncio.timeout(FINISH_S):
                await self._none_left.wait()
        except TimeoutError:
            for connection in list(self._open):
                connection.abort()
            await self._none_left.wait()
        if self._sweep is not None:
            self._sweep.cancel()

    def add(self, connection: "Connection") -> bool:
        """Count a connection in; False if it has come too late: its handshake has outlived the listener."""
        if self.is_stopped:
            return False
        self._open.add(connection)
        self._none_left.clear()
        if self._sweep is None:
            self._sweep = self._loop.call_later(_SWEEP_S, self._sweep_all)
        return True

    def remove(self, connection: "Connection") -> None:
        """Count a connection out."""
        self._open.discard(connection)
        if not self._open:
            self._none_left.set()

    def hold(self, connection: "Connection", size: int) -> None:
        """Take note of how much of a body a connection keeps. Where all keep too much together, the largest goes.

        Whoever sends large bodies slowly is in nobody's way but that of others who do.
        """
        if size:
            self._held[connection] = size
            while len(self._held) > 1 and sum(self._held.values()) > MAX_HELD:
                max(self._held, key=self._held.__getitem__).crowd_out()
        else:
            self._held.pop(connection, None)

    def now(self) -> float:
        """Return the loop's time, which is what connections wait by."""
        return self._loop.time()

    def _sweep_all(self) -> None:
        now = self.now()
        for connection in list(self._open):
            connection.look_at_the_clock(now)
        self._sweep = self._loop.call_later(_SWEEP_S, self._sweep_all) if self._open else None


class Connection(asyncio.Protocol):
    """One connection: what its exchange says is sent, what its phase says is waited for."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._exchange = Exchange(connections.handler)
        self._transport: asyncio.Transport | None = None
        # Since when the exchange has been in its phase, or the caller has not taken what was sent.
        self._since = 0.0
        self._blocked_since: float | None = None
        self._held = 0

    # --- called by the transport ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for requests."""
        # uvloop's transports have the methods but not the base class.
        self._transport = cast("asyncio.Transport", transport)
        self._since = self._connections.now()
        if not self._connections.add(self):
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Answer what is complete by this."""
        exchange, before = self._exchange, self._exchange.phase
        out = exchange.receive(data)
        if out or exchange.phase is not before:
            self._since = self._connections.now()
            self._send(out)
        self._note_what_is_held()

    def eof_received(self) -> None:
        """Answer what cannot be completed any more; the transport closes when that is sent."""
        self._since = self._connections.now()
        self._send(self._exchange.hang_up())
        self._note_what_is_held()

    def pause_writing(self) -> None:
        """Read no more requests while answers are not taken."""
        self._blocked_since = self._connections.now()
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Go on."""
        self._blocked_since = None
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of all."""
        self._exchange.lose()
        self._transport = None
        self._note_what_is_held()
        self._connections.remove(self)

    # --- called by the connections ---

    def abort(self) -> None:
        """Close without any further word."""
        if self._transport is not None:
            self._transport.abort()

    def crowd_out(self) -> None:
        """Turn the request at hand away: its body takes the room of others."""
        self._since = self._connections.now()
        self._send(self._exchange.crowd_out())
        self._note_what_is_held()

    def look_at_the_clock(self, now: float) -> None:
        """End what has lasted for too long."""
        if self._blocked_since is not None:
            if now - self._blocked_since > FINISH_S:
                self.abort()
            return
        exchange = self._exchange
        if now - self._since <= self._limit_s() and not (
            exchange.phase is Phase.IDLE and self._connections.is_stopped
        ):
            return
        match exchange.phase:
            case Phase.HEAD | Phase.BODY:
                self._since = now
                self._send(exchange.expire())
                self._note_what_is_held()
            case Phase.IDLE | Phase.REST | Phase.DEAF:
                self._since = now
                self._send(exchange.hang_up())
            case Phase.OVER:
                self.abort()

    def _note_what_is_held(self) -> None:
        held = self._exchange.held
        if held != self._held:
            self._held = held
            self._connections.hold(self, held)

    def _limit_s(self) -> float:
        exchange = self._exchange
        if exchange.head is not None:
            return self._connections.handler.body_timeout_s(exchange.head)
        if exchange.phase is Phase.OVER and self._transport is not None and self._transport.get_write_buffer_size():
            return FINISH_S  # the last answer is still on its way
        return _LIMITS_S[exchange.phase]

    def _send(self, out: bytes) -> None:
        if self._transport is None:
            return
        if out:
            self._transport.write(out)
        if self._exchange.phase is Phase.OVER:
            self._transport.close()
