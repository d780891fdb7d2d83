"""Deadlines and back pressure of connections, in the loop's own time and over a transport that only takes notes."""

import asyncio
import socket

import pytest

from shared.runtime.probes import ListenAddress
from tests.unit.webhook.exchanges import Echo, answers, post
from webhook.connections import FINISH_S, Connection, Connections

pytestmark = pytest.mark.looptime


class Wire(asyncio.Transport):
    """What a connection did with its transport. ``unsent`` is what the peer has not taken yet."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self.out = b""
        self.ended = ""
        self.unsent = 0
        self.takes_bytes = True
        self._connection = connection
        connection.connection_made(self)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.out += data

    def close(self) -> None:
        if not self.ended:
            self.ended = "closed"
            if not self.unsent:
                self._lose()

    def abort(self) -> None:
        if self.ended != "aborted":
            self.ended = "aborted"
            self._lose()

    def is_closing(self) -> bool:
        return bool(self.ended)

    def pause_reading(self) -> None:
        self.takes_bytes = False

    def resume_reading(self) -> None:
        self.takes_bytes = True

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def _lose(self) -> None:
        asyncio.get_running_loop().call_soon(self._connection.connection_lost, None)

    def statuses(self) -> list[int]:
        return [status for status, _, _ in answers(self.out)]


@pytest.fixture
async def all_of_them() -> Connections:
    return Connections(Echo())


def opened(connections: Connections) -> tuple[Connection, Wire]:
    connection = Connection(connections)
    return connection, Wire(connection)


async def ended(wire: Wire) -> float:
    """Wait for the connection's end; returns how long that took, in quarters of a second as it is looked for."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while not wire.ended:  # noqa: ASYNC110 - nothing is set; the loop's time costs nothing
        await asyncio.sleep(0.25)
    return loop.time() - began


@pytest.mark.parametrize(
    ("sent", "statuses", "seconds"),
    [
        pytest.param([], [], 180, id="a connection on which nothing is asked"),
        pytest.param([post()], [200], 180, id="one on which nothing more is asked"),
        pytest.param([post()[:20]], [408], 10 + 2, id="a head that does not come"),
        pytest.param([post()[:-2]], [408], 5 + 2, id="a body that does not come within its request's own timeout"),
        pytest.param([post(target="/x")[:-2]], [404], 2, id="a body that is not wanted and does not come"),
        pytest.param([b"garbage"], [400], 2, id="a caller who was told off and does not go"),
    ],
)
async def test_what_lasts_for_too_long_is_ended(
    all_of_them: Connections, sent: list[bytes], statuses: list[int], seconds: float
) -> None:
    connection, wire = opened(all_of_them)
    for packet in sent:
        connection.data_received(packet)
    took = await ended(wire)
    assert wire.statuses() == statuses
    assert seconds <= took <= seconds + 1.25
    assert wire.ended == "closed"
    await all_of_them.stop()


@pytest.mark.parametrize(
    "sent", [b"POST /echo HTTP/1.1\r\nA", b"POST /echo HTTP/1.1\r\nContent-Length: 99\r\n\r\n"], ids=["head", "body"]
)
async def test_single_bytes_now_and_then_do_not_put_off_the_end(all_of_them: Connections, sent: bytes) -> None:
    connection, wire = opened(all_of_them)
    connection.data_received(sent)
    for _ in range(14):
        await asyncio.sleep(1)
        connection.data_received(b"x")
    assert wire.statuses() == [408]
    assert wire.ended
    await all_of_them.stop()


async def test_every_request_begins_the_idle_time_anew(all_of_them: Connections) -> None:
    connection, wire = opened(all_of_them)
    for _ in range(5):
        await asyncio.sleep(170)
        connection.data_received(post())
    assert wire.statuses() == [200] * 5
    assert not wire.ended
    await all_of_them.stop()


async def test_each_wait_has_its_time_from_its_own_beginning(all_of_them: Connections) -> None:
    connection, wire = opened(all_of_them)
    data = post()
    for _ in range(2):
        await asyncio.sleep(100)
        connection.data_received(data[:9])
        await asyncio.sleep(9)
        connection.data_received(data[9:-1])
        await asyncio.sleep(4)
        connection.data_received(data[-1:])
    assert wire.statuses() == [200, 200]
    assert not wire.ended
    await all_of_them.stop()


