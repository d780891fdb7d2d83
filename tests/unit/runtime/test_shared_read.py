"""Concurrent equal reads: one for all callers, and a new one when it is too old or has failed."""

import asyncio

import pytest

from bowline.runtime.shared_read import SharedReads


class Source:
    """Counts its reads; ``go`` lets them return."""

    def __init__(self) -> None:
        self.reads = 0
        self.go = asyncio.Event()
        self.now = 0.0

    async def read(self) -> int:
        self.reads += 1
        number = self.reads
        await self.go.wait()
        return number


async def test_callers_share_a_read_until_it_is_too_old() -> None:
    source = Source()
    shared: SharedReads[str, int] = SharedReads(30.0, lambda: source.now)
    callers = [asyncio.create_task(shared.get("a", source.read)) for _ in range(100)]
    await asyncio.sleep(0)
    source.go.set()
    assert await asyncio.gather(*callers) == [1] * 100
    source.now = 29.9
    assert await shared.get("a", source.read) == 1
    assert await shared.get("b", source.read) == 2
    source.now = 30.0
    assert await shared.get("a", source.read) == 3
    source.now = 100.0
    await shared.get("c", source.read)
    assert len(shared) == 1, "expired results are removed"


async def test_a_caller_may_require_a_younger_read() -> None:
    source = Source()
    shared: SharedReads[str, int] = SharedReads(30.0, lambda: source.now)
    first = asyncio.create_task(shared.get("a", source.read))
    await asyncio.sleep(0)
    assert shared.known("a") is None
    source.now = 2.0
    younger = [asyncio.create_task(shared.get("a", source.read, max_age_s=1.0)) for _ in range(2)]
    await asyncio.sleep(0)
    source.go.set()
    assert await asyncio.gather(first, *younger) == [1, 2, 2], "the one in progress has begun before"
    source.now = 3.0
    assert (await shared.get("a", source.read, max_age_s=1.0), shared.known("a")) == (2, 2)


async def test_a_cancelled_caller_does_not_end_the_read_of_the_others() -> None:
    source = Source()
    shared: SharedReads[str, int] = SharedReads(30.0, lambda: source.now)
    first, second = (asyncio.create_task(shared.get("a", source.read)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    source.go.set()
    assert await second == 1
    assert first.cancelled()


async def test_a_failed_read_is_not_reused() -> None:
    shared: SharedReads[str, int] = SharedReads(30.0, lambda: 0.0)

    async def fails() -> int:
        raise OSError("unreachable")

    with pytest.raises(OSError, match="unreachable"):
        await shared.get("a", fails)
    assert len(shared) == 0

    async def works() -> int:
        return 7

    assert await shared.get("a", works) == 7


async def test_a_read_that_has_just_failed_is_no_known_result() -> None:
    shared: SharedReads[str, int] = SharedReads(30.0, lambda: 0.0)
    go = asyncio.Event()

    async def fails() -> int:
        await go.wait()
        raise OSError("unreachable")

    async def known() -> int | None:
        await go.wait()
        return shared.known("a")

    reading = asyncio.create_task(shared.get("a", fails))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    knowing = asyncio.create_task(known())
    await asyncio.sleep(0)
    go.set()
    assert await knowing is None
    with pytest.raises(OSError, match="unreachable"):
        await reading
