"""An attempt has one context up to post_bind, which shares no object with a cache."""

from collections.abc import Collection, Mapping
from typing import Any, cast

import pytest

from bowline.api.bindrequest import AllocationKind, BindRequest
from bowline.api.meta import Object, ObjectKey
from bowline.framework.binding.context import BindContext
from bowline.framework.config import Binding
from bowline.framework.plugin_status import Status
from tests.reconciler.stage import NO_FLIGHT, Hold, Scripted, Stage
from tests.waiting import until

ADDED = {"example.com/device": "gpu-7"}


class Annotates(Scripted):
    """Adds an annotation to the Binding and records the contexts of bind and post_bind."""

    name = "annotates"

    def __init__(self, **acts: Any) -> None:
        super().__init__(**acts)
        self.seen: dict[str, list[BindContext]] = {"bind": [], "post_bind": []}

    def binding_annotations(self, ctx: BindContext) -> Mapping[str, str]:
        return ADDED

    async def bind(self, ctx: BindContext) -> Status:
        self.seen["bind"].append(ctx)
        return Status.skip()

    async def post_bind(self, ctx: BindContext) -> None:
        self.seen["post_bind"].append(ctx)


@pytest.mark.parametrize(
    "workers", [pytest.param(1, id="completed later"), pytest.param(16, id="completed directly")]
)
async def test_post_bind_has_the_context_of_its_bind(stage: Stage, workers: int) -> None:
    pods = [f"pod-{number}" for number in range(6)]
    hold = Hold()
    plugin = Annotates(pre_bind=hold)
    binding = Binding(workers=workers, in_flight_timeout=NO_FLIGHT)
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


class Wipes(Scripted):
    """Changes all that it is given, as a plugin with a defect does."""

    name = "wipes"

    def applies(self, pod: Object, request: BindRequest) -> bool:
        wipe(pod, request)
        return True

    def has_side_effects(self, request: BindRequest, pod: Object | None) -> bool:
        wipe(pod or {}, request)
        return False

    def supported_allocations(self, request: BindRequest) -> Collection[AllocationKind]:
        wipe({}, request)
        return ()

    async def pre_bind(self, ctx: BindContext) -> Status:
        assert ctx.pod is not None
        wipe(ctx.pod, ctx.request)
        return Status.ok()

    def binding_annotations(self, ctx: BindContext) -> Mapping[str, str]:
        ctx.annotations.clear()
        return {}

    async def bind(self, ctx: BindContext) -> Status:
        ctx.annotations.clear()
        ctx.labels.clear()
        return Status.skip()


def wipe(pod: Object, request: BindRequest) -> None:
    for raw in (pod, request.raw):
        cast("dict[str, Any]", raw).pop("spec", None)
        raw.get("metadata", {}).pop("annotations", None)


class AsksForDevice(Annotates):
    """Applies to a pod with an annotation."""

    name = "asks"

    def applies(self, pod: Object, request: BindRequest) -> bool:
        return "example.com/needs" in (pod["metadata"].get("annotations") or {})

    async def pre_bind(self, ctx: BindContext) -> Status:
        assert self.applies(ctx.pod or {}, ctx.request)
        return await super().pre_bind(ctx)


async def test_what_a_plugin_changes_is_seen_by_no_other_plugin_and_no_cache(stage: Stage) -> None:
    plugin = AsksForDevice()
    async with stage.working(Wipes(), plugin, Scripted()) as working:
        await stage.create_pod(annotations={"example.com/needs": "device"})
        await working.pod_cached(stage.namespace)
        await stage.request_bind()
        status = await stage.phase("pod", "Succeeded", "Failed")
    assert plugin.points("pod") == ["pre_bind"]
    assert len(plugin.seen["post_bind"]) == 1
    assert (await stage.pod())["metadata"]["annotations"].items() >= ADDED.items()
    (condition,) = (entry for entry in status["conditions"] if entry["type"] == "Prepared")
    assert condition["status"] == "True"


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
