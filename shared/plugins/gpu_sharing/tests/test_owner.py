"""What becomes of those who asked the owner of a group when its pass fails. All else needs a real API server."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from shared.api.meta import ObjectKey, ObjectUID
from shared.framework.binding.handle import Handle, Reconcile
from shared.framework.binding.metrics import PluginMetrics
from shared.framework.config import Settings
from shared.kube.accounting import TimeAccount, accounting
from shared.kube.errors import LostReply
from shared.plugins.gpu_sharing.metrics import SharingMetrics
from shared.plugins.gpu_sharing.owner import GroupOwner
from shared.plugins.gpu_sharing.pod import ReservationSpec
from shared.plugins.gpu_sharing.reservation import Lost, Pending, Reservation
from shared.plugins.gpu_sharing.site import Site
from shared.plugins.gpu_sharing.tests.pods import claim, reservation
from shared.runtime.clock import Clock, SystemClock
from shared.testing.clock import SteppedClock

NOBODY: Any = None
TIMEOUT = timedelta(seconds=40)


@dataclass(frozen=True, slots=True)
class FailingSite(Site):
    """Has an error in place of every answer."""

    error: Exception | None = None

    async def reservations(self, group: str = "") -> list[Reservation]:
        assert self.error is not None
        raise self.error


class Passes:
    """Runs a pass for every key that is added, and keeps what came of it."""

    def __init__(self) -> None:
        self.running: list[asyncio.Task[timedelta | None]] = []

    def worker(self, name: str, reconcile: Reconcile) -> Callable[[ObjectKey], None]:
        def add(key: ObjectKey) -> None:
            self.running.append(asyncio.ensure_future(reconcile(key)))

        return add

    async def results(self) -> list[Any]:
        return await asyncio.gather(*self.running, return_exceptions=True)


class SetClock(SteppedClock):
    """A clock that somebody sets, too: no time passes by that."""

    by = timedelta()

    def now(self) -> datetime:
        return super().now() + self.by


class SilentSite(Site):
    """Has one reservation, whose agent says nothing."""

    async def reservations(self, group: str = "") -> list[Reservation]:
        return [reservation()]

    async def remove(self, reservation: Reservation) -> bool:
        return True


def owner(passes: Passes, error: Exception) -> GroupOwner:
    return owner_of(passes, FailingSite(NOBODY, ReservationSpec("res", "image"), "", error), SystemClock())


def owner_of(passes: Passes, site: Site, clock: Clock) -> GroupOwner:
    metrics = PluginMetrics("gpu_sharing", CollectorRegistry())
    handle = Handle(Settings(), NOBODY, clock, passes.worker, metrics)
    return GroupOwner(handle, site, TIMEOUT, SharingMetrics(metrics))


@pytest.mark.parametrize(
    ("error", "reported"),
    [
        pytest.param(LostReply("no answer"), False, id="the API server's trouble: whoever asked comes again"),
        pytest.param(KeyError("spec"), True, id="a fault of ours: reported as well, and nobody is left waiting"),
    ],
)
async def test_whoever_asked_is_told_of_a_pass_that_failed(error: Exception, reported: bool) -> None:
    passes = Passes()
    asked = owner(passes, error)
    with pytest.raises(type(error)):
        await asked.claim([claim()])
    with pytest.raises(type(error)):
        await asked.release(claim().request, ObjectUID("uid-a"), ["g1"])
    assert [isinstance(result, Exception) for result in await passes.results()] == [reported, reported]


async def test_a_look_that_failed_is_repeated_by_its_queue() -> None:
    passes = Passes()
    owner(passes, LostReply("no answer")).look(["g1"])
    (result,) = await passes.results()
    assert isinstance(result, LostReply)


@pytest.mark.parametrize("by", [timedelta(hours=1), timedelta(hours=-1)])
async def test_how_long_an_agent_is_silent_is_not_measured_by_a_clock_that_is_set(by: timedelta) -> None:
    passes, clock = Passes(), SetClock()
    asked = owner_of(passes, SilentSite(NOBODY, ReservationSpec("res", "image"), ""), clock)
    waits = claim(awaited=reservation().uid)
    assert isinstance((await asked.claim([waits]))[0], Pending)
    clock.by = by
    assert isinstance((await asked.claim([waits]))[0], Pending)
    assert (await passes.results())[-1] == TIMEOUT
    clock.step(TIMEOUT)
    assert isinstance((await asked.claim([waits]))[0], Lost)


class NoPasses(Passes):
    """Takes keys and runs nothing, as behind an API server that hangs."""

    def worker(self, name: str, reconcile: Reconcile) -> Callable[[ObjectKey], None]:
        return lambda _: None


@pytest.mark.looptime
async def test_the_wait_for_the_owner_is_time_of_the_api_server() -> None:
    waiting = owner(NoPasses(), LostReply("unused"))
    account = TimeAccount(asyncio.get_running_loop().time)
    with accounting(account), pytest.raises(TimeoutError):
        async with asyncio.timeout(30):
            await waiting.claim([claim()])
    assert [account.own, account.api] == pytest.approx([0, 30])
