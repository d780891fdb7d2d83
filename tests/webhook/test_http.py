"""The listener over TLS: responses, rejected requests, and shutdown."""

import asyncio
import io
import socket
import zlib
from typing import Any, NoReturn

import orjson
import pytest

from bowline.framework.admission import AdmissionChain
from bowline.framework.config import Settings
from bowline_webhook.bodies import MAX_BODY
from bowline_webhook.hooks import Hook
from tests.unit.webhook.reviews import bind_request, deployment, encode, pod, review
from tests.webhook.served import JSON, Served, head

POD = encode(review(pod()))


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
        writer.close()
        await writer.wait_closed()


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
        writer.close()
        await writer.wait_closed()


async def ask_last(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send a review; it must be answered, and the connection closed."""
    writer.write(head(Hook.VALIDATE_PODS, len(POD)) + POD)
    assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
    assert b'"allowed":true' in await reader.read()
    writer.close()
    await writer.wait_closed()


async def until_refused(listener: Served) -> None:
    """Wait until the port refuses connections."""
    address = listener.server.address
    while True:
        try:
            _, writer = await asyncio.open_connection(address.host, address.port)
        except OSError:
            return
        writer.close()
        await writer.wait_closed()
