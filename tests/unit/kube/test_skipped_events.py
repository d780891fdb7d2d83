"""Which events of a watch are not decoded, and that what they report is the same."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, cast

import orjson
import pytest

from bowline.api.meta import Object, ObjectKey
from bowline.kube.calls import Answer, Request
from bowline.kube.client import ClientOptions, KubeClient
from bowline.kube.config import ApiServer, load_access
from bowline.kube.reflector import EventType, Listener, Reflector
from bowline.kube.resources import PODS, Selection

BROKEN = b"[" * 2_000


def line(event: str, name: str, version: int, content: bytes = b"{}") -> bytes:
    """An event as an API server writes it; its content need not be JSON."""
    metadata = {"name": name, "namespace": "default", "uid": f"u-{name}", "resourceVersion": str(version)}
    start = f'{{"type":"{event}","object":{{"kind":"Pod","apiVersion":"v1","metadata":'.encode()
    return start + orjson.dumps(metadata) + b',"spec":' + content + b"}}\n"


class OneWatch:
    """A transport with an empty list and one watch."""

    answers = 0

    def __init__(self, lines: list[bytes]) -> None:
        self.lines = lines
        self.is_delivered = asyncio.Event()

    async def send(self, request: Request) -> Answer:
        """Answer a list."""
        return Answer(200, cast(Any, {}), b'{"metadata":{"resourceVersion":"1"},"items":[]}')

    async def stream(self, path: str, **limits: Any) -> AsyncGenerator[bytes, None]:
        """Deliver the lines, and hang."""
        yield b""
        for event in self.lines:
            yield event
        self.is_delivered.set()
        await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("lines", "concerned", "expectation"),
    [
        pytest.param(
            [line("ADDED", "a", 2, b'{"x":1}'), line("DELETED", "a", 3, BROKEN)],
            None,
            [("ADDED", "a", {"x": 1}), ("DELETED", "a", {"x": 1})],
            id="the last content of a cached object is not decoded",
        ),
        pytest.param(
            [line("DELETED", "a", 2, b'{"x":1}')],
            None,
            [("DELETED", "a", {"x": 1})],
            id="of one that is not cached it is",
        ),
        pytest.param(
            [line("ADDED", "a", 2, BROKEN), line("MODIFIED", "a", 3, BROKEN), line("ADDED", "b", 4)],
            "b",
            [("ADDED", "b", {})],
            id="what the listener is not concerned with is not decoded",
        ),
        pytest.param([line("DELETED", "a", 2, BROKEN)], "b", [], id="nor is its deletion"),
    ],
)
async def test_what_is_reported(lines: list[bytes], concerned: str | None, expectation: list[Any]) -> None:
    reports: list[Any] = []

    def report(event: EventType, key: ObjectKey, old: Object | None, new: Object | None) -> None:
        reports.append((event.value, key.name, (new or old or {})["spec"]))

    def concerns(item: Object) -> bool:
        return bool(item["metadata"]["name"] == concerned)

    transport = OneWatch(lines)
    access = load_access(ApiServer("http://none"))
    client = KubeClient(access, ClientOptions(transport=lambda *_: cast(Any, transport)))
    decoded: list[Any] = []
    client.unreadable.follow(lambda ref, why: decoded.append(ref))
    listener = Listener(report, concerns=concerns if concerned is not None else None)
    reflector = Reflector(client, Selection(PODS), listener=listener)
    following = asyncio.create_task(reflector.run())
    await asyncio.wait_for(transport.is_delivered.wait(), 5)
    assert reports == expectation
    assert reflector.version == str(len(lines) + 1), "the watch has passed all of them"
    assert (reflector.last_error, decoded) == (None, [])
    following.cancel()
