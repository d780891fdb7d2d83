"""Debug pages: which page is served, and that none can do harm."""

import socket
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient
from pytest_aiohttp.plugin import AiohttpClient, AiohttpRawServer

from bowline.runtime.address import ListenAddress
from bowline.runtime.debugpages import MAX_BYTES, DebugPage, DebugServer, Misdirected, match


@pytest.mark.parametrize(
    ("path", "requested_path", "arguments"),
    [
        pytest.param("queue", "queue", [], id="a page"),
        pytest.param("requests/{namespace}/{name}", "requests/a/b", ["a", "b"], id="parts of the path are arguments"),
        pytest.param("requests/{namespace}/{name}", "requests/a", None, id="too few parts"),
        pytest.param("requests/{namespace}/{name}", "requests//b", None, id="an empty part names nothing"),
        pytest.param("queue", "queues", None, id="another page"),
    ],
)
def test_a_path_is_matched_part_by_part(path: str, requested_path: str, arguments: list[str] | None) -> None:
    assert match(path, requested_path.split("/")) == arguments


Get = Callable[..., Awaitable[tuple[int, Any]]]


@pytest.fixture
def get(aiohttp_raw_server: AiohttpRawServer, aiohttp_client: AiohttpClient) -> Get:
    """Get a path of a server with some pages; returns status and content."""

    async def get(*pages: DebugPage, path: str) -> tuple[int, Any]:
        server = DebugServer(ListenAddress("127.0.0.1", 0))
        server.add(*pages)
        client: TestClient[web.BaseRequest, None] = await aiohttp_client(await aiohttp_raw_server(server.respond))
        async with client.get(path) as response:
            return response.status, await response.json()

    return get


def broken() -> None:
    raise RuntimeError("no page today")


PAGES = (
    DebugPage("queue", "keys in line", lambda: {"depth": 2, ("odd", "key"): object}),
    DebugPage("requests/{namespace}/{name}", "one request", lambda ns, name: {"ns": ns} if name == "a" else None),
    DebugPage("broken", "by plugin x", broken),
    DebugPage("elsewhere", "the leader's", lambda: Misdirected("read this page from the leader, pod-1")),
    DebugPage("long", "too much", lambda: "x" * MAX_BYTES),
)


async def test_the_index_names_every_page(get: Get) -> None:
    for path in ("/debug", "/debug/"):
        status, index = await get(*PAGES, path=path)
        assert status == 200
        assert index["pages"]["/debug/queue"] == "keys in line"
        assert len(index["pages"]) == len(PAGES)


async def test_a_page_is_json_whatever_is_in_it(get: Get) -> None:
    status, body = await get(PAGES[1], DebugPage("x", "", lambda: {"at": object()}), path="/debug/x")
    assert status == 200
    assert body["at"].startswith("<object")
    assert await get(*PAGES, path="/debug/requests/team-a/a") == (200, {"ns": "team-a"})


@pytest.mark.parametrize(
    ("path", "status", "expectation"),
    [
        pytest.param("/debug/nothing", 404, "no page /debug/nothing", id="no such page"),
        pytest.param("/debug/requests/team-a/b", 404, "nothing is known of team-a/b", id="no such object"),
        pytest.param("/debug/elsewhere", 421, "from the leader, pod-1", id="a page of another process"),
        pytest.param("/debug/broken", 500, "no page today", id="a page that raises"),
        pytest.param("/debug/long", 500, str(MAX_BYTES), id="a page that is too long"),
    ],
)
async def test_a_page_that_cannot_be_shown_states_the_reason(
    get: Get, path: str, status: int, expectation: str
) -> None:
    answer_status, body = await get(*PAGES, path=path)
    assert answer_status == status
    assert expectation in body["error"]


async def test_a_running_server_responds() -> None:
    server = DebugServer(ListenAddress("127.0.0.1", 0))
    await server.start()
    async with aiohttp.ClientSession() as session, session.get(f"http://{server.address}/debug") as response:
        assert await response.json() == {"pages": {}}
    await server.stop()


async def test_an_address_in_use_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = DebugServer(ListenAddress("127.0.0.1", listener.getsockname()[1]))
        await server.start()
        await server.stop()
    assert [(record.name, record.levelname) for record in caplog.records] == [
        ("bowline.runtime.debugpages", "WARNING")
    ]
