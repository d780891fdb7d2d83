"""What a transport makes of what it receives, with real sockets: answer, failure, connection of the next request."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from bowline.kube.calls import Answer, Request, TransportOptions
from bowline.kube.client import KubeClient
from bowline.kube.config import ApiServer, load_access
from bowline.kube.errors import ConnectionFailed, NoResponse
from bowline.kube.resources import PODS
from bowline.kube.transport import HTTPTransport
from bowline.localcluster.certs import LocalAuthority, write_pair

GET = Request("GET", "/api", "application/json")
OK = b"HTTP/1.1 200 OK\r\n"
ONE = OK + b"Content-Length: 2\r\n\r\n{}"
WATCH = OK + b"Transfer-Encoding: chunked\r\n\r\n"
BIG = b"x" * 5_000_000


class ScriptedServer:
    """Answers the next request of any connection with the next script: pieces, and whether it then closes."""

    def __init__(self) -> None:
        self.scripts: list[tuple[Sequence[bytes], bool]] = []
        self.requests: list[bytes] = []
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        self.connections += 1
        try:
            while True:
                self.requests.append(await reader.readuntil(b"\r\n\r\n"))
                pieces, closes = self.scripts.pop(0)
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
                if closes:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@pytest.fixture
async def server() -> AsyncIterator[tuple[ScriptedServer, str]]:
    scripted = ScriptedServer()
    listening = await asyncio.start_server(scripted.serve, "127.0.0.1")
    yield scripted, f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    listening.close()


def opened(url: str, token_file: Path | None = None, timeout_s: float = 5) -> HTTPTransport:
    return HTTPTransport(load_access(ApiServer(url, token_file)), TransportOptions("test/1", timeout_s, 5))


@pytest.mark.parametrize(
    ("received", "closes", "body", "is_kept"),
    [
        pytest.param([ONE], False, b"{}", True, id="a body of a length"),
        pytest.param([WATCH + b"1\r\n{\r\n1\r\n}\r\n0\r\n\r\n"], False, b"{}", True, id="a body in chunks"),
        pytest.param([OK + b"\r\n{", b"}"], True, b"{}", False,
            id="a body without a length ends with the connection"),
        pytest.param([b"HTTP/1.1 100 Continue\r\n\r\n", ONE], False, b"{}", True, id="after a provisional answer"),
        pytest.param([b"HTTP/1.1 204 No Content\r\n\r\n"], False, b"", True, id="no body"),
        pytest.param([OK + b"Connection: close\r\nContent-Length: 2\r\n\r\n{}"], False, b"{}", False,
            id="it will close"),
        pytest.param([ONE], True, b"{}", False, id="it has closed"),
        pytest.param([ONE, ONE], False, b"{}", False, id="an answer too many"),
        pytest.param([ONE, OK], False, b"{}", False, id="the beginning of an answer too many"),
        pytest.param([OK + b"Content-Length: 5000000\r\n\r\n", BIG], False, BIG, True, id="more than is buffered"),
        pytest.param([OK + b"Content-Length: 3\r\n\r\n{}"], True, None, False, id="cut within a length"),
        pytest.param([WATCH + b"3\r\n{}"], True, None, False, id="cut within a chunk"),
        pytest.param([OK + b"Content-Le"], True, None, False, id="cut within the head"),
        pytest.param([], True, None, False, id="closed in place of an answer"),
        pytest.param([b"SSH-2.0-x\r\n\r\n"], False, None, False, id="no HTTP"),
    ],
)  # fmt: skip
async def test_what_is_received(
    server: tuple[ScriptedServer, str], received: Sequence[bytes], closes: bool, body: bytes | None, is_kept: bool
) -> None:
    scripted, url = server
    scripted.scripts = [(received, closes), ([ONE], False)]
    transport = opened(url)
    if body is None:
        with pytest.raises(NoResponse, match="broke") as failure:
            await transport.send(GET)
        assert failure.value.may_have_been_applied
    else:
        assert (await transport.send(GET)).body == body
    await asyncio.sleep(0.01)  # what follows the answer arrives
    assert (await transport.send(GET)).body == b"{}"
    assert scripted.connections == (1 if is_kept else 2)
    await transport.close()


async def test_what_is_sent(server: tuple[ScriptedServer, str], tmp_path: Path) -> None:
    scripted, url = server
    (tmp_path / "token").write_text("secret\n")
    transport = opened(url.replace("//", "//user:word@") + "/base", tmp_path / "token")
    scripted.scripts = [([OK + b'Warning: 299 - "a"\r\nWarning: 299 - "b"\r\nContent-Length: 0\r\n\r\n'], False)]
    answer = await transport.send(
        Request("PATCH", "/x?y=1", "application/json", b"{}", "application/merge-patch+json")
    )
    assert answer.headers.getall("warning") == ['299 - "a"', '299 - "b"']
    assert scripted.requests[0].split(b"\r\n") == [
        b"PATCH /base/x?y=1 HTTP/1.1",
        b"Host: " + url.removeprefix("http://").encode(),
        b"Authorization: Bearer secret",
        b"Accept: application/json",
        b"User-Agent: test/1",
        b"Accept-Encoding: identity",
        b"Content-Type: application/merge-patch+json",
        b"Content-Length: 2",
        b"",
        b"",
    ]
    await transport.close()


@pytest.mark.parametrize("path", ["/a b", "/a\r\nX: y", "/ü"])
async def test_no_line_of_a_request_ends_early(server: tuple[ScriptedServer, str], tmp_path: Path, path: str) -> None:
    (tmp_path / "token").write_text("t")
    transport = opened(server[1], tmp_path / "token")
    with pytest.raises(ValueError, match="path"):
        await transport.send(Request("GET", path, "application/json"))
    assert server[0].requests == []
    await transport.close()


async def test_the_time_of_an_answer_is_limited(server: tuple[ScriptedServer, str]) -> None:
    scripted, url = server
    scripted.scripts = [([], False), ([OK + b"Content-Length: 3\r\n\r\n{"], False), ([ONE], False)]
    transport = opened(url, timeout_s=0.05)
    for _ in range(2):
        with pytest.raises(NoResponse, match="in time"):
            await transport.send(GET)
    assert (await transport.send(GET)).body == b"{}"
    await transport.close()
    with pytest.raises(ConnectionFailed, match="closed"):
        await transport.send(GET)
    with pytest.raises(ConnectionFailed, match="no connection"):
        await opened("http://127.0.0.1:1").send(GET)


async def test_no_more_of_an_answer_is_read_than_asked_for(server: tuple[ScriptedServer, str]) -> None:
    scripted, url = server
    scripted.scripts = [([OK + b"Content-Length: 5000000\r\n\r\n", BIG], False), ([ONE], False)]
    transport = opened(url)
    answer = await transport.send(Request("GET", "/api", "application/json", max_body=1000))
    assert answer == Answer(200, answer.headers, b"", is_cut=True)
    answer = await transport.send(Request("GET", "/api", "application/json", max_body=2))
    assert (answer.body, answer.is_cut, scripted.connections) == (b"{}", False, 2)
    await transport.close()


async def test_a_stream_that_is_silent_for_too_long_fails(server: tuple[ScriptedServer, str]) -> None:
    scripted, url = server
    scripted.scripts = [([WATCH, *[b"2\r\n{}\r\n"] * 3], False)]
    transport = opened(url)
    chunks = b""
    async with aclosing(transport.stream("/x", accept="a", total_s=60, silence_s=0.05)) as stream:
        assert await anext(stream) == b"", "it has begun"
        while len(chunks) < 6:
            chunks += await anext(stream)
        with pytest.raises(NoResponse, match="in time"):
            await anext(stream)
    assert chunks == b"{}" * 3
    await transport.close()


async def test_a_cancelled_request_leaves_no_connection_for_the_next_one(server: tuple[ScriptedServer, str]) -> None:
    scripted, url = server
    scripted.scripts = [([], False), ([ONE], False)]
    transport = opened(url)
    sent = asyncio.create_task(transport.send(GET))
    while not scripted.requests:  # noqa: ASYNC110 - another task's
        await asyncio.sleep(0.001)
    sent.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sent
    assert (await transport.send(GET)).body == b"{}"
    assert scripted.connections == 2
    await transport.close()


@pytest.fixture
async def addresses(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What the name api.example, with and without a dot, resolves to."""
    loop, targets = asyncio.get_running_loop(), list[tuple[str, int]]()
    resolve = loop.getaddrinfo

    async def resolved(host: str, port: int, **options: Any) -> list[tuple[Any, ...]]:
        if not host.startswith("api.example"):
            return list(await resolve(host, port, **options))
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", target) for target in targets]

    monkeypatch.setattr(loop, "getaddrinfo", resolved)
    return targets


