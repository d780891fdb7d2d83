"""Requests to the listener, byte by byte over real sockets."""

import asyncio
import contextlib
import re
import socket
import struct

import pytest

from bowline_webhook.hooks import Hook
from tests.unit.webhook.reviews import encode, pod, review
from tests.waiting import until
from tests.webhook.served import Served, answers, head, with_head

POD = encode(review(pod()))
ASK = head(Hook.VALIDATE_PODS, len(POD))
TYPE = "Content-Type: application/json"
LENGTH, CHUNKS = f"Content-Length: {len(POD)}", "Transfer-Encoding: chunked"
END = "Connection: close"


def head_with(*lines: str, method: str = "POST", target: str = Hook.VALIDATE_PODS, version: str = "1.1") -> bytes:
    """Return the head of a review's request."""
    return with_head(TYPE, *lines, method=method, target=target, version=version)


async def read_statuses(reader: asyncio.StreamReader) -> list[int]:
    """Return the statuses of all responses up to the end of the connection."""
    return [status for status, _, _ in answers(await reader.read())]


async def status(reader: asyncio.StreamReader) -> int:
    """Read one response."""
    text = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"Content-Length: (\d+)", text)
    await reader.readexactly(int(length[1]) if length else 0)
    return int(text.split()[1])


async def close_writer(writer: asyncio.StreamWriter) -> None:
    """Close our side, even if the other side was reset."""
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def until_in_flight(listener: Served, count: int) -> None:
    """Wait until so many requests are in flight."""
    await until(lambda: listener.sample("bowline_admission_under_way") == count)


@pytest.mark.parametrize(
    ("data", "statuses"),
    [
        pytest.param(head_with(CHUNKS, END) + b"%x\r\n%b\r\n0\r\n\r\n" % (len(POD), POD), [200], id="chunks"),
        pytest.param(head_with(LENGTH, END, "Expect: 100-continue") + POD, [100, 200], id="100-continue"),
        pytest.param(
            head_with(LENGTH, END, target=f"{Hook.VALIDATE_PODS}?{'a=1&' * 1000}") + POD, [200], id="a query"
        ),
    ],
)
async def test_each_request_is_answered_and_the_connection_closed(
    listener: Served, data: bytes, statuses: list[int]
) -> None:
    reader, writer = await listener.connect()
    writer.write(data)
    assert await read_statuses(reader) == statuses
    await close_writer(writer)
    assert listener.sample("bowline_admission_under_way") == 0


@pytest.mark.parametrize(
    ("data", "code"),
    [
        pytest.param(b"\x00 garbage\r\n\r\n", 400, id="garbage"),
        pytest.param(head_with(LENGTH, CHUNKS) + b"0\r\n\r\n", 400, id="a length and chunks"),
        pytest.param(head_with(CHUNKS) + b"zz\r\n" + POD, 400, id="a chunk without a size"),
        pytest.param(head_with(*[f"A{i}: {'x' * 4000}" for i in range(99)]), 400, id="a head of 400 KB"),
    ],
)
async def test_a_request_that_is_no_review_is_answered_counted_and_not_logged(
    listener: Served, data: bytes, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    reader, writer = await listener.connect()
    writer.write(data)
    assert await status(reader) == code
    await close_writer(writer)
    assert listener.sample("bowline_admission_under_way") == 0
    assert listener.sample("bowline_admission_bad_requests_total", code=str(code)) == 1
    assert not [record for record in caplog.records if record.exc_info]
    assert await listener.allows(POD)


async def test_a_request_whose_caller_resets_the_connection_is_not_in_flight(listener: Served) -> None:
    _, writer = await listener.connect()
    writer.write(ASK + POD[:7])
    await until_in_flight(listener, 1)
    raw = writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    await until_in_flight(listener, 0)
    await close_writer(writer)


async def test_a_kept_connection_through_all_of_stopping(listener: Served) -> None:
    idle, asking = await listener.connect(), await listener.connect()
    for reader, writer in (idle, asking):
        writer.write(ASK + POD)
        assert await status(reader) == 200
    listener.server.close_after_response()
    # Its response closes it, nothing before.
    idle[1].write(ASK + POD)
    (answer,) = answers(await idle[0].read())
    assert (answer[0], answer[2]) == (200, True)
    asking[1].write(ASK + POD[:7])
    await until_in_flight(listener, 1)
    stopping = asyncio.create_task(listener.server.stop())
    await asyncio.sleep(0.01)  # more turns than a stop takes that waits for nothing
    assert not stopping.done()
    asking[1].write(POD[7:])
    assert await read_statuses(asking[0]) == [200]
    await stopping
    for _, writer in (idle, asking):
        await close_writer(writer)
