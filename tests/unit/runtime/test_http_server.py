"""Which connection the bounded server closes when there are too many, with real sockets."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from aiohttp import web

from bowline.runtime import http_server
from bowline.runtime.address import ListenAddress
from bowline.runtime.http_server import Answer, HttpServer, PlainServer, ServerLimits
from bowline_webhook.server import LIMITS as WEBHOOK_LIMITS

LIMITS = ServerLimits(connections=4, linger_s=60)
HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n"


async def respond(request: web.BaseRequest) -> Answer:
    """Respond 200 to a request whose body is complete, and 408 to others, without waiting for the rest."""
    if request.content.is_eof():
        return Answer(b"ok")
    answer = Answer(b"", 408)
    answer.force_close()
    return answer


class Callers:
    """Connections to the server, which are closed at the end of the test."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.writers: list[asyncio.StreamWriter] = []

    async def send(self, text: bytes, source: str = "127.0.0.1") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Send the text on a new connection, from this address."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, local_addr=(source, 0))
        self.writers.append(writer)
        writer.write(text)
        return reader, writer


@asynccontextmanager
async def serving(limits: ServerLimits) -> AsyncIterator[Callers]:
    server = HttpServer(respond, limits, lambda status, error: None)
    callers = Callers(await server.listen(ListenAddress("127.0.0.1", 0)))
    yield callers
    for writer in callers.writers:
        writer.close()
    await server.stop(0)


@pytest.fixture
async def callers() -> AsyncIterator[Callers]:
    async with serving(LIMITS) as callers:
        yield callers


async def status(reader: asyncio.StreamReader) -> int:
    """Return the status of the next response, 0 if the connection was closed."""
    line = await reader.readline()
    if line:
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head.partition(b"Content-Length: ")[2].split()[0]))
    return int(line.split()[1]) if line else 0


@pytest.mark.parametrize(
    ("method", "version", "fields", "connection"),
    [
        ("POST", "1.1", "", "keep-alive"),
        ("POST", "1.1", "Connection: close\r\n", "close"),
        ("POST", "1.0", "", "close"),
        ("HEAD", "1.1", "", "keep-alive"),
    ],
)
async def test_the_next_response_begins_where_the_last_one_ends(
    callers: Callers, method: str, version: str, fields: str, connection: str
) -> None:
    request = f"{method} / HTTP/{version}\r\nHost: x\r\n{fields}Content-Length: 2\r\n\r\n{{}}".encode()
    count = 2 if connection == "keep-alive" else 1
    reader, _ = await callers.send(request * count)
    body = b"" if method == "HEAD" else b"ok"
    for _ in range(count):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        assert head.startswith(f"HTTP/{version} 200 OK\r\n")
        assert {f"Connection: {connection}", "Content-Length: 2"} <= set(head.split("\r\n"))
        assert await reader.readexactly(len(body)) == body


async def test_late_requests_are_displaced_before_a_new_caller(callers: Callers) -> None:
    """The server waits ``linger_s`` for the rest of a body, so such connections can hold every place."""
    late_callers = [await callers.send(HEAD) for _ in range(LIMITS.connections)]
    assert [await status(reader) for reader, _ in late_callers] == [408] * LIMITS.connections
    reader, writer = await callers.send(b"")
    for _ in range(LIMITS.connections - 1):
        assert await status((await callers.send(HEAD))[0]) == 408
    writer.write(HEAD + b"{}")
    assert await status(reader) == 200


@pytest.mark.parametrize("addresses", [pytest.param(1, id="its own address"), pytest.param(200, id="many addresses")])
async def test_incomplete_requests_displace_no_caller_that_completes_one(callers: Callers, addresses: int) -> None:
    reader, writer = await callers.send(HEAD + b"{}")
    assert await status(reader) == 200
    for number in range(3 * LIMITS.connections):
        await callers.send(HEAD, f"127.0.0.{number % addresses + 1}")
    writer.write(HEAD + b"{}")
    assert await status(reader) == 200


async def test_callers_of_one_request_displace_no_new_caller(callers: Callers) -> None:
    """All are of one address. A caller needs a moment between its connection and its request."""
    for _ in range(LIMITS.connections):
        assert await status((await callers.send(HEAD + b"{}"))[0]) == 200
    reader, writer = await callers.send(b"")
    for _ in range(3 * LIMITS.connections):
        assert await status((await callers.send(HEAD + b"{}"))[0]) == 200
    writer.write(HEAD + b"{}")
    assert await status(reader) == 200


async def test_a_caller_that_sends_nothing_for_long_is_displaced_before_one_that_completes() -> None:
    async with serving(replace(LIMITS, fresh_s=0)) as callers:
        silent, _ = await callers.send(b"")
        connections = [await callers.send(HEAD + b"{}") for _ in range(LIMITS.connections)]
        assert await silent.read() == b""
        for reader, _ in connections:
            assert await status(reader) == 200


def test_a_connection_without_a_request_is_kept_longer_than_by_an_api_server() -> None:
    """It opens connections that it uses only later, for 90 s: one that the server closes sooner costs it a call."""
    assert WEBHOOK_LIMITS.idle_s > 90


async def test_a_connection_without_a_request_is_closed_when_it_was_idle_for_too_long() -> None:
    async with serving(replace(LIMITS, idle_s=0.1)) as callers:
        silent, _ = await callers.send(b"")
        assert await silent.read() == b""


async def test_a_plain_server_displaces_its_oldest_connection() -> None:
    server = PlainServer(respond, ListenAddress("127.0.0.1", 0))
    await server.start()
    callers = Callers(server.address.port)
    request = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    connections = [await callers.send(request) for _ in range(http_server._PLAIN_CONNECTIONS)]
    assert [await status(reader) for reader, _ in connections] == [200] * len(connections)
    newest, _ = await callers.send(request)
    assert await status(newest) == 200
    (oldest, _), (second, second_writer) = connections[:2]
    assert await status(oldest) == 0
    second_writer.write(request)
    assert await status(second) == 200
    for writer in callers.writers:
        writer.close()
    await server.stop()


async def test_a_request_that_has_arrived_when_the_server_stops_is_answered() -> None:
    """Its bytes are in the socket, and the event loop has not read them: without an answer its caller sees EOF."""
    server = HttpServer(respond, LIMITS, lambda status, error: None)
    port = await server.listen(ListenAddress("127.0.0.1", 0))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(HEAD + b"{}")
    assert await status(reader) == 200
    # The transport sends at once, in this turn of the event loop.
    writer.write(HEAD + b"{}")
    await server.stop(5)
    assert await status(reader) == 200
    writer.close()
