"""Request bodies within their bounds, without a listener."""

import asyncio
from unittest.mock import Mock

import pytest
from aiohttp.streams import StreamReader
from aiohttp.test_utils import make_mocked_request

from bowline_webhook.bodies import DEFAULT_TIMEOUT_S, MAX_TIMEOUT_S, BadRequestError, Bodies, timeout_s


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2s", 2),
        ("500ms", 0.5),
        ("1h", MAX_TIMEOUT_S),
        ("", DEFAULT_TIMEOUT_S),
        ("0s", DEFAULT_TIMEOUT_S),
        ("-1s", DEFAULT_TIMEOUT_S),
        ("soon", DEFAULT_TIMEOUT_S),
        ("9" * 400 + "s", DEFAULT_TIMEOUT_S),
        ("2s&x=1", 2),
    ],
)
def test_the_callers_timeout_is_read_within_bounds(text: str, seconds: float) -> None:
    assert timeout_s(f"/validate/pods?timeout={text}") == seconds


async def test_the_peer_that_holds_most_loses_its_oldest_body_when_all_together_are_too_large() -> None:
    bodies = Bodies(max_held=40)

    async def start(peer: str) -> tuple[StreamReader, asyncio.Task[bytes]]:
        content = StreamReader(Mock(_reading_paused=False), 2**16, loop=asyncio.get_running_loop())
        content.feed_data(b"x" * 10)
        reading = bodies.read(make_mocked_request("POST", "/", payload=content), Mock(peer=peer))
        task = asyncio.create_task(reading)
        await asyncio.sleep(0)
        return content, task

    kept, oldest, *others = [await start(peer) for peer in ("a", "b", "b", "b", "a")]
    with pytest.raises(BadRequestError, match="too many") as caught:
        await oldest[1]
    assert caught.value.code == 429
    for content, task in (kept, *others):
        content.feed_eof()
        assert await task == b"x" * 10
