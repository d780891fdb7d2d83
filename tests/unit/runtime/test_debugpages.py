"""Debug pages: which callers are accepted, which page is served, and that none can do harm."""

import asyncio
from collections.abc import Mapping
from typing import Any

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from shared.runtime.address import ListenAddress
from shared.runtime.debugpages import MAX_BYTES, DebugPage, DebugPages, match, refusal
from shared.runtime.probes import ProbeServer


@pytest.mark.parametrize(
    ("peer", "host", "headers", "let_in"),
    [
        pytest.param("127.0.0.1", "127.0.0.1:8080", {}, True, id="kubectl port-forward, asked by address"),
        pytest.param("127.0.0.1", "localhost:18080", {}, True, id="kubectl port-forward, asked by name"),
        pytest.param("::1", "[::1]:8080", {}, True, id="the same over IPv6"),
        pytest.param("::ffff:127.0.0.1", "127.0.0.1", {}, True, id="IPv4 at a listener for both"),
        pytest.param("10.1.2.3", "10.1.2.9:8080", {}, False, id="another pod"),
        pytest.param("::ffff:10.1.2.3", "localhost", {}, False, id="another pod at a listener for both"),
        pytest.param("127.0.0.6", "localhost", {}, False, id="the proxy of a service mesh"),
        pytest.param("10.1.2.3", "127.0.0.1:8080", {}, False, id="another pod that claims to be local"),
        pytest.param("127.0.0.1", "evil.example:8080", {}, False, id="a browser by way of a name of its own"),
        pytest.param("127.0.0.1", "127.0.0.1", {"X-Forwarded-For": "10.1.2.3"}, False, id="passed on by a proxy"),
        pytest.param(None, "localhost", {}, False, id="no known address"),
    ],
)
def test_only_callers_on_the_machine_itself_get_pages(
    peer: str | None, host: str, headers: Mapping[str, str], let_in: bool
) -> None:
    refused = refusal(peer, host, headers)
    assert (refused is None) is let_in
    assert refused is None or "kubectl port-forward" in refused


@pytest.mark.parametrize(
    ("path", "asked", "found"),
    [
        pytest.param("queue", "queue", [], id="a page"),
        pytest.param("requests/{namespace}/{name}", "requests/a/b", ["a", "b"], id="parts of the path are arguments"),
        pytest.param("requests/{namespace}/{name}", "requests/a", None, id="too few parts"),
        pytest.param("requests/{namespace}/{name}", "requests//b", None, id="an empty part names nothing"),
        pytest.param("queue", "queues", None, id="another page"),
    ],
)
def test_a_path_is_matched_part_by_part(path: str, asked: str, found: list[str] | None) -> None:
    assert match(path, asked.split("/")) == found


async def get(*pages: DebugPage, path: str, headers: Mapping[str, str] | None = None) -> tuple[int, Any]:
    served = DebugPages()
    served.add(*pages)
    server = ProbeServer(ListenAddress("127.0.0.1", 0), CollectorRegistry(), {}, served)
    await server.start()
    try:
        async with (
            aiohttp.ClientSession(f"http://127.0.0.1:{server.address.port}") as session,
            session.get(path, headers=headers) as response,
        ):
            return response.status, await response.json()
    finally:
        await server.stop()


def broken() -> None:
    raise RuntimeError("no page today")


PAGES = (
    DebugPage("queue", "keys in line", lambda: {"depth": 2, ("odd", "key"): object}),
    DebugPage("requests/{namespace}/{name}", "one request", lambda ns, name: {"ns": ns} if name == "a" else None),
    DebugPage("broken", "by plugin x", broken),
    DebugPage("long", "too much", lambda: "x" * MAX_BYTES),
)


async def test_the_index_names_every_page() -> None:
    for path in ("/debug", "/debug/"):
        status, index = await get(*PAGES, path=path)
        assert status == 200
        assert index["pages"]["/debug/queue"] == "keys in line"
        assert len(index["pages"]) == len(PAGES)


async def test_a_page_is_json_whatever_is_in_it() -> None:
    status, body = await get(PAGES[1], DebugPage("x", "", lambda: {"at": object()}), path="/debug/x")
    assert status == 200
    assert body["at"].startswith("<object")
    assert await get(*PAGES, path="/debug/requests/team-a/a") == (200, {"ns": "team-a"})


@pytest.mark.parametrize(
    ("path", "status", "expected"),
    [
        pytest.param("/debug/nothing", 404, "no page /debug/nothing", id="no such page"),
        pytest.param("/debug/requests/team-a/b", 404, "nothing is known of team-a/b", id="no such object"),
        pytest.param("/debug/broken", 500, "no page today", id="a page that raises"),
        pytest.param("/debug/long", 500, str(MAX_BYTES), id="a page that is too long"),
    ],
)
async def test_a_page_that_cannot_be_shown_states_the_reason(path: str, status: int, expected: str) -> None:
    answered, body = await get(*PAGES, path=path)
    assert answered == status
    assert expected in body["error"]


async def test_other_callers_are_rejected_before_a_page_is_created() -> None:
    made = asyncio.Event()
    page = DebugPage("x", "", made.set)
    status, body = await get(page, path="/debug/x", headers={"Forwarded": "for=10.1.2.3"})
    assert status == 403
    assert "kubectl port-forward" in body["error"]
    assert not made.is_set()
