"""The listener over TLS: responses, rejected requests, and shutdown."""

import asyncio
import contextlib
import io
import re
import socket
import struct
import zlib
from typing import Any, NoReturn

import orjson
import pytest

from bowline.api.field_error import FieldError
from bowline.api.rule import Rule
from bowline.framework.admission import AdmissionChain
from bowline.framework.config import AdmissionMode, Settings
from bowline_webhook.bodies import MAX_BODY
from bowline_webhook.hooks import Hook
from bowline_webhook.tls.ca import Leaf
from tests.unit.webhook.reviews import bind_request, deployment, encode, pod, review
from tests.waiting import until
from tests.webhook.served import JSON, Served, answers, head, served, with_head

POD = encode(review(pod()))
ASK = head(Hook.VALIDATE_PODS, len(POD))
TYPE = "Content-Type: application/json"
LENGTH, CHUNKS = f"Content-Length: {len(POD)}", "Transfer-Encoding: chunked"
END = "Connection: close"


class TestAnswers:
    @pytest.mark.parametrize(
        ("hook", "document"),
        [
            (Hook.MUTATE_PODS, review(pod())),
            (Hook.VALIDATE_PODS, review(pod())),
            (Hook.MUTATE_BIND_REQUESTS, review(bind_request(), group="scheduling.run.ai", kind="BindRequest")),
            (Hook.VALIDATE_WORKLOADS, review(deployment(), group="apps", kind="Deployment")),
        ],
    )
    async def test_every_path_answers(self, listener: Served, hook: Hook, document: Any) -> None:
        response = await listener.review(f"{hook}?timeout=5s", document)
        assert (response["uid"], response["allowed"]) == ("uid-1", True)
        assert listener.sample("bowline_admission_requests_total", hook=hook, allowed="true") == 1
        assert listener.sample("bowline_admission_duration_seconds_count", hook=hook) == 1

    async def test_a_failing_plugin_denies_with_the_uid_and_is_counted(self, listener: Served) -> None:
        response = await listener.review(Hook.VALIDATE_PODS, review(pod({"crash": "yes"})))
        assert response["uid"] == "uid-1"
        assert response["status"]["code"] == 422
        assert "Traceback" not in orjson.dumps(response).decode()
        assert listener.sample("bowline_admission_plugin_errors_total", plugin="marker", point="validate_pod") == 1

    async def test_a_large_body_within_the_limit_is_reviewed(self, listener: Served) -> None:
        response = await listener.review(Hook.VALIDATE_PODS, review(pod({"note": "x" * (MAX_BODY - 2000)})))
        assert response["allowed"]


class TestTurnedAway:
    @pytest.mark.parametrize(
        ("method", "path", "headers", "body", "code"),
        [
            pytest.param("POST", "/", JSON, POD, 404, id="an unknown path"),
            pytest.param("GET", Hook.VALIDATE_PODS, {}, None, 405, id="another method"),
            pytest.param("POST", Hook.VALIDATE_PODS, {"Content-Type": "application/yaml"}, POD, 415, id="YAML"),
            pytest.param("POST", Hook.VALIDATE_PODS, JSON | {"Content-Encoding": "deflate"}, zlib.compress(POD), 415,
                id="compressed"),
            pytest.param("POST", Hook.VALIDATE_PODS, JSON, b"x" * 8 * 1024 * 1024, 413, id="8 MiB"),
            pytest.param("POST", Hook.VALIDATE_PODS, JSON, b'{"kind":"Pod"}', 400, id="not a review"),
        ],
    )  # fmt: skip
    async def test_a_request_that_is_no_review_gets_a_status_and_a_message(
        self, listener: Served, method: str, path: str, headers: dict[str, str], body: bytes | None, code: int
    ) -> None:
        async with listener.client.request(method, path, data=body and io.BytesIO(body), headers=headers) as answer:
            text = await answer.text()
        assert answer.status == code
        assert answer.headers.get("Allow") == ("POST" if code == 405 else None)
        assert text.strip()
        assert "Traceback" not in text
        assert (await listener.review(Hook.VALIDATE_PODS, review(pod())))["allowed"]
        assert listener.sample("bowline_admission_bad_requests_total", code=str(code)) == 1

    async def test_a_body_that_is_not_sent_times_out(self, listener: Served) -> None:
        reader, writer = await listener.connect()
        writer.write(head(f"{Hook.VALIDATE_PODS}?timeout=10ms", len(POD)) + POD[:10])
        assert b" 408 " in await reader.readline()
        await close_writer(writer)


