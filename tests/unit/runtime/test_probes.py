"""The metrics address and the debug page: what is accepted, what they serve."""

from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient
from prometheus_client import CollectorRegistry, Counter
from pytest_aiohttp.plugin import AiohttpClient, AiohttpRawServer

from bowline.runtime.address import ListenAddress, parse_listen
from bowline.runtime.metrics import init_series
from bowline.runtime.probes import MAX_BYTES, Check, DebugServer, ProbeServer


@pytest.mark.parametrize(
    ("text", "expectation"),
    [
        pytest.param("127.0.0.1:8080", ListenAddress("127.0.0.1", 8080), id="an IPv4 address"),
        pytest.param("localhost:0", ListenAddress("localhost", 0), id="a name, and any port"),
        pytest.param(":8080", ListenAddress("", 8080), id="every interface"),
        pytest.param("[::1]:65535", ListenAddress("::1", 65535), id="an IPv6 address"),
    ],
)
def test_addresses(text: str, expectation: ListenAddress) -> None:
    assert parse_listen(text) == expectation
    assert parse_listen(str(expectation)) == expectation


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("8080", id="no colon"),
        pytest.param("host:65536", id="a port too high"),
        pytest.param("host:٣", id="digits of another script"),
        pytest.param("[localhost]:80", id="brackets around a name"),
    ],
)
def test_other_texts_are_rejected_with_the_expected_form(text: str) -> None:
    with pytest.raises(ValueError, match="must be HOST:PORT, such as"):
        parse_listen(text)


@pytest.fixture
def checks() -> dict[str, Check]:
    return {}


@pytest.fixture
async def client(
    checks: dict[str, Check], aiohttp_raw_server: AiohttpRawServer, aiohttp_client: AiohttpClient
) -> TestClient[web.BaseRequest, None]:
    """A client of a process's metrics address."""
    registry = CollectorRegistry()
    init_series(Counter("bowline_seen", "Things seen.", ("kind",), registry=registry), kind=("pod", "node"))
    server = ProbeServer(parse_listen("127.0.0.1:0"), registry, checks, "webhook")
    return await aiohttp_client(await aiohttp_raw_server(server.respond))


async def answer(client: TestClient[web.BaseRequest, None], path: str) -> tuple[int, str]:
    async with client.get(path) as response:
        return response.status, await response.text()


async def test_ready_needs_all_checks_and_alive_does_not(
    client: TestClient[web.BaseRequest, None], checks: dict[str, Check]
) -> None:
    assert await answer(client, "/readyz") == (200, "ok\n")
    assert '\nbowline_ready{component="webhook"} 1.0\n' in (await answer(client, "/metrics"))[1]
    checks |= {"caches": lambda: "pods not listed yet", "leader": lambda: None, "certificate": lambda: "expired"}
    assert await answer(client, "/readyz") == (503, "caches: pods not listed yet\ncertificate: expired\n")
    assert await answer(client, "/healthz") == (200, "ok\n")
    assert '\nbowline_ready{component="webhook"} 0.0\n' in (await answer(client, "/metrics"))[1]


async def test_a_running_server_responds_and_its_address_cannot_be_used_again() -> None:
    server = ProbeServer(parse_listen("127.0.0.1:0"), CollectorRegistry(), {}, "webhook")
    await server.start()
    async with aiohttp.ClientSession() as session, session.get(f"http://{server.address}/healthz") as response:
        assert response.status == 200
    second = ProbeServer(server.address, CollectorRegistry(), {}, "webhook")
    with pytest.raises(OSError, match=r"(?i)address already in use"):
        await second.start()
    await second.stop()
    await server.stop()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        pytest.param("POST", "/healthz", 405, id="another method"),
        pytest.param("GET", "/debug", 404, id="another path"),
    ],
)
async def test_other_requests_are_rejected(
    client: TestClient[web.BaseRequest, None], method: str, path: str, status: int
) -> None:
    async with client.request(method, path) as response:
        assert response.status == status


def broken() -> Any:
    raise RuntimeError("no page today")


@pytest.mark.parametrize(
    ("path", "content", "status", "text"),
    [
        pytest.param("/debug", lambda: {"depth": 2, "x": object()}, 200, '"depth": 2', id="whatever is in it"),
        pytest.param("/debug/queue", dict, 404, "no page /debug/queue; read /debug", id="no such page"),
        pytest.param("/debug", broken, 500, "no page today", id="a content that raises"),
        pytest.param("/debug", lambda: {"x": "x" * MAX_BYTES}, 500, str(MAX_BYTES), id="too long"),
    ],
)
async def test_the_page_is_json_or_states_why_not(
    aiohttp_raw_server: AiohttpRawServer,
    aiohttp_client: AiohttpClient,
    path: str,
    content: Any,
    status: int,
    text: str,
) -> None:
    server = DebugServer(parse_listen("127.0.0.1:0"), content)
    client: TestClient[web.BaseRequest, None] = await aiohttp_client(await aiohttp_raw_server(server.respond))
    async with client.get(path) as response:
        assert response.status == status
        assert await response.json()
        assert text in await response.text()