async def test_empty_lines_are_no_request(all_of_them: Connections) -> None:
    connection, wire = opened(all_of_them)
    for _ in range(5):
        await asyncio.sleep(45)
        connection.data_received(b"\r\n")
    assert wire.ended
    await all_of_them.stop()


async def test_who_takes_no_answers_is_read_no_further_and_in_the_end_not_waited_for(
    all_of_them: Connections,
) -> None:
    connection, wire = opened(all_of_them)
    connection.data_received(post())
    connection.pause_writing()
    assert not wire.takes_bytes
    connection.resume_writing()
    assert wire.takes_bytes
    connection.pause_writing()
    assert FINISH_S <= await ended(wire) <= FINISH_S + 1
    assert wire.ended == "aborted"
    await all_of_them.stop()


async def test_a_last_answer_that_is_still_on_its_way_is_waited_for_longer(all_of_them: Connections) -> None:
    connection, wire = opened(all_of_them)
    wire.unsent = 100
    connection.data_received(post(b"hello", "Connection: close"))
    assert wire.ended == "closed"
    await asyncio.sleep(FINISH_S - 1)
    assert wire.ended == "closed"
    await asyncio.sleep(2)
    assert wire.ended == "aborted"
    await all_of_them.stop()


class TestStopping:
    async def test_idle_connections_are_closed_and_requests_under_way_waited_for(
        self, all_of_them: Connections
    ) -> None:
        _, idle = opened(all_of_them)
        busy, wire = opened(all_of_them)
        busy.data_received(post()[:20])
        stopping = asyncio.create_task(all_of_them.stop())
        await asyncio.sleep(1)
        assert (idle.ended, wire.ended) == ("closed", "")
        busy.data_received(post()[20:])
        await stopping
        assert wire.statuses() == [200]
        assert wire.ended == "closed"

    async def test_what_does_not_end_is_ended(self, all_of_them: Connections) -> None:
        connection, wire = opened(all_of_them)
        connection.data_received(post())
        connection.pause_writing()
        await asyncio.sleep(1)
        connection.pause_writing()
        loop = asyncio.get_running_loop()
        began = loop.time()
        await all_of_them.stop()
        assert wire.ended == "aborted"
        assert FINISH_S - 1 <= loop.time() - began <= FINISH_S + 1

    async def test_a_handshake_that_outlives_the_listener_is_no_connection(self, all_of_them: Connections) -> None:
        await all_of_them.stop()
        _, wire = opened(all_of_them)
        assert wire.ended == "aborted"

    async def test_there_is_nothing_to_stop_where_nothing_began(self, all_of_them: Connections) -> None:
        await all_of_them.stop()
        await all_of_them.stop()


async def test_an_address_that_is_taken_is_told_so(all_of_them: Connections) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="address already in use"):
        await all_of_them.listen(ListenAddress("127.0.0.1", taken.getsockname()[1]), None)
    await all_of_them.stop()


async def test_bodies_that_take_too_much_memory_together_lose_the_largest(
    all_of_them: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webhook.connections.MAX_HELD", 2000)
    slow = [opened(all_of_them) for _ in range(3)]
    for size, (connection, _) in zip((900, 400, 600), slow, strict=True):
        connection.data_received(post(b"x" * 1000)[: size - 1000])
    assert [wire.statuses() for _, wire in slow] == [[], [], []], "1,900 are held"
    late, wire = opened(all_of_them)
    late.data_received(post(b"x" * 1000)[: 300 - 1000])
    assert [wire.statuses() for _, wire in slow] == [[429], [], []]
    assert wire.statuses() == []
    late.data_received(b"x" * 700)
    assert wire.statuses() == [200]
    # What is complete, answered or gone is held no longer.
    slow[1][1].abort()
    await asyncio.sleep(0)
    for _ in range(2):
        another, its_wire = opened(all_of_them)
        another.data_received(post(b"x" * 1000)[: 700 - 1000])
        assert its_wire.statuses() == []
    slow[2][0].data_received(b"x" * 400)
    assert slow[2][1].statuses() == [200]


async def test_one_body_alone_is_never_too_much(all_of_them: Connections, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("webhook.connections.MAX_HELD", 10)
    connection, wire = opened(all_of_them)
    connection.data_received(post(b"x" * 1000)[:-500])
    connection.data_received(b"x" * 500)
    assert wire.statuses() == [200]