async def test_an_address_that_does_not_answer_does_not_keep_the_others_from_being_used(
    server: tuple[ScriptedServer, str], addresses: list[tuple[str, int]]
) -> None:
    scripted, url = server
    scripted.scripts = [([ONE], False)]
    port = urlsplit(url).port or 0
    addresses[:] = [("127.0.0.2", port), ("127.0.0.1", port)]
    with socket.create_server(addresses[0], backlog=0), socket.create_connection(addresses[0]):
        # The kernel answers no further attempt: the backlog is full.
        transport = opened(f"http://api.example:{port}")
        assert (await transport.send(GET)).body == b"{}"
        await transport.close()


async def test_a_certificate_names_the_host_without_its_last_dot(
    tmp_path: Path, addresses: list[tuple[str, int]]
) -> None:
    authority, scripted = LocalAuthority(), ScriptedServer()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*write_pair(tmp_path, "tls", authority.server(("api.example",))))
    (tmp_path / "ca.crt").write_bytes(authority.pem)
    (tmp_path / "token").write_text("t")
    scripted.scripts = [([ONE], False)]
    listening = await asyncio.start_server(scripted.serve, "127.0.0.1", ssl=context)
    addresses.append(listening.sockets[0].getsockname())
    url = f"https://api.example.:{addresses[0][1]}"
    access = load_access(ApiServer(url, tmp_path / "token", tmp_path / "ca.crt"))
    transport = HTTPTransport(access, TransportOptions("test/1", 5, 5))
    try:
        assert (await transport.send(GET)).body == b"{}"
    finally:
        await transport.close()
        listening.close()


async def test_a_write_whose_time_is_over_when_it_has_its_connection_is_not_sent(
    server: tuple[ScriptedServer, str],
) -> None:
    """As in a process that was stopped while it connected, and continues when another one leads."""
    scripted, url = server
    scripted.scripts = [([ONE], False), ([ONE], False)]
    async with KubeClient(load_access(ApiServer(url))) as client:
        client.ledger.permit(lambda: 1.0 if not scripted.connections else -1.0)
        for write in (client.create(PODS, "a", {}), client.patch(PODS, "a", "p", {}), client.delete(PODS, "a", "p")):
            with pytest.raises(ConnectionFailed, match="no longer leads") as failure:
                await write
            assert not failure.value.may_have_been_applied
        assert scripted.requests == []
        await client.get(PODS, "a", "p")  # a read is
        client.ledger.permit(lambda: 1.0)
        await client.create(PODS, "a", {})
    assert [request.split()[0] for request in scripted.requests] == [b"GET", b"POST"]
