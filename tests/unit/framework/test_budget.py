"""A call that takes too long: the plugin's failure, or the API server's. In loop time."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from bowline.framework.binding.calls import PluginCaller
from bowline.framework.binding.runner import Runner
from bowline.framework.config import Settings
from bowline.framework.interface.binding_plugin import BindingPlugin, Budgets
from bowline.framework.interface.context import BindContext
from bowline.framework.interface.plugin import Plugin, PluginConfig
from bowline.framework.interface.status import Cancelled, Done, Retriable, Status, Transient, Waiting
from bowline.kube.accounting import GRACE_S, api_time, current_account
from bowline.kube.client import ClientOptions
from bowline.runtime.tasks import shield_write
from tests.unit.framework.test_runner import RecordingObserver, context

pytestmark = pytest.mark.looptime

Act = Callable[[], Awaitable[None]]


async def plugin_work(seconds: float) -> None:
    await asyncio.sleep(seconds)


async def at_api(seconds: float) -> None:
    with api_time():
        await asyncio.sleep(seconds)


async def wait_in_queue(seconds: float) -> None:
    account = current_account()
    account.enter_queue()
    try:
        await asyncio.sleep(seconds)
    finally:
        account.leave_queue()


async def concurrently(first: Awaitable[None], second: Awaitable[None]) -> None:
    await asyncio.gather(first, second)


class Slow(BindingPlugin):
    """Does the same at each point; 10 seconds for each."""

    name = "slow"
    budgets = Budgets(call_s=10, post_bind_s=10, rollback_s=10)

    def __init__(self, act: Callable[[], Any]) -> None:
        super().__init__(PluginConfig(), Settings())
        self.act = act

    async def pre_bind(self, ctx: BindContext) -> Status:
        await self.act()
        return Status.ok()

    async def bind(self, ctx: BindContext) -> Status:
        return await self.pre_bind(ctx)

    async def post_bind(self, ctx: BindContext) -> None:
        await self.act()

    async def rollback(self, ctx: BindContext, why: Status) -> Status:
        return await self.pre_bind(ctx)


async def called(run: Runner, point: str) -> Status:
    """Call one point of the plugins."""
    if point == "rollback":
        return await run.run_rollback(context(), Status.fatal("no"))
    return await (run.run_pre_bind(context()) if point == "pre_bind" else run.run_bind(context()))


async def sequence(*parts: Callable[[], Awaitable[None]]) -> None:
    for part in parts:
        await part()


@pytest.mark.parametrize(
    ("act", "kind", "after"),
    [
        pytest.param(lambda: plugin_work(9), Done, 9, id="within its budget"),
        pytest.param(lambda: plugin_work(3600), Waiting, 10, id="a plugin that hangs"),
        pytest.param(lambda: at_api(3600), Transient, 10, id="an API server that hangs"),
        pytest.param(lambda: wait_in_queue(3600), Done, 3600, id="a limiter, however long"),
        pytest.param(lambda: sequence(lambda: at_api(9), lambda: plugin_work(9)), Done, 18,
            id="slow requests are not its own"),
        pytest.param(lambda: sequence(lambda: at_api(9), lambda: plugin_work(3600)), Waiting, 19,
            id="hangs after a slow request"),
        pytest.param(lambda: sequence(lambda: plugin_work(9), lambda: at_api(3600)), Transient, 19,
            id="a request hangs later"),
        pytest.param(lambda: sequence(lambda: wait_in_queue(100), lambda: plugin_work(3600)), Waiting, 110,
            id="hangs after a queue"),
        pytest.param(lambda: concurrently(plugin_work(3600), at_api(3600)), Transient, 10,
            id="own work beside a request"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("point", ["pre_bind", "bind", "rollback"])
async def test_the_time_of_a_call_is_charged_to_its_cause(
    point: str, act: Act, kind: type[Status], after: float
) -> None:
    """A plugin that uses its own budget up is defective; the rollback is repeated, as after any failure."""
    observer = RecordingObserver()
    run = Runner([Slow(act)], PluginCaller(observer))
    began = asyncio.get_running_loop().time()
    status = await called(run, point)
    assert type(status) is (Retriable if (point, kind) == ("rollback", Waiting) else kind)
    assert observer.errors == ([("slow", point)] if kind is Waiting else [])
    assert asyncio.get_running_loop().time() - began == pytest.approx(after, abs=0.2)


STOPPED_S = 40.0


def stop_process() -> None:
    """As SIGSTOP and SIGCONT: the clock goes on, no task and no timer runs meanwhile."""
    loop = asyncio.get_running_loop()
    continues_at, time_of = loop.time() + STOPPED_S, loop.time
    loop.time = lambda: max(time_of(), continues_at)  # type: ignore[method-assign]


@pytest.mark.parametrize("act", [plugin_work, at_api])
async def test_a_call_is_not_charged_for_the_time_in_which_its_process_was_stopped(
    act: Callable[[float], Awaitable[None]],
) -> None:
    observer, loop = RecordingObserver(), asyncio.get_running_loop()
    loop.call_later(3.5, stop_process)
    # Its own timer is due when the process continues, and so is the budget's.
    status = await Runner([Slow(lambda: act(STOPPED_S + 8))], PluginCaller(observer)).run_pre_bind(context())
    assert isinstance(status, Done)
    assert observer.errors == []
    assert loop.time() >= STOPPED_S + 8


class Stubborn:
    """Ignores every cancellation until the test releases it."""

    def __init__(self) -> None:
        self.release = asyncio.Event()

    async def __call__(self) -> None:
        # Without this the end of the event loop would wait for it.
        asyncio.get_running_loop().call_later(60, self.release.set)
        while not self.release.is_set():
            with suppress(asyncio.CancelledError):
                await self.release.wait()


@pytest.mark.parametrize("point", ["pre_bind", "bind", "rollback"])
async def test_a_call_that_ignores_its_cancellation_is_abandoned_and_named(point: str) -> None:
    observer, stubborn = RecordingObserver(), Stubborn()
    run = Runner([Slow(stubborn)], PluginCaller(observer))
    began = asyncio.get_running_loop().time()
    status = await called(run, point)
    assert isinstance(status, Retriable if point == "rollback" else Waiting)
    assert asyncio.get_running_loop().time() - began == pytest.approx(10 + GRACE_S, abs=0.2)
    assert observer.errors == [("slow", point)] * 2  # it ignores its cancellation, and took too long
    (task,) = (task for task in asyncio.all_tasks() if task.get_name() == f"slow.{point}")
    stubborn.release.set()
    await task


async def test_a_withdrawn_attempt_does_not_wait_for_a_call_that_ignores_its_cancellation() -> None:
    observer, stubborn = RecordingObserver(), Stubborn()
    c = context()
    running = asyncio.create_task(Runner([Slow(stubborn)], PluginCaller(observer)).run_pre_bind(c))
    await asyncio.sleep(1)
    c.cancelled.set()
    assert isinstance(await running, Cancelled)
    assert asyncio.get_running_loop().time() == pytest.approx(1 + GRACE_S, abs=0.2)
    assert observer.errors == [("slow", "pre_bind")]
    stubborn.release.set()


async def test_a_write_in_flight_is_awaited_after_the_budget() -> None:
    observer = RecordingObserver()
    end_times: list[float] = []

    async def writes() -> None:
        await asyncio.sleep(9)
        await shield_write(at_api(35))
        end_times.append(asyncio.get_running_loop().time())

    status = await Runner([Slow(writes)], PluginCaller(observer)).run_pre_bind(context())
    assert isinstance(status, Transient)
    assert asyncio.get_running_loop().time() == pytest.approx(44, abs=0.2)
    assert (end_times, observer.errors) == ([], [])


async def test_one_slow_post_bind_does_not_shorten_the_budget_of_the_next() -> None:
    finished_plugins: list[str] = []

    def named(name: str, seconds: float) -> Plugin:
        async def act() -> None:
            await plugin_work(seconds)
            finished_plugins.append(name)

        plugin = Slow(act)
        plugin.name = name  # type: ignore[misc]  # a class variable everywhere else
        return plugin

    await Runner(
        [named("slow", 3600), named("ledger", 9), named("notify", 9)], PluginCaller(RecordingObserver())
    ).run_post_bind(context())
    assert finished_plugins == ["ledger", "notify"]


def test_a_request_that_hangs_fails_before_the_budget_of_a_call_is_spent() -> None:
    # 30 s: the longest timeout of an admission webhook, whose failure the API server reports itself.
    assert 30 < ClientOptions().timeout_s <= Budgets().call_s * 2 / 3
