"""The debug page: it is served, and can do no harm."""

from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient
from pytest_aiohttp.plugin import AiohttpClient, AiohttpRawServer

from bowline.runtime.address import ListenAddress
from bowline.runtime.probes import MAX_BYTES, DebugServer

ANY = ListenAddress("127.0.0.1", 0)


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
    server = DebugServer(ANY, content)
    client: TestClient[web.BaseRequest, None] = await aiohttp_client(await aiohttp_raw_server(server.respond))
    async with client.get(path) as response:
        assert response.status == status
        assert await response.json()
        assert text in await response.text()
