"""Which versions of an object count as this client's own writes, in every order of reply and event."""

import asyncio
from typing import Any

import pytest

from bowline.api.meta import ObjectKey
from bowline.kube import writes
from bowline.kube.errors import ApiStatus, Conflict, NoResponse, from_status
from bowline.kube.resources import CONFIGMAPS, PODS
from bowline.kube.writes import OwnWrites, WrittenObject

POD = WrittenObject(PODS, ObjectKey("default", "p"))
GUARDED = {"metadata": {"resourceVersion": "1"}}


class Writing:
    """One write in progress, and the events that were judged as another client's."""

    def __init__(self, body: Any = GUARDED, target: WrittenObject = POD) -> None:
        self.own = OwnWrites()
        self.foreign: list[str] = []
        self._reply: asyncio.Future[tuple[dict[str, Any], int]] = asyncio.get_running_loop().create_future()
        self.start(body, target)

    def start(self, body: Any = GUARDED, target: WrittenObject = POD) -> None:
        """Send a write."""

        async def exchange() -> tuple[dict[str, Any], int]:
            return await self._reply

        self.task = asyncio.ensure_future(self.own.observing(target, body, exchange)())

    async def reply(self, version: str) -> None:
        """Let the write end with the reply of this version."""
        await asyncio.sleep(0)
        self._reply.set_result(({"metadata": {"resourceVersion": version}}, 1))
        await self.task

    async def fail(self, error: Exception) -> None:
        """Let the write end with an error."""
        await asyncio.sleep(0)
        self._reply.set_exception(error)
        with pytest.raises(type(error)):
            await self.task

    async def event(self, version: str, target: WrittenObject = POD) -> None:
        """Deliver an event of the watch."""
        await asyncio.sleep(0)
        self.own.judge(target, version, lambda: self.foreign.append(version))


async def test_an_event_after_the_reply_is_an_own_write_once() -> None:
    writing = Writing()
    await writing.reply("2")
    await writing.event("2")
    assert writing.foreign == []
    await writing.event("2")
    assert (writing.foreign, len(writing.own)) == (["2"], 0), "nothing is kept"


async def test_events_before_the_reply_are_judged_with_it() -> None:
    writing = Writing()
    for version in ("2", "3"):
        await writing.event(version)
    assert writing.foreign == []
    await writing.reply("2")
    assert (writing.foreign, len(writing.own)) == (["3"], 0)


@pytest.mark.parametrize(
    "error", [NoResponse("lost"), Conflict(ApiStatus(409)), from_status(ApiStatus(500))], ids=type
)
async def test_without_a_reply_every_event_is_another_clients(error: Exception) -> None:
    writing = Writing()
    await writing.event("2")
    await writing.fail(error)
    assert writing.foreign == ["2"]


@pytest.mark.parametrize(
    ("body", "target"),
    [
        pytest.param({"metadata": {"uid": "u"}}, POD, id="no version is required"),
        pytest.param([{"op": "add", "path": "/metadata/labels/x", "value": "y"}], POD, id="a JSON patch"),
        pytest.param({"preconditions": {"resourceVersion": "1"}}, POD, id="a deletion"),
        pytest.param(None, POD, id="a read"),
        pytest.param(GUARDED, WrittenObject(CONFIGMAPS, POD.key), id="an object whose watch wakes no request"),
    ],
)
async def test_other_calls_are_no_own_writes(body: Any, target: WrittenObject) -> None:
    writing = Writing(body, target)
    await writing.event("2", target)
    await writing.reply("3")
    await writing.event("3", target)
    assert writing.foreign == ["2", "3"]


async def test_of_versions_that_no_watch_shows_only_the_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writes, "_MAX_VERSIONS", 2)
    own, foreign = OwnWrites(), []
    for version in ("2", "3", "4"):

        async def exchange(version: str = version) -> tuple[dict[str, Any], int]:
            return {"metadata": {"resourceVersion": version}}, 1

        await own.observing(POD, GUARDED, exchange)()
    assert len(own) == 2
    for version in ("2", "3", "4"):
        own.judge(POD, version, lambda version=version: foreign.append(version))  # type: ignore[misc]
    assert foreign == ["2"]
