"""Telling of waits: once it takes a while, once per cause, and not of a crowd all at once."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from reconciler.binding.complete import Completer
from reconciler.binding.state import RequestState
from reconciler.binding.wait_index import WaitIndex
from reconciler.binding.waits import TOLD_QPS, Waits, decided_wait
from reconciler.decide.decide import Wait, WaitCause
from reconciler.decide.outcome import QUIET_WAIT, Event
from shared.api.bindrequest import BindRequest, decode_bind_request
from shared.api.meta import ObjectKey, ObjectRef
from shared.testing.builders import bind_request, stored

pytestmark = pytest.mark.looptime

BEGAN = timedelta(days=1)
DUE = BEGAN + QUIET_WAIT
UNTIL = BEGAN + timedelta(minutes=10)
WALL = datetime(2026, 1, 1, tzinfo=UTC)


class Told:
    """Stands where endings write and tell; keeps of whom."""

    def __init__(self) -> None:
        self.written: list[str] = []
        self.evented: list[str] = []
        self.writer = self

    async def status(self, request: BindRequest, block: Mapping[str, Any]) -> BindRequest:
        self.written.append(request.key.name)
        return request

    def tell(self, request: BindRequest, event: Event, on_pod: bool) -> None:
        self.evented.append(request.key.name)


class Crowd:
    """Requests that wait for their pods' gates."""

    def __init__(self, count: int, jitter: float = 0.0) -> None:
        self.told = Told()
        self._waits = Waits(cast(Completer, self.told), WaitIndex({}), lambda: jitter, self._monotonic)
        self._now = BEGAN
        self._requests = [decode_bind_request(stored(bind_request(f"r{n}"), uid=f"r{n}")) for n in range(count)]
        self._memories = [RequestState(request.uid) for request in self._requests]

    def _monotonic(self) -> float:
        return self._now.total_seconds()

    async def look(
        self, number: int, now: timedelta, why: str = "gated", poll: timedelta | None = None
    ) -> timedelta | None:
        """One pass at that time; returns when the next is to come."""
        self._now = now
        request = self._requests[number]
        ref = ObjectRef("v1", "Pod", ObjectKey("default", "pod"))
        waiting = decided_wait(request, Wait(ref, why, UNTIL - now, WaitCause.GATES), WALL, WALL)
        return (await self._waits.wait(request, self._memories[number], replace(waiting, poll=poll))).delay


async def test_a_short_wait_is_not_reported() -> None:
    crowd = Crowd(1)
    assert await crowd.look(0, BEGAN) == QUIET_WAIT
    assert crowd.told.written == []


async def test_a_longer_wait_is_reported_once_per_cause() -> None:
    crowd = Crowd(1)
    await crowd.look(0, BEGAN)
    for seconds, why in enumerate(("gated", "gated", "another", "another", "another")):
        await crowd.look(0, DUE + timedelta(seconds=seconds), why)
    assert crowd.told.written == crowd.told.evented == ["r0", "r0"]


async def test_many_waits_are_all_reported_at_a_limited_rate() -> None:
    count = 2 * TOLD_QPS + 1
    crowd = Crowd(count)
    for number in range(count):
        await crowd.look(number, BEGAN)
    _, *later = [await crowd.look(number, DUE) for number in range(count)]
    assert crowd.told.written == ["r0"]
    seconds = [delay.total_seconds() for delay in later if delay is not None]
    assert seconds == pytest.approx([number / TOLD_QPS for number in range(1, count)]), "in their order, evenly"
    # Woken by something else before its turn: still not told, and its turn stays where it was.
    again = await crowd.look(count - 1, DUE + timedelta(seconds=1))
    assert again is not None
    assert again.total_seconds() == pytest.approx(1)
    for number, after in enumerate(seconds, 1):
        await crowd.look(number, DUE + timedelta(seconds=after))
    assert crowd.told.written == [f"r{number}" for number in range(count)]


async def test_many_waits_are_not_reconciled_together() -> None:
    crowd = Crowd(TOLD_QPS, jitter=1.0)
    due = [await crowd.look(number, BEGAN) for number in range(TOLD_QPS)]
    assert due == [QUIET_WAIT + timedelta(seconds=number / TOLD_QPS) for number in range(TOLD_QPS)]


async def test_the_deadline_precedes_the_turn() -> None:
    crowd = Crowd(2)
    for number in range(2):
        await crowd.look(number, BEGAN)
    late = UNTIL - timedelta(milliseconds=10)
    delays = [await crowd.look(number, late) for number in range(2)]
    assert delays[-1] == timedelta(milliseconds=10)


async def test_a_poll_interval_is_kept() -> None:
    crowd = Crowd(1)
    assert await crowd.look(0, BEGAN, poll=timedelta(seconds=2)) == timedelta(seconds=2)
