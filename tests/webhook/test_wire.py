"""What strangers do to the listener, byte by byte over real sockets."""

import asyncio
import contextlib
import re
import socket
import ssl
import struct
from collections.abc import AsyncIterator

import pytest

from shared.runtime.probes import ListenAddress
from tests.unit.webhook.exchanges import Echo, answers, chunked, post, with_head
from tests.unit.webhook.reviews import encoded, pod, review
from tests.webhook.served import MAX_IN_FLIGHT, Served, head
from webhook.connections import Connections
from webhook.exchange import MAX_HEAD
from webhook.hooks import Hook

POD = encoded(review(pod()))
ASK = head(Hook.VALIDATE_PODS, len(POD))
TYPE = "Content-Type: application/json"
LENGTH, CHUNKS = f"Content-Length: {len(POD)}", "Transfer-Encoding: chunked"


def asked(*lines: str, method: str = "POST", target: str = Hook.VALIDATE_PODS, version: str = "1.1") -> bytes:
    """Return the head of a review's request."""
    return with_head(TYPE, *lines, method=method, target=target, version=version)


async def told(reader: asyncio.StreamReader) -> list[int]:
    """Return the statuses of all answers up to the connection's end."""
    return [status for status, _, _ in answers(await reader.read())]


async def status(reader: asyncio.StreamReader) -> int:
    """Read one answer."""
    text = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"Content-Length: (\d+)", text)
    await reader.readexactly(int(length[1]) if length else 0)
    return int(text.split()[1])


async def gone(writer: asyncio.StreamWriter) -> None:
    """Close our side, whatever the other has done to it."""
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def reset(writer: asyncio.StreamWriter) -> None:
    """Break the connection off."""
    raw = writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


END = "Connection: close"


@pytest.mark.parametrize(
    ("sent", "statuses"),
    [
        pytest.param(ASK + POD + asked(LENGTH, END) + POD, [200, 200], id="two requests at once"),
        pytest.param(asked(CHUNKS, END) + b"%x\r\n%b\r\n0\r\n\r\n" % (len(POD), POD), [200], id="chunks"),
        pytest.param(asked(LENGTH, END, "Expect: 100-continue") + POD, [100, 200], id="a caller who would wait"),
        pytest.param(asked(LENGTH, version="1.0") + POD, [200], id="HTTP/1.0"),
        pytest.param(asked(LENGTH, "Connection: Upgrade", "Upgrade: h2c") + POD, [200], id="another protocol"),
        pytest.param(asked(END, method="GET"), [405], id="another method"),
        pytest.param(asked(method="CONNECT", target="a:1"), [404], id="a tunnel"),
        pytest.param(asked(LENGTH, END, target="/") + POD, [404], id="another path"),
    ],
)
async def test_each_is_answered_and_the_connection_closed(served: Served, sent: bytes, statuses: list[int]) -> None:
    reader, writer = await served.connect()
    writer.write(sent)
    assert await told(reader) == statuses
    await gone(writer)
    assert served.sample("bowline_admission_under_way") == 0


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        pytest.param(b"\x00 garbage\r\n\r\n", 400, id="garbage"),
        pytest.param(asked(LENGTH, CHUNKS) + b"0\r\n\r\n", 400, id="a length and chunks"),
        pytest.param(asked(CHUNKS) + b"zz\r\n" + POD, 400, id="a chunk without a size"),
        pytest.param(asked(*[f"A{i}: {'x' * 4000}" for i in range(9)]), 431, id="a head of 36 KB"),
        pytest.param(asked("Content-Length: 9999999", END), 413, id="a large body"),
    ],
)
async def test_who_is_told_off_can_say_all_he_has_to_and_sees_the_answer(
    served: Served, sent: bytes, code: int
) -> None:
    reader, writer = await served.connect()
    writer.write(sent)
    for _ in range(20):
        writer.write(b"more" * 10_000)
        await writer.drain()
    assert await status(reader) == code
    await gone(writer)
    assert served.sample("bowline_admission_under_way") == 0
    assert (await served.review(Hook.VALIDATE_PODS, review(pod())))["allowed"]


async def test_a_review_byte_by_byte(served: Served) -> None:
    reader, writer = await served.connect()
    for byte in ASK + POD:
        writer.write(bytes([byte]))
        await asyncio.sleep(0)
    assert await status(reader) == 200
    await gone(writer)


async def test_a_refused_request_leaves_the_connection_of_use(served: Served) -> None:
    reader, writer = await served.connect()
    for path, code in (("/", 404), (Hook.VALIDATE_PODS, 200), ("/none", 404)):
        writer.write(head(path, len(POD)) + POD[:5])
        await writer.drain()
        writer.write(POD[5:])
        assert await status(reader) == code
    await gone(writer)


