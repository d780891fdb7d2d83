"""What a reflector does after a failure, and which events of a watch it does not decode."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any, cast

import orjson
import pytest

from bowline.api.meta import Object, ObjectKey
from bowline.kube import reflector
from bowline.kube.calls import Answer, Request
from bowline.kube.client import ClientOptions, KubeClient
from bowline.kube.config import ApiServer, load_access
from bowline.kube.errors import ApiStatus, Cause, KubeError, NoResponse, from_response, from_status
from bowline.kube.reflector import EventType, Listener, Reflector, needs_list
from bowline.kube.resources import PODS, Selection
from tests.waiting import until

TOO_LARGE = (Cause("ResourceVersionTooLarge", "Too large resource version"),)


@pytest.mark.parametrize(
    ("error", "expectation"),
    [
        pytest.param(NoResponse("reset"), False, id="a broken connection is resumed"),
        pytest.param(from_status(ApiStatus(504, causes=TOO_LARGE)), True, id="a version in the future"),
        pytest.param(from_status(ApiStatus(410, "Expired")), True, id="an expired version"),
        pytest.param(from_status(ApiStatus(403, "Forbidden")), True, id="a right that was removed"),
        pytest.param(from_response(404, {}, b"404 page not found"), True, id="a resource that was removed"),
    ],
)
def test_whether_to_list_again(error: KubeError, expectation: bool) -> None:
    assert needs_list(error) is expectation


BROKEN = b"[" * 2_000


def line(event: str, name: str, version: int, content: bytes = b"{}") -> bytes:
    """An event as an API server writes it; its content need not be JSON."""
    metadata = {"name": name, "namespace": "default", "uid": f"u-{name}", "resourceVersion": str(version)}
    start = f'{{"type":"{event}","object":{{"kind":"Pod","apiVersion":"v1","metadata":'.encode()
    return start + orjson.dumps(metadata) + b',"spec":' + content + b"}}\n"


class OneWatch:
    """A transport with empty lists. A watch delivers the lines, and hangs; without any it is lost."""

    answers = 0

    def __init__(self, lines: Sequence[bytes] = ()) -> None:
        self.lines, self.is_delivered = lines, False
        self.calls: list[str] = []

    def client(self) -> KubeClient:
        """Return a client that sends to it."""
        access = load_access(ApiServer("http://none"))
        return KubeClient(access, ClientOptions(transport=lambda *_: cast(Any, self)))

    async def send(self, request: Request) -> Answer:
        """Answer a list."""
        self.calls.append("list")
        return Answer(200, cast(Any, {}), b'{"metadata":{"resourceVersion":"1"},"items":[]}')

    async def stream(self, path: str, **limits: Any) -> AsyncGenerator[bytes, None]:
        """Open the watch."""
        self.calls.append("watch")
        yield b""
        if not self.lines:
            raise NoResponse("silent")
        for event in self.lines:
            yield event
        self.is_delivered = True
        await asyncio.Event().wait()


@pytest.mark.parametrize(("max_silence_s", "then"), [(0, "list"), (120, "watch")])
async def test_after_minutes_without_an_event_it_lists_again(
    max_silence_s: float, then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """etcd, restored from a backup, may not have reached the version again: a watch from there delivers nothing."""
    monkeypatch.setattr(reflector, "_MAX_SILENCE_S", max_silence_s)
    transport = OneWatch()
    following = asyncio.create_task(Reflector(transport.client(), Selection(PODS)).run())
    await until(lambda: len(transport.calls) >= 3)
    following.cancel()
    assert transport.calls[:3] == ["list", "watch", then]


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
    client = transport.client()
    decoded: list[Any] = []
    client.unreadable.follow(lambda ref, why: decoded.append(ref))
    listener = Listener(report, concerns=concerns if concerned is not None else None)
    follower = Reflector(client, Selection(PODS), listener=listener)
    following = asyncio.create_task(follower.run())
    await until(lambda: transport.is_delivered)
    assert reports == expectation
    assert follower.version == str(len(lines) + 1), "the watch has passed all of them"
    assert (follower.last_error, decoded) == (None, [])
    following.cancel()