class Broken(AdmissionChain):
    """A chain with a bug."""

    def validate_pod(self, *arguments: Any) -> NoReturn:
        raise ZeroDivisionError(*arguments)


async def test_a_bug_denies_with_the_uid_and_is_counted(listener: Served) -> None:
    listener.server._chain = Broken([], Settings())  # the listener has no other seam
    response = await listener.review(Hook.VALIDATE_PODS, review(pod()))
    assert response["uid"] == "uid-1"
    assert not response["allowed"]
    assert listener.sample("bowline_admission_crashes_total", hook=Hook.VALIDATE_PODS) == 1


async def test_a_failure_outside_of_a_review_is_a_500_counted_and_logged_once(
    listener: Served, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bowline_webhook.server.decode_review", Broken([], Settings()).validate_pod)
    async with listener.client.post(Hook.VALIDATE_PODS, data=POD, headers=JSON) as answer:
        assert answer.status == 500
        assert "ZeroDivisionError" not in await answer.text()
    assert listener.sample("bowline_admission_bad_requests_total", code="500") == 1
    (error_record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert error_record.exc_info is not None
    assert error_record.exc_info[0] is ZeroDivisionError


REPEATED = FieldError(Rule("bindrequest/repeated", "a test's"), "spec.selectedNode", "n", "it failed 1 s ago")


@pytest.mark.parametrize(
    ("mode", "fields", "is_allowed", "warnings", "rules"),
    [
        pytest.param("Enforce", {}, False, 0, "bindrequest/repeated", id="denied in Enforce"),
        pytest.param("Warn", {}, True, 1, "bindrequest/repeated", id="a warning in Warn"),
        pytest.param("Off", {}, True, 0, None, id="not looked for in Off"),
        pytest.param("Enforce", {"selectedNode": 5}, False, 0, "bindrequest/schema", id="the object's own, alone"),
    ],
)
async def test_an_error_that_depends_on_what_is_stored(
    leaf: Leaf, mode: AdmissionMode, fields: dict[str, Any], is_allowed: bool, warnings: int, rules: str | None
) -> None:
    request = review(bind_request(**fields), group="scheduling.run.ai", kind="BindRequest")
    async with served(leaf, mode=mode, stored_errors=lambda *_: (REPEATED,)) as listener:
        response = await listener.review(Hook.MUTATE_BIND_REQUESTS, request)
    assert response["allowed"] is is_allowed
    assert len(response.get("warnings", ())) == warnings
    assert response.get("auditAnnotations", {}).get("rules") == rules


class TestStopping:
    @pytest.mark.parametrize("turns", [pytest.param(0, id="not accepted"), pytest.param(10, id="in its handshake")])
    async def test_a_client_that_is_connecting_gets_its_response(self, listener: Served, turns: int) -> None:
        address = listener.server.address
        raw = socket.create_connection((address.host, address.port))
        for _ in range(turns):
            await asyncio.sleep(0)
        stopping = asyncio.create_task(listener.server.stop())
        await until_refused(listener)
        reader, writer = await asyncio.open_connection(sock=raw, ssl=listener.trust, server_hostname=address.host)
        await ask_last(reader, writer)
        await stopping

    async def test_a_connection_without_a_request_gets_its_first_response(self, listener: Served) -> None:
        reader, writer = await listener.connect()
        stopping = asyncio.create_task(listener.server.stop())
        await until_refused(listener)
        await ask_last(reader, writer)
        await stopping

    async def test_silent_peers_do_not_prevent_the_stop(self, listener: Served) -> None:
        address = listener.server.address
        reader, writer = await listener.connect()
        with socket.create_connection((address.host, address.port)):
            await listener.server.stop()
        assert await reader.read() == b""
        await close_writer(writer)


async def ask_last(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send a review; it must be answered, and the connection closed."""
    writer.write(ASK + POD)
    assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
    assert b'"allowed":true' in await reader.read()
    await close_writer(writer)


async def until_refused(listener: Served) -> None:
    """Wait until the port refuses connections."""
    address = listener.server.address
    while True:
        try:
            _, writer = await asyncio.open_connection(address.host, address.port)
        except OSError:
            return
        await close_writer(writer)


# --- byte by byte ---


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
