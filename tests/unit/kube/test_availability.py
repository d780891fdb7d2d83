"""When the API server counts as unavailable, and how often it is probed. In loop time."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from bowline.kube.availability import Availability
from bowline.kube.errors import ConnectionFailed, NoResponse

pytestmark = pytest.mark.looptime


class LoopClock:
    """Monotonic time of the loop."""

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


class Probed:
    """An API server that answers probes, refuses connections or hangs."""

    def __init__(self) -> None:
        self.view = Availability(LoopClock())  # type: ignore[arg-type]  # the wall clock is not used
        self.answers = True
        self.hangs = False
        self.probes = 0
        self.recoveries = 0

    async def probe(self) -> None:
        self.probes += 1
        if self.hangs:
            await asyncio.Event().wait()
        error = None if self.answers else ConnectionFailed("refused")
        self.view.observe(error)
        if error is not None:
            raise error

    def fail(self, times: int) -> None:
        for _ in range(times):
            self.view.observe(NoResponse("reset"))

    def recovered(self) -> None:
        self.recoveries += 1


@asynccontextmanager
async def probed() -> AsyncIterator[Probed]:
    server = Probed()
    running = asyncio.create_task(server.view.run(server.probe, server.recovered))
    await asyncio.sleep(0)
    yield server
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_failure_or_two_cause_no_probe() -> None:
    async with probed() as server:
        server.fail(2)
        server.view.observe(None)
        server.fail(2)
        await asyncio.sleep(60)
        assert (server.probes, server.view.available) == (0, True)


async def test_failures_of_some_objects_are_no_outage_and_cost_a_probe_a_second_at_most() -> None:
    async with probed() as server:
        for _ in range(1_000):
            server.fail(3)
            await asyncio.sleep(0.01)
            assert server.view.available
        assert 1 <= server.probes <= 21
        assert server.recoveries == 0
        assert server.view.last_success > 0


@pytest.mark.parametrize("hangs", [pytest.param(False, id="refused"), pytest.param(True, id="no reply")])
async def test_an_outage_costs_one_probe_at_a_time_and_two_log_lines(
    caplog: pytest.LogCaptureFixture, *, hangs: bool
) -> None:
    with caplog.at_level(logging.INFO):
        async with probed() as server:
            server.answers, server.hangs = False, hangs
            server.fail(5_000)
            await asyncio.sleep(10)
            assert not server.view.available
            await asyncio.sleep(50)
            assert server.probes <= 121
            server.answers, server.hangs = True, False
            await asyncio.sleep(10)
            assert (server.view.available, server.recoveries) == (True, 1)
    assert len(caplog.records) == 2


async def test_a_lease_that_is_renewed_does_not_end_an_outage() -> None:
    async with probed() as server:
        server.answers = False
        server.fail(3)
        await asyncio.sleep(5)
        server.view.observe(None, is_lease=True)
        await asyncio.sleep(0.01)
        assert not server.view.available
        assert server.view.last_success > 0
