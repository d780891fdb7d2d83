"""Requests to the listener, byte by byte over real sockets."""

import asyncio
import contextlib
import re
import socket
import struct

import pytest

from tests.unit.webhook.reviews import encode, pod, review
from tests.webhook.served import Served, answers, head, with_head
from webhook.hooks import Hook

POD = encode(review(pod()))
ASK = head(Hook.VALIDATE_PODS, len(POD))
TYPE = "Content-Type: application/json"
LENGTH, CHUNKS = f"Content-Length: {len(POD)}", "Transfer-Encoding: chunked"
END = "Connection: close"


def asked(*lines: str, method: str = "POST", target: str = Hook.VALIDATE_PODS, version: str = "1.1") -> bytes:
    """Return the head of a review's request."""
    return with_head(TYPE, *lines, method=method, target=target, version=version)


async def received(reader: asyncio.StreamReader) -> list[int]:
    """Return the statuses of all responses up to the end of the connection."""
    return [status for status, _, _ in answers(await reader.read())]


async def status(reader: asyncio.StreamReader) -> int:
    """Read one response."""
    text = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"Content-Length: (\d+)", text)
    await reader.readexactly(int(length[1]) if length else 0)
    return int(text.split()[1])


async def closed(writer: asyncio.StreamWriter) -> None:
    """Close our side, even if the other side was reset."""
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def until_in_flight(served: Served, count: int) -> None:
    """Wait until so many requests are in flight."""
    while served.sample("bowline_admission_under_way") != count:  # noqa: ASYNC110 - no event to wait for
        await asyncio.sleep(0.001)


@pytest.mark.parametrize(
    ("sent", "statuses"),
    [
        pytest.param(ASK + POD + asked(LENGTH, END) + POD, [200, 200], id="two pipelined requests"),
        pytest.param(asked(CHUNKS, END) + b"%x\r\n%b\r\n0\r\n\r\n" % (len(POD), POD), [200], id="chunks"),
        pytest.param(asked(LENGTH, END, "Expect: 100-continue") + POD, [100, 200], id="100-continue"),
        pytest.param(asked(LENGTH, version="1.0") + POD, [200], id="HTTP/1.0"),
        pytest.param(asked(END, method="GET"), [405], id="another method"),
        pytest.param(asked(LENGTH, END, target="/") + POD, [404], id="another path"),
        pytest.param(asked(LENGTH, END, target=f"{Hook.VALIDATE_PODS}?{'a=1&' * 1000}") + POD, [200], id="a query"),
    ],
)
async def test_each_request_is_answered_and_the_connection_closed(
    served: Served, sent: bytes, statuses: list[int]
) -> None:
    reader, writer = await served.connect()
    writer.write(sent)
    assert await received(reader) == statuses
    await closed(writer)
    assert served.sample("bowline_admission_under_way") == 0


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        pytest.param(b"\x00 garbage\r\n\r\n", 400, id="garbage"),
        pytest.param(asked(LENGTH, CHUNKS) + b"0\r\n\r\n", 400, id="a length and chunks"),
        pytest.param(asked("Content-Length: 10", "Content-Length: 11"), 400, id="two lengths"),
        pytest.param(asked(CHUNKS) + b"zz\r\n" + POD, 400, id="a chunk without a size"),
        pytest.param(asked(*[f"A{i}: {'x' * 4000}" for i in range(99)]), 400, id="a head of 400 KB"),
        pytest.param(asked("Content-Length: 9999999", END), 413, id="a large body"),
    ],
)
async def test_a_request_that_is_no_review_is_answered_counted_and_not_logged(
    served: Served, sent: bytes, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    reader, writer = await served.connect()
    writer.write(sent)
    assert await status(reader) == code
    await closed(writer)
    assert served.sample("bowline_admission_under_way") == 0
    assert served.sample("bowline_admission_bad_requests_total", code=str(code)) == 1
    assert not [record for record in caplog.records if record.exc_info]
    assert await served.allows(POD)


async def test_a_review_byte_by_byte(served: Served) -> None:
    reader, writer = await served.connect()
    for byte in ASK + POD:
        writer.write(bytes([byte]))
        await asyncio.sleep(0)
    assert await status(reader) == 200
    await closed(writer)


async def test_an_error_does_not_end_the_connection(served: Served) -> None:
    reader, writer = await served.connect()
    for path, code in (("/", 404), (Hook.VALIDATE_PODS, 200), ("/none", 404)):
        writer.write(head(path, len(POD)) + POD[:5])
        await writer.drain()
        writer.write(POD[5:])
        assert await status(reader) == code
    await closed(writer)


async def test_a_request_whose_caller_resets_the_connection_is_not_in_flight(served: Served) -> None:
    _, writer = await served.connect()
    writer.write(ASK + POD[:7])
    await until_in_flight(served, 1)
    raw = writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    await until_in_flight(served, 0)
    await closed(writer)


async def test_a_kept_connection_through_all_of_stopping(served: Served) -> None:
    kept, asking = await served.connect(), await served.connect()
    for reader, writer in (kept, asking):
        writer.write(ASK + POD)
        assert await status(reader) == 200
    served.server.close_after_response()
    # Its response closes it, nothing before.
    kept[1].write(ASK + POD)
    (answer,) = answers(await kept[0].read())
    assert (answer[0], answer[2]) == (200, True)
    asking[1].write(ASK + POD[:7])
    await until_in_flight(served, 1)
    stopping = asyncio.create_task(served.server.stop())
    await asyncio.sleep(0.01)
    assert not stopping.done()
    asking[1].write(POD[7:])
    assert await received(asking[0]) == [200]
    await stopping
    for _, writer in (kept, asking):
        await closed(writer)
