"""How a reflector handles a failure."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, cast

import pytest

from bowline.kube import reflector
from bowline.kube.calls import Answer, Request
from bowline.kube.client import ClientOptions, KubeClient
from bowline.kube.config import ApiServer, load_access
from bowline.kube.errors import ApiStatus, Cause, KubeError, NoResponse, from_response, from_status
from bowline.kube.reflector import Reflector, needs_list
from bowline.kube.resources import PODS, Selection

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


class Silent:
    """A transport whose watches end without an event."""

    answers = 0

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.is_complete = asyncio.Event()

    async def send(self, request: Request) -> Answer:
        """Answer a list."""
        self._count("list")
        return Answer(200, cast(Any, {}), b'{"metadata":{"resourceVersion":"1"},"items":[]}')

    async def stream(self, path: str, **limits: Any) -> AsyncGenerator[bytes, None]:
        """Open the watch, and lose it."""
        self._count("watch")
        yield b""
        raise NoResponse("silent")

    def _count(self, call: str) -> None:
        self.calls.append(call)
        if len(self.calls) == 3:
            self.is_complete.set()


@pytest.mark.parametrize(("max_silence_s", "then"), [(0, "list"), (120, "watch")])
async def test_after_minutes_without_an_event_it_lists_again(
    max_silence_s: float, then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """etcd, restored from a backup, may not have reached the version again: a watch from there delivers nothing."""
    monkeypatch.setattr(reflector, "_MAX_SILENCE_S", max_silence_s)
    transport = Silent()
    access = load_access(ApiServer("http://none"))
    client = KubeClient(access, ClientOptions(transport=lambda *_: cast(Any, transport)))
    following = asyncio.create_task(Reflector(client, Selection(PODS)).run())
    await asyncio.wait_for(transport.is_complete.wait(), 5)
    following.cancel()
    assert transport.calls[:3] == ["list", "watch", then]
