"""With more requests than workers, pods are bound first and their requests are completed later."""

import asyncio
from collections.abc import Sequence
from functools import partial

from bowline.framework.binding.context import BindContext
from bowline.framework.binding.plugin import Budgets
from bowline.framework.config import Binding
from tests.reconciler.stage import NO_FLIGHT, Scripted, Stage
from tests.waiting import LIMIT_S, until, until_awaited

NAMES = tuple(f"pod-{number:02}" for number in range(12))
# At most two are queued when the last ones are bound: those are completed directly.
TWO = Binding(workers=2, in_flight_timeout=NO_FLIGHT)


class Held(Scripted):
    """Has side effects, and blocks in post_bind until released: on a slow machine for longer than the default."""

    budgets = Budgets(post_bind_s=LIMIT_S)

    def __init__(self) -> None:
        super().__init__(effects=True)
        self.go = asyncio.Event()

    async def post_bind(self, ctx: BindContext) -> None:
        await super().post_bind(ctx)
        await self.go.wait()


async def burst(stage: Stage) -> None:
    for name in NAMES:
        await stage.create_pod(name)
        await stage.request_bind(name)


async def bound(stage: Stage) -> list[str]:
    return [name for name in NAMES if (await stage.pod(name))["spec"].get("nodeName")]


async def all_but_the_last_bound(stage: Stage) -> Sequence[str]:
    return await until_awaited(partial(bound, stage), lambda names: len(names) >= len(NAMES) - 3)


def bound_once_each(plugin: Scripted) -> None:
    assert sorted(name for point, name, _ in plugin.calls if point == "pre_bind") == list(NAMES)


async def test_pods_are_bound_before_any_request_is_completed(stage: Stage) -> None:
    await burst(stage)
    plugin = Held()
    async with stage.working(plugin, binding=TWO) as working:
        await all_but_the_last_bound(stage)
        assert len(plugin.uids("post_bind")) <= 2, "one per worker"
        assert working.sizes["deferredCompletions"] >= len(NAMES) - 6
        plugin.go.set()
        for name in NAMES:
            await stage.phase(name, "Succeeded")
            assert await stage.event(name, "Bound") == ["Bound"]
        await until(lambda: working.sizes["deferredCompletions"] == 0)
    bound_once_each(plugin)
    assert sorted(plugin.uids("post_bind")) == sorted(set(plugin.uids("post_bind")))
    assert plugin.uids("rollback") == []
