"""The finalizer from its addition to its removal: side effects are undone completely, never below a running pod."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from bowline.api import names
from bowline.framework.interface.context import BindContext
from bowline.framework.interface.status import Status
from bowline.kube.errors import AlreadyExists, NotFound
from bowline.kube.resources import CONFIGMAPS
from bowline.testing.builders import configmap
from tests.reconciler.stage import Scripted, Stage
from tests.waiting import until, until_awaited


def conditions(status: Mapping[str, Any]) -> dict[str, str]:
    return {c["type"]: c["status"] for c in status.get("conditions") or ()}


class Leaving(Scripted):
    """Creates a ConfigMap of the request's name, deletes it by what the API shows, keeps no state in memory."""

    def __init__(self, answer: Status) -> None:
        super().__init__(effects=True, pre_bind=self._leave, rollback=self._take)
        self.answer = answer
        self.refuses = 0

    async def _leave(self, ctx: BindContext) -> Status:
        with suppress(AlreadyExists):
            await ctx.client.create(CONFIGMAPS, ctx.request.key.namespace, configmap(ctx.request.key.name))
        return self.answer

    async def _take(self, ctx: BindContext) -> Status:
        if self.refuses:
            self.refuses -= 1
            return Status.retry("it is still in use")
        with suppress(NotFound):
            await ctx.client.delete(CONFIGMAPS, ctx.request.key.namespace, ctx.request.key.name)
        return Status.ok()


async def effects(stage: Stage) -> list[str]:
    return [config_map["metadata"]["name"] for config_map in await stage.client.list_all(CONFIGMAPS, stage.namespace)]


async def incomplete(stage: Stage) -> Mapping[str, Any]:
    """Wait until the request reports an incomplete rollback; returns its status."""
    return await until_awaited(stage.status, lambda status: status.get("reason", "").startswith("RollbackFailed"))


async def test_a_request_fails_only_when_its_rollback_is_complete(stage: Stage) -> None:
    plugin = Leaving(Status.fatal("taken"))
    plugin.refuses = 1_000
    async with stage.working(plugin):
        await stage.create_pod()
        await stage.request_bind()
        status = await incomplete(stage)
        assert status["phase"] == "Pending"
        assert status["failure"]["reason"] == "Rejected"
        assert conditions(status)["RolledBack"] == "False"
        assert (await stage.request())["metadata"]["finalizers"] == [names.FINALIZER]
        await until(lambda: plugin.refuses <= 1_000 - 3)
        refusals, plugin.refuses = 1_000 - plugin.refuses, 0
        final_status = await stage.phase("pod", "Failed")
        assert "finalizers" not in (await stage.request())["metadata"]
        assert await effects(stage) == []
    assert conditions(final_status) == {"Bound": "False", "RolledBack": "True"}
    assert final_status["reason"].startswith("Rejected: ")
    assert plugin.points("pod") == ["pre_bind", *["rollback"] * (refusals + 1)]
    assert (await stage.events()).count("RollbackFailed") == 1