async def test_one_too_many_is_told_so_before_its_body_is_there(served: Served) -> None:
    waiting = [await served.connect() for _ in range(MAX_IN_FLIGHT)]
    for _, writer in waiting:
        writer.write(ASK)
    reader, writer = await served.connect()
    while served.sample("bowline_admission_under_way") != MAX_IN_FLIGHT:  # noqa: ASYNC110 - nothing is set
        await asyncio.sleep(0.001)
    writer.write(ASK)
    assert await status(reader) == 429
    # With the rest of its body it is done with, and the connection is of use again.
    writer.write(POD)
    await gone(waiting[0][1])
    while served.sample("bowline_admission_under_way") == MAX_IN_FLIGHT:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    writer.write(ASK + POD)
    assert await status(reader) == 200
    for _, other in [*waiting[1:], (reader, writer)]:
        await gone(other)


async def test_who_breaks_off_holds_no_place(served: Served) -> None:
    _, writer = await served.connect()
    writer.write(ASK + POD[:7])
    while not served.sample("bowline_admission_under_way"):  # noqa: ASYNC110 - nothing is set
        await asyncio.sleep(0.001)
    reset(writer)
    while served.sample("bowline_admission_under_way"):  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    await gone(writer)


async def test_a_kept_connection_through_all_of_stopping(served: Served) -> None:
    kept, asking = await served.connect(), await served.connect()
    for reader, writer in (kept, asking):
        writer.write(ASK + POD)
        assert await status(reader) == 200
    served.server.leave()
    kept[1].write(ASK + POD)
    assert await status(kept[0]) == 200
    served.server.close_connections()
    # Closed by its answer, not before it.
    kept[1].write(ASK + POD)
    (answer,) = answers(await kept[0].read())
    assert (answer[0], answer[2]) == (200, True)
    asking[1].write(ASK + POD[:7])
    while served.sample("bowline_admission_under_way") != 1:  # noqa: ASYNC110 - nothing is set
        await asyncio.sleep(0.001)
    stopping = asyncio.create_task(served.server.stop())
    await asyncio.sleep(0.01)
    assert not stopping.done()
    asking[1].write(POD[7:])
    assert await told(asking[0]) == [200]
    await stopping
    for _, writer in (kept, asking):
        await gone(writer)


# --- without TLS, where a caller can do more to the connection, and with a handler that takes notes ---


@contextlib.asynccontextmanager
async def echoing(context: ssl.SSLContext | None = None) -> AsyncIterator[tuple[Echo, int]]:
    """Give a handler and the port at which it is asked."""
    handler = Echo()
    connections = Connections(handler)
    yield handler, await connections.listen(ListenAddress("127.0.0.1", 0), context)
    await connections.stop()


@pytest.fixture
async def plain() -> AsyncIterator[tuple[Echo, int]]:
    async with echoing() as made:
        yield made


@pytest.mark.parametrize(
    ("sent", "statuses"),
    [
        pytest.param(b"", [], id="nothing"),
        pytest.param(post() + chunked(b"two"), [200, 200], id="whole requests"),
        pytest.param(post()[:-1], [400], id="a part of a body"),
        pytest.param(post()[:9], [400], id="a part of a head"),
    ],
)
async def test_who_has_only_ended_his_own_side_gets_his_answer(
    plain: tuple[Echo, int], sent: bytes, statuses: list[int]
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", plain[1])
    writer.write(sent)
    writer.write_eof()
    assert await told(reader) == statuses
    await gone(writer)


async def test_a_caller_who_resets_the_connection_is_forgotten(plain: tuple[Echo, int]) -> None:
    handler, port = plain
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(post() + post()[:-1])
    assert await status(reader) == 200
    while not handler.begun:  # noqa: ASYNC110 - nothing is set
        await asyncio.sleep(0.001)
    reset(writer)
    while handler.begun:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    await gone(writer)


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "TLS"])
async def test_answers_that_are_not_taken_stop_the_reading_and_none_is_lost(served: Served, encrypted: bool) -> None:
    count = 20_000
    context, trust = (served.serving.context, served.trust) if encrypted else (None, None)
    async with echoing(context) as (handler, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust)
        writer.write(post(b"x" * 900) * count)
        seen = -1
        while len(handler.seen) != seen or not seen:  # until it reads no more
            seen = len(handler.seen)
            await asyncio.sleep(0.2)
        assert seen < count
        for _ in range(count):
            assert await status(reader) == 200
        await gone(writer)
    assert len(handler.seen) == count


async def test_a_large_head_in_one_packet_is_told_so(plain: tuple[Echo, int]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", plain[1])
    writer.write(b"POST /echo HTTP/1.1\r\n" + b"A: b\r\n" * MAX_HEAD)
    assert await status(reader) == 431
    await gone(writer)
