"""The model of the API server is honest: equal random calls have equal answers and events on a real one.

``BOWLINE_MODEL_SEEDS`` is the number of seeds, ``BOWLINE_KUBERNETES`` the version of the real one.
"""

import os
from collections.abc import AsyncIterator
from contextlib import aclosing
from random import Random
from typing import Any, Protocol

import orjson
import pytest

from bowline.api.meta import Object
from bowline.kube.calls import Request, TransportOptions
from bowline.kube.config import load_access
from bowline.kube.transport import HTTPTransport
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.kubeconfig import api_server
from tests.simulation.calls import (
    BINDREQUESTS,
    CLAIMS,
    PODS,
    WATCHES,
    Call,
    compared,
    content_of,
    draw_call,
    new_object,
)
from tests.simulation.server import Answer, Server

SEEDS = int(os.environ.get("BOWLINE_MODEL_SEEDS", "12"))
CALLS = 40
JSON = "application/json"


class Side(Protocol):
    """A server that gets the calls."""

    async def call(self, call: Call) -> tuple[int, Any]:
        """Return the code and the object of the answer."""

    async def events(self, path: str, last: str) -> list[Any]:
        """Return the events of a watch up to the one of the object of that name."""


class RealSide:
    """The real API server."""

    def __init__(self, transport: HTTPTransport) -> None:
        self._transport = transport

    async def call(self, call: Call) -> tuple[int, Any]:
        body = orjson.dumps(call.body) if call.body is not None else None
        answer = await self._transport.send(Request(call.method, call.path, JSON, body, call.content_type))
        return answer.code, orjson.loads(answer.body)

    async def events(self, path: str, last: str) -> list[Any]:
        collected: list[Any] = []
        rest = b""
        async with aclosing(self._transport.stream(path, accept=JSON, total_s=60, silence_s=60)) as chunks:
            async for chunk in chunks:
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    collected.append(orjson.loads(line))
                    if _name(collected[-1]) == last:
                        return collected
        raise AssertionError(f"{path} has ended without {last}")


class ModelSide:
    """The model."""

    def __init__(self) -> None:
        self._server = Server(lambda: 0.0)

    async def call(self, call: Call) -> tuple[int, Any]:
        answer = self._server.handle("test", call.method, call.path, call.body, call.content_type, JSON)
        return answer.code, orjson.loads(orjson.dumps(answer.body))

    async def events(self, path: str, last: str) -> list[Any]:
        lines: list[bytes] = []
        watcher = self._server.watch(path, JSON, lines.append)
        assert not isinstance(watcher, Answer)
        self._server.unwatch(watcher)
        return [orjson.loads(line) for line in lines]


def _name(event: Any) -> str:
    return str(event["object"]["metadata"]["name"])


@pytest.fixture
async def transport(bare_cluster: Cluster) -> AsyncIterator[HTTPTransport]:
    made = HTTPTransport(load_access(api_server(bare_cluster.kubeconfig)), TransportOptions("bowline-test", 30, 10))
    yield made
    await made.close()


async def _version(side: Side, path: str) -> str:
    _, listing = await side.call(Call("GET", f"{path}?limit=1", path))
    return str(listing["metadata"]["resourceVersion"])


async def _pages(side: Side, path: str, prefix: str) -> list[Any]:
    """Return the objects of one seed, read in pages of two, and that a page is of the list's version."""
    objects, versions, token = [], set(), ""
    while True:
        _, page = await side.call(Call("GET", f"{path}?limit=2{token and '&continue='}{token}", path))
        versions.add(page["metadata"]["resourceVersion"])
        assert len(page["items"]) <= 2
        # The kind is the list's.
        kind = page["kind"].removesuffix("List")
        objects += [
            {"kind": kind, **entry} for entry in page["items"] if entry["metadata"]["name"].startswith(prefix)
        ]
        token = page["metadata"].get("continue", "")
        if not token:
            return [len(versions), *((stored["metadata"]["name"], content_of(stored)) for stored in objects)]


async def _make(side: Side, call: Call, stored: dict[str, Object | None]) -> tuple[Any, Any]:
    """Make a call; returns what is compared of the answer, and of what is stored then."""
    before = stored.get(call.target)
    code, body = await side.call(call)
    read_code, read = await side.call(Call("GET", call.target, call.target))
    stored[call.target] = read if read_code == 200 else None
    is_new_version = None
    if read_code == 200 and before is not None and not call.target.startswith(BINDREQUESTS):
        is_new_version = read["metadata"]["resourceVersion"] != before["metadata"]["resourceVersion"]
    return compared(code, body), (compared(read_code, read), is_new_version)


async def _events(side: Side, path: str, version: str, prefix: str) -> list[Any]:
    """Return what is compared of a watch's events about the objects of one seed.

    Of an object's successive equal ones it is the first: the others come from managed fields.
    """
    views: list[Any] = []
    latest: dict[str, Any] = {}
    for event in await side.events(f"{path}&watch=1&resourceVersion={version}", f"{prefix}end"):
        if _name(event).startswith(prefix):
            name, content = _name(event), content_of(event["object"])
            if event["type"] != "MODIFIED" or latest.get(name) != content:
                views.append((event["type"], name, content))
            latest[name] = content
    return views


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_equal_calls_have_equal_answers_and_events(seed: int, transport: HTTPTransport) -> None:
    chance, prefix = Random(seed), f"s{seed}-"
    sides: tuple[Side, ...] = (RealSide(transport), ModelSide())
    objects_by_side: list[dict[str, Object | None]] = [{}, {}]
    starts = [[await _version(side, path) for path, _ in WATCHES] for side in sides]
    for number in range(CALLS):
        make = draw_call(chance, f"{prefix}{chance.choice('ab')}")
        calls = [make(side_objects) for side_objects in objects_by_side]
        real, model = [await _make(*of) for of in zip(sides, calls, objects_by_side, strict=True)]
        assert model == real, f"call {number}: {calls[0]}"
    for path in (BINDREQUESTS, PODS, CLAIMS):
        # The last event of each watch.
        body = new_object(path, f"{prefix}end", Random(0))
        body["metadata"] = {"name": f"{prefix}end", "labels": {"app": "x"}}
        for side in sides:
            code, answer = await side.call(Call("POST", path, f"{path}/{prefix}end", body))
            assert code == 201, answer
    for path in (BINDREQUESTS, PODS, CLAIMS):
        of_real, of_model = [await _pages(side, path, prefix) for side in sides]
        assert of_model == of_real, f"list {path}"
    for number, (path, selector) in enumerate(WATCHES):
        of_real, of_model = [
            await _events(side, f"{path}?{selector}", start[number], prefix)
            for side, start in zip(sides, starts, strict=True)
        ]
        assert of_model == of_real, f"watch {path} {selector}"
