"""A plugin is called for what concerns it; what may have effects is recorded with the finalizer, and rolled back."""

from functools import partial

from bowline.api import names
from bowline.api.bindrequest import BindRequest
from bowline.api.meta import Object
from bowline.framework.binding.context import BindContext
from bowline.framework.binding.plugin import BindingPlugin
from bowline.framework.config import Settings
from bowline.framework.plugin import PluginConfig
from bowline.framework.plugin_status import Status
from bowline.kube.resources import BINDREQUESTS, PODS
from tests.reconciler.stage import Stage
from tests.waiting import until, until_awaited


class Prepares(BindingPlugin):
    """Has something to do for the pods whose annotation names it; ``down``: what it depends on does not answer."""

    def __init__(self, name: str, *, down: bool = False) -> None:
        super().__init__(PluginConfig(), Settings())
        self.name = name  # type: ignore[misc]  # a class variable everywhere else
        self.down = down
        self.calls: list[tuple[str, str]] = []

    def applies(self, pod: Object, request: BindRequest) -> bool:
        return self.name in (pod["metadata"].get("annotations") or {})

    async def pre_bind(self, ctx: BindContext) -> Status:
        self.calls.append(("pre_bind", ctx.request.key.name))
        return Status.wait("is not ready")

    async def rollback(self, ctx: BindContext, why: Status) -> Status:
        self.calls.append(("rollback", ctx.request.key.name))
        return Status.outage("does not answer") if self.down else Status.ok()


async def record_of(stage: Stage, name: str) -> str:
    return str(((await stage.request(name))["metadata"].get("annotations") or {}).get(names.EFFECTS))


async def test_an_outage_of_one_plugin_holds_only_its_own_pods(stage: Stage) -> None:
    licence, network = Prepares("licence", down=True), Prepares("network")
    async with stage.working(licence, network):
        for plugin in (licence, network):
            await stage.create_pod(plugin.name, {plugin.name: "yes"})
            await stage.request_bind(plugin.name)
            await until_awaited(partial(record_of, stage, plugin.name), plugin.name.__eq__)
            await until(partial(plugin.calls.__contains__, ("pre_bind", plugin.name)))
            await stage.withdraw(plugin.name)
        await stage.request_deleted("network")
        await until(lambda: ("rollback", "licence") in licence.calls)
        assert (await stage.request("licence"))["metadata"]["finalizers"] == [names.FINALIZER]
        assert {name for _, name in licence.calls} == {"licence"}
        assert set(network.calls) == {("pre_bind", "network"), ("rollback", "network")}
        licence.down = False
        await stage.request_deleted("licence")


async def test_after_a_restart_the_recorded_plugins_are_rolled_back(stage: Stage) -> None:
    """Nothing else shows them: the pod is gone."""
    mine, other_plugin = Prepares("mine"), Prepares("other", down=True)
    async with stage.working(mine, other_plugin) as working:
        await stage.create_pod("pod", {"mine": "yes"})
        await stage.request_bind()
        await until_awaited(partial(record_of, stage, "pod"), lambda record: record == "mine")
        await until(lambda: bool(mine.calls))
        await working.crash()
    await stage.delete_pod()
    await stage.withdraw()
    mine, other_plugin = Prepares("mine"), Prepares("other", down=True)
    async with stage.working(mine, other_plugin):
        await stage.request_deleted()
    assert (mine.calls, other_plugin.calls) == ([("rollback", "pod")], [])


async def test_a_plugin_that_joins_later_is_recorded_before_its_attempt(stage: Stage) -> None:
    first, second = Prepares("first"), Prepares("second")
    async with stage.working(first, second):
        await stage.create_pod("pod", {"first": "yes"})
        await stage.request_bind()
        await until_awaited(partial(record_of, stage, "pod"), lambda record: record == "first")
        await stage.client.patch(PODS, stage.namespace, "pod", {"metadata": {"annotations": {"second": "yes"}}})
        body = {"metadata": {"labels": {"touched": "yes"}}}
        await stage.client.patch(BINDREQUESTS, stage.namespace, "pod", body)
        await until_awaited(partial(record_of, stage, "pod"), lambda record: record == "first,second")
        await stage.withdraw()
        await stage.request_deleted()
    assert ("rollback", "pod") in first.calls
    assert ("rollback", "pod") in second.calls
