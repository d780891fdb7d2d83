"""HTTP by itself: bytes in, bytes out."""

from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.webhook.exchanges import MAX_BODY, Echo, answers, chunked, post, with_head
from webhook.exchange import MAX_HEAD, MAX_LINE, Exchange, Phase
from webhook.http import Answer, Head, encode

HELLO = (200, b"hello", False)
LAST = (200, b"hello", True)
NOT_HERE = (404, b"not here", False)
TOO_LARGE = f"the body must not be larger than {MAX_BODY} bytes".encode()
UNREADABLE = b"the body cannot be read as its headers describe it"


def sent(*packets: bytes) -> tuple[list[tuple[int, bytes, bool]], Phase, int]:
    """Send packets; returns the answers, what is waited for then, and how many requests are under way."""
    handler = Echo()
    exchange = Exchange(handler)
    out = b"".join(exchange.receive(packet) for packet in packets)
    return answers(out), exchange.phase, handler.begun


@pytest.mark.parametrize(
    ("data", "wanted", "phase"),
    [
        pytest.param(post(), [HELLO], Phase.IDLE, id="a request is answered"),
        pytest.param(post(b""), [(200, b"", False)], Phase.IDLE, id="a body may be empty"),
        pytest.param(with_head(), [(200, b"", False)], Phase.IDLE, id="a body may be absent"),
        pytest.param(chunked(b"he", b"llo"), [HELLO], Phase.IDLE, id="a body may come in chunks"),
        pytest.param(
            with_head("Transfer-Encoding: Chunked ") + b"5;a=b\r\nhello\r\n0\r\nHost: y\r\n\r\n",
            [HELLO],
            Phase.IDLE,
            id="extensions of chunks and trailers are passed over",
        ),
        pytest.param(b"\r\n\r\n" + post(), [HELLO], Phase.IDLE, id="empty lines before a request are passed over"),
        pytest.param(
            post() + post(b"two") + post(target="/x") + post(b"four"),
            [HELLO, (200, b"two", False), NOT_HERE, (200, b"four", False)],
            Phase.IDLE,
            id="requests that came together are answered in their order",
        ),
        pytest.param(post(target="/x"), [NOT_HERE], Phase.IDLE, id="a refused request keeps the connection"),
        pytest.param(post(target="/x")[:-2], [NOT_HERE], Phase.REST, id="a refusal does not wait for the body"),
        pytest.param(post()[:20], [], Phase.HEAD, id="half a head is waited for"),
        pytest.param(post()[:-2], [], Phase.BODY, id="half a body is waited for"),
        pytest.param(post(b"hello", "Connection: close"), [LAST], Phase.OVER, id="a caller may want to close"),
        pytest.param(
            post(b"hello", "Connection: close") + post(), [LAST], Phase.OVER, id="nothing is answered behind a close"
        ),
        pytest.param(post(version="1.0"), [LAST], Phase.OVER, id="HTTP/1.0 is closed"),
        pytest.param(post(version="1.0") + post(), [LAST], Phase.OVER, id="nothing is answered behind HTTP/1.0"),
        pytest.param(
            post(b"hello", "Connection: keep-alive", version="1.0"), [LAST], Phase.OVER, id="HTTP/1.0 is never kept"
        ),
        pytest.param(post(version="2.0"), [LAST], Phase.OVER, id="a caller who says 2.0 is told 1.1 and closed"),
        pytest.param(
            with_head("Expect: 100-continue", "Content-Length: 5"),
            [(100, b"", False)],
            Phase.BODY,
            id="who asks is told to go on",
        ),
        pytest.param(
            post(b"hello", "Expect: 100-continue"),
            [(100, b"", False), HELLO],
            Phase.IDLE,
            id="who does not wait, too",
        ),
        pytest.param(
            post(b"hello", "Expect: 100-continue", version="1.0"), [LAST], Phase.OVER, id="1.0 knows no expectations"
        ),
        pytest.param(post(b"hello", "Expect: wonders"), [HELLO], Phase.IDLE, id="other expectations are passed over"),
        pytest.param(
            with_head("Expect: 100-continue", "Content-Length: 5", target="/x"),
            [(404, b"not here", True)],
            Phase.REST,
            id="who is refused while he waits may send the body or not, so nothing behind it could be read",
        ),
        pytest.param(
            post(b"hello", "Connection: Upgrade", "Upgrade: h2c") + b"more",
            [LAST],
            Phase.OVER,
            id="a wish for another protocol is passed over",
        ),
        pytest.param(
            with_head("Connection: Upgrade", "Upgrade: x", "Content-Length: 5"),
            [],
            Phase.BODY,
            id="and the body is waited for, too",
        ),
        pytest.param(
            with_head("Connection: Upgrade", "Upgrade: websocket", method="GET", target="/x") + b"\x81\x00",
            [(404, b"not here", True)],
            Phase.OVER,
            id="nothing is switched",
        ),
        pytest.param(
            with_head(method="CONNECT", target="a:1") + b"xyz",
            [(404, b"not here", True)],
            Phase.OVER,
            id="nothing is connected to",
        ),
    ],
)
def test_what_is_http_is_answered(data: bytes, wanted: list[tuple[int, bytes, bool]], phase: Phase) -> None:
    assert sent(data) == (wanted, phase, int(phase is Phase.BODY))


