"""An attempt has one context up to post_bind, which shares no object with a cache."""

from typing import Any

from bowline.api.meta import ObjectKey
from bowline.framework.binding.context import BindContext
from bowline.framework.config import Binding
from bowline.framework.plugin_status import Code, Status
from tests.reconciler.stage import NO_FLIGHT, Hold, Scripted, Stage
from tests.waiting import until

ADDED = {"example.com/device": "gpu-7"}


class Annotates(Scripted):
    """Adds an annotation to the Binding and records the contexts of bind and post_bind."""

    name = "annotates"

    def __init__(self, **acts: Any) -> None:
        super().__init__(**acts)
        self.seen: dict[str, list[BindContext]] = {"bind": [], "post_bind": []}

    async def pre_bind(self, ctx: BindContext) -> Status:
        status = await super().pre_bind(ctx)
        return Status.ok(annotations=ADDED) if status.code is Code.OK else status

    async def bind(self, ctx: BindContext) -> Status:
        self.seen["bind"].append(ctx)
        return Status.skip()

    async def post_bind(self, ctx: BindContext) -> None:
        self.seen["post_bind"].append(ctx)


async def test_post_bind_has_the_context_of_its_bind(stage: Stage) -> None:
    """With one worker the requests are completed later."""
    pods = [f"pod-{number}" for number in range(6)]
    hold = Hold()
    plugin = Annotates(pre_bind=hold)
    binding = Binding(workers=1, in_flight_timeout=NO_FLIGHT)
    async with stage.working(plugin, binding=binding) as working:
        for name in pods:
            await stage.create_pod(name)
            await stage.request_bind(name)
        await until(lambda: all(working.seen(stage.namespace, name) is not None for name in pods))
        hold.go.set()
        for name in pods:
            await stage.phase(name, "Succeeded")
    assert len(plugin.seen["post_bind"]) == 6
    for c in plugin.seen["post_bind"]:
        (bound,) = [context for context in plugin.seen["bind"] if context.request.uid == c.request.uid]
        assert ADDED.items() <= c.annotations.items()
        assert c.annotations == bound.annotations
        assert (c.cancelled, c.posts, c.attempt_id) == (bound.cancelled, bound.posts, bound.attempt_id)
        assert c.posts.acknowledged
    for name in pods:
        assert (await stage.pod(name))["metadata"]["annotations"].items() >= ADDED.items()


async def test_a_plugins_changes_of_its_views_reach_no_cache(stage: Stage) -> None:
    async def writes(ctx: BindContext) -> Status:
        assert ctx.pod is not None
        assert ctx.node is not None
        for raw in (ctx.pod, ctx.node, ctx.request.raw):
            raw["metadata"].setdefault("labels", {})["written"] = "here"
        if ctx.attempt == 1:
            return Status.retry("once more")
        return Status.wait("to be inspected")

    plugin = Scripted(pre_bind=writes)
    async with stage.working(plugin) as working:
        await stage.create_pod()
        await stage.request_bind()
        await until(lambda: plugin.points("pod").count("pre_bind") >= 2)
        stores, key = working.parts.informers, ObjectKey(stage.namespace, "pod")
        request, pod, node = stores.request(key), stores.pod(key), stores.node("gpu-node-0")
        assert request is not None
        assert pod is not None
        assert node is not None
        for raw in (request.raw, pod, node):
            assert "written" not in (raw["metadata"].get("labels") or {})
        await stage.withdraw()
        await stage.request_deleted()
