"""When a leader stops to write: before another process may lead."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bowline.kube.lease import LeaseTimings
from bowline_reconciler.term.controller import Term
from bowline_reconciler.term.leader import run_while_leader
from bowline_reconciler.term.wiring import Components

pytestmark = pytest.mark.looptime


class Parts:
    """What runs in a term, as far as it writes: the client, and plugins. Nothing ends by itself."""

    def __init__(self) -> None:
        self.permit: Callable[[], float] = lambda: 0.0
        self.forbidden_at: list[float] = []
        metric = SimpleNamespace(set=lambda value: None)
        self.observation = SimpleNamespace(metrics=SimpleNamespace(leader=metric))
        self.client = SimpleNamespace(ledger=SimpleNamespace(permit=self._permit, forbid=self._forbid))
        self.plugins = SimpleNamespace(start=self._at_once, stop=self._at_once, failure=self._for_ever, cancel=list)
        self.ttl = self.releases = self.progress = SimpleNamespace(run=self._for_ever)
        self.memory = SimpleNamespace(conditions=self.ttl)
        self.controller = SimpleNamespace(lead=self._work)
        self.wait_for_sync = self._at_once

    def _permit(self, left_s: Callable[[], float]) -> None:
        self.permit = left_s

    def _forbid(self) -> None:
        self.forbidden_at.append(asyncio.get_running_loop().time())

    async def _work(self, term: Term) -> None:
        await term.end_event.wait()
        await asyncio.sleep(9)

    async def _at_once(self) -> None:
        """Return."""

    async def _for_ever(self) -> None:
        await asyncio.Event().wait()


async def test_a_second_before_another_process_may_lead_nothing_is_written_any_more() -> None:
    is_leader, lost, stop, parts = asyncio.Event(), asyncio.Event(), asyncio.Event(), Parts()
    is_leader.set()
    elector = SimpleNamespace(is_leader=is_leader, lost=lost, left_s=5.0)
    elector.run = asyncio.Event.wait
    leadership: Any = SimpleNamespace(elector=lambda parts, timings: elector)
    running = asyncio.create_task(run_while_leader(leadership, LeaseTimings(), cast(Components, parts), stop))
    await asyncio.sleep(1)
    assert parts.permit() == 4
    lost.set()
    await asyncio.sleep(7)
    stop.set()
    await running
    assert parts.forbidden_at[0] == pytest.approx(5, abs=0.1), "although its work ends later"