LARGE = b"x" * (MAX_BODY + 1)
LENGTH, CHUNKS = "Content-Length: 5", "Transfer-Encoding: chunked"


@pytest.mark.parametrize(
    ("data", "code", "phase"),
    [
        pytest.param(b"\x00\x01 garbage\r\n\r\n", 400, Phase.DEAF, id="garbage"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00", 400, Phase.DEAF, id="TLS within TLS"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, Phase.DEAF, id="HTTP/2 without asking"),
        pytest.param(with_head(version="1.7"), 400, Phase.DEAF, id="a version that there is not"),
        pytest.param(with_head(method="BREW"), 400, Phase.DEAF, id="a method that there is not"),
        pytest.param(b"POST /echo HTTP/1.1\nHost: x\n\n", 400, Phase.DEAF, id="lines without CR"),
        pytest.param(with_head("A : b"), 400, Phase.DEAF, id="a space before the colon"),
        pytest.param(with_head("A: b\r\n c"), 400, Phase.DEAF, id="a folded line"),
        pytest.param(with_head("A: b\0c"), 400, Phase.DEAF, id="a NUL in a value"),
        pytest.param(with_head(LENGTH, CHUNKS) + b"0\r\n\r\n", 400, Phase.DEAF, id="a length, then chunks"),
        pytest.param(with_head(CHUNKS, LENGTH) + b"0\r\n\r\n", 400, Phase.DEAF, id="chunks, then a length"),
        pytest.param(with_head(LENGTH, LENGTH) + b"hello", 400, Phase.DEAF, id="two lengths"),
        pytest.param(with_head("Content-Length: -5"), 400, Phase.DEAF, id="a negative length"),
        pytest.param(with_head("Content-Length: 0x5"), 400, Phase.DEAF, id="a hexadecimal length"),
        pytest.param(with_head(f"Content-Length: {'9' * 30}"), 400, Phase.DEAF, id="an endless length"),
        pytest.param(with_head("Transfer-Encoding: gzip"), 400, Phase.DEAF, id="a transfer encoding without an end"),
        pytest.param(with_head("Transfer-Encoding: gzip, chunked"), 400, Phase.DEAF, id="two transfer encodings"),
        pytest.param(with_head("Transfer-Encoding: gzip", CHUNKS), 400, Phase.DEAF, id="two of them in two lines"),
        pytest.param(with_head(CHUNKS, CHUNKS), 400, Phase.DEAF, id="chunks twice"),
        pytest.param(with_head(CHUNKS) + b"zz\r\n", 400, Phase.DEAF, id="a chunk without a size"),
        pytest.param(with_head(CHUNKS) + b"5\r\nhelloworld", 400, Phase.DEAF, id="a chunk longer than its size"),
        pytest.param(with_head(target="/" + "x" * MAX_LINE), 431, Phase.DEAF, id="a long target"),
        pytest.param(with_head(f"A: {'x' * MAX_LINE}"), 431, Phase.DEAF, id="a long line"),
        pytest.param(with_head(*[f"A{i}: {'x' * 1000}" for i in range(40)]), 431, Phase.DEAF, id="a long head"),
        pytest.param(post(LARGE, target="/crash-at-once"), 500, Phase.OVER, id="a handler's bug at the head"),
        pytest.param(post(target="/crash"), 500, Phase.OVER, id="a handler's bug at the body"),
    ],
)
@pytest.mark.parametrize("before", [b"", post()], ids=["at first", "behind a request that is answered"])
def test_what_is_not_is_told_so_once_and_is_the_end(before: bytes, data: bytes, code: int, phase: Phase) -> None:
    handler = Echo()
    exchange = Exchange(handler)
    found = answers(exchange.receive(before + data))
    assert [(status, last) for status, _, last in found] == [(200, False)] * bool(before) + [(code, True)]
    assert found[-1][1]
    assert (exchange.phase, handler.begun) == (phase, 0)
    assert exchange.receive(post()) == b""


def test_a_body_that_grows_too_large_is_told_so_and_read_on() -> None:
    exchange, data = Exchange(Echo()), chunked(LARGE + LARGE)
    assert answers(exchange.receive(data[:-20])) == [(413, TOO_LARGE, False)]
    assert exchange.phase is Phase.REST
    assert exchange.receive(data[-20:-5]) == b""
    assert answers(exchange.receive(b"0\r\n\r\n" + post())) == [HELLO]


def test_faults_behind_a_refusal_are_not_answered_a_second_time() -> None:
    data = with_head(CHUNKS, target="/x") + b"zz\r\n"
    assert sent(data) == ([NOT_HERE], Phase.DEAF, 0)


@pytest.mark.parametrize(
    ("begin", "drop", "code"),
    [
        pytest.param(b"POST /echo HTTP/1.1\r\nA: ", b"x" * 100, 431, id="a line of a head"),
        pytest.param(b"POST /", b"x" * 100, 431, id="a target"),
        pytest.param(with_head(CHUNKS) + b"1;", b"x" * 100, 431, id="an extension of a chunk"),
        pytest.param(with_head(CHUNKS) + b"0\r\nA: ", b"x" * 100, 431, id="a trailer"),
        pytest.param(b"", b"\r\n", 431, id="empty lines"),
    ],
)
def test_what_never_ends_is_ended(begin: bytes, drop: bytes, code: int) -> None:
    handler = Echo()
    exchange = Exchange(handler)
    out = exchange.receive(begin)
    for _ in range(2 + MAX_HEAD // len(drop)):
        out += exchange.receive(drop)
    assert [status for status, _, _ in answers(out)] == [code]
    assert (exchange.phase, handler.begun) == (Phase.DEAF, 0)


def test_many_zeros_before_a_length_are_no_fault() -> None:
    assert sent(with_head(f"Content-Length: {'0' * 6000}5") + b"hello")[0] == [HELLO]
    assert Head("POST", "/", {"content-length": "0" * 6000 + "5"}).length == 5
    assert Head("POST", "/", {}).length == 0


def test_a_head_is_read_as_it_was_sent_with_names_in_lower_case() -> None:
    handler = Echo()
    Exchange(handler).receive(post(b"", "X-Word: one ", "x-word: two", "Y: A", target="/echo?a=%20b"))
    assert handler.seen == [
        Head("POST", "/echo?a=%20b", {"host": "x", "x-word": "one, two", "y": "A", "content-length": "0"})
    ]


def test_lines_behind_a_body_are_none_of_its_head() -> None:
    handler = Echo()
    Exchange(handler).receive(with_head(CHUNKS) + b"0\r\nA: b\r\n\r\n")
    assert [list(head.headers) for head in handler.seen] == [["host", "transfer-encoding"]]


def test_an_answer_to_HEAD_has_no_body() -> None:  # noqa: N802 - the method's name
    out = Exchange(Echo()).receive(with_head(method="HEAD", target="/x") + post())
    bare, rest = out.split(b"\r\n\r\n", 1)
    assert b" 404 " in bare
    assert b"Content-Length: 8" in bare
    assert answers(rest) == [HELLO]


def test_what_follows_a_HEAD_and_is_no_request_is_told_so_in_words() -> None:  # noqa: N802
    out = Exchange(Echo()).receive(with_head(method="HEAD", target="/x") + with_head("A : b"))
    ((status, text, _),) = answers(out.partition(b"\r\n\r\n")[2])
    assert status == 400
    assert text


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        pytest.param(post()[:20], [(408, b"the head did not come in time", True)], id="a head"),
        pytest.param(
            post()[:-2], [(408, b"the body did not come within the request's own timeout", True)], id="a body"
        ),
    ],
)
def test_what_does_not_come_is_given_up(data: bytes, wanted: list[tuple[int, bytes, bool]]) -> None:
    handler = Echo()
    exchange = Exchange(handler)
    exchange.receive(data)
    assert answers(exchange.expire()) == wanted
    assert (exchange.phase, handler.begun) == (Phase.DEAF, 0)
    assert exchange.receive(data) == b""


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        pytest.param(b"", [], id="between requests there is nothing to say"),
        pytest.param(post()[:20], [(400, b"the request ends within its head", True)], id="in a head"),
        pytest.param(post()[:-2], [(400, UNREADABLE, True)], id="in a body"),
        pytest.param(post(target="/x")[:-2], [], id="in a body that is not wanted"),
        pytest.param(b"garbage", [], id="behind the last answer"),
    ],
)
def test_who_hangs_up_is_told_what_is_missing(data: bytes, wanted: list[tuple[int, bytes, bool]]) -> None:
    handler = Echo()
    exchange = Exchange(handler)
    exchange.receive(data)
    assert answers(exchange.hang_up()) == wanted
    assert (exchange.phase, handler.begun) == (Phase.OVER, 0)


