"""Waiting for a condition: no test sleeps a fixed time, and no test asserts a duration."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

# Only a failing test waits this long: a busy machine is slow.
LIMIT_S = 120


def pause_s(began: float) -> float:
    """How long to wait before the next read; longer when the wait lasts, because each read costs CPU of all tests.

    ``began``: when the wait began, monotonic.
    """
    return min(0.3, max(0.02, (time.monotonic() - began) / 20))


async def until(condition: Callable[[], object]) -> None:
    """Wait until the condition holds, without blocking the event loop."""
    async with asyncio.timeout(LIMIT_S):
        while not condition():  # noqa: ASYNC110 - no event to wait for
            await asyncio.sleep(0.005)


async def until_awaited(read: Callable[[], Awaitable[T]], condition: Callable[[T], object]) -> T:
    """Read repeatedly until the value fulfils the condition; return it."""
    began = time.monotonic()
    async with asyncio.timeout(LIMIT_S):
        while not condition(value := await read()):  # noqa: ASYNC110 - as above
            await asyncio.sleep(pause_s(began))
    return value


def wait_until(condition: Callable[[], object], description: str, limit_s: float = LIMIT_S) -> None:
    """Wait until another process has made the condition true; a failure has the description."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() < began + limit_s, f"{description} did not happen"
        time.sleep(pause_s(began))
