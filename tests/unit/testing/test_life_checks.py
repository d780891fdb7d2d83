"""A second pod while the attempt for the first one pauses: what a plugin with a lock does is no finding."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from bowline.framework.interface.status import Done, Status
from bowline.testing.life_checks import _crossed


class Pause:
    def __init__(self) -> None:
        self.is_reached, self.resumed = False, asyncio.Event()

    def resume(self) -> None:
        self.resumed.set()


@pytest.mark.parametrize("has_lock", [False, True])
async def test_a_second_pod_that_waits_for_the_first_one_is_bound_after_it(has_lock: bool) -> None:
    pause, lock, ends = Pause(), asyncio.Lock(), list[str]()

    async def bind(name: str) -> Status:
        if has_lock:
            await lock.acquire()
        if name == "first":
            pause.is_reached = True
            await pause.resumed.wait()
        if has_lock:
            lock.release()
        ends.append(name)
        return Status.ok()

    trial = SimpleNamespace(subject=SimpleNamespace(limit_s=0.4))
    first: Any = SimpleNamespace(trial=trial, attempt=lambda: bind("first"))
    other: Any = SimpleNamespace(trial=trial, succeed=lambda: bind("other"))
    paused: Any = pause
    status = await _crossed(first, other, paused)
    assert status is not None
    assert isinstance(status, Done)
    assert ends == (["first", "other"] if has_lock else ["other", "first"])