def test_a_request_whose_caller_is_gone_is_under_way_no_more() -> None:
    handler = Echo()
    exchange = Exchange(handler)
    exchange.receive(post()[:-1])
    assert handler.begun == 1
    exchange.lose()
    assert handler.begun == 0


def test_while_closing_each_answer_is_the_last() -> None:
    handler = Echo()
    exchange = Exchange(handler)
    exchange.receive(post()[:-1])
    handler.closing = True
    assert answers(exchange.receive(b"o" + post())) == [LAST]
    assert exchange.phase is Phase.OVER


def test_an_answer_on_the_wire() -> None:
    second = int(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp())
    answer = Answer(429, "text/plain", b"later", "Retry-After: 1\r\n")
    assert encode(answer, last=True, bare=False, now=second) == (
        b"HTTP/1.1 429 Too Many Requests\r\nServer: bowline\r\nDate: Fri, 02 Jan 2026 03:04:05 GMT\r\n"
        b"Content-Type: text/plain\r\nContent-Length: 5\r\nRetry-After: 1\r\nConnection: close\r\n\r\nlater"
    )


# --- whatever is sent, however it is cut ---

MANY = (
    post(b"one")
    + chunked(b"tw", b"o")
    + post(target="/x")
    + post(b"last", "Expect: 100-continue", "Connection: close")
)
PIECES = (
    *(b"POST", b" ", b"/echo", b"HTTP/1.1", b"\r\n", b"Content-Length: 5", b"Transfer-Encoding: chunked", b"hello"),
    *(
        b"5\r\n",
        b"0\r\n\r\n",
        b"Connection: close",
        b"Upgrade: x",
        b"Connection: upgrade",
        b":",
        b"\0",
        post(),
        chunked(b"a"),
    ),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(1, len(MANY) - 1), max_size=12, unique=True))
def test_however_requests_are_cut_into_packets_their_answers_are_the_same(cuts: list[int]) -> None:
    ends = [0, *sorted(cuts), len(MANY)]
    packets = [MANY[begin:end] for begin, end in pairwise(ends)]
    found, phase, begun = sent(*packets)
    wanted = [(200, b"one", False), (200, b"two", False), NOT_HERE, (100, b"", False), (200, b"last", True)]
    assert (found, phase, begun) == (wanted, Phase.OVER, 0)


@settings(max_examples=1000, deadline=None)
@given(st.lists(st.binary(max_size=40) | st.sampled_from(PIECES), max_size=30))
def test_no_bytes_are_answered_with_a_5xx_or_left_without_an_end(packets: list[bytes]) -> None:
    handler = Echo()
    exchange = Exchange(handler)
    found = answers(b"".join(exchange.receive(packet) for packet in packets) + exchange.hang_up())
    assert all(status < 500 for status, _, _ in found)
    assert [last for _, _, last in found[:-1]].count(True) == 0
    assert (exchange.phase, handler.begun) == (Phase.OVER, 0)
