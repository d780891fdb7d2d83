"""Pods that wait for their scheduler: trimmed in the cache, complete when a request names them."""

from bowline.api.meta import ObjectKey
from bowline.framework.binding.context import BindContext
from bowline.framework.plugin_status import Status
from bowline.kube.resources import PODS
from tests.reconciler.stage import Scripted, Stage
from tests.waiting import until

LARGE = [{"name": f"VARIABLE_{n}", "value": f"{n * 7919:x}" * 4} for n in range(400)]


async def test_a_plugin_gets_the_complete_pod_of_any_size_and_age(stage: Stage) -> None:
    seen: dict[str, int] = {}

    async def record(ctx: BindContext) -> Status:
        assert ctx.pod is not None
        seen[ctx.request.key.name] = len(ctx.pod["spec"]["containers"][0].get("env") or ())
        return Status.ok()

    container = {"name": "main", "image": "example.com/image"}
    async with stage.working(Scripted(pre_bind=record)) as working:
        await stage.create_pod("small", containers=[container])
        await stage.create_pod("large", containers=[{**container, "env": LARGE}])
        await until(
            lambda: len([k for k in working.parts.informers.pods.store if k.namespace == stage.namespace]) == 2
        )
        assert working.parts.informers.pod(ObjectKey(stage.namespace, "large")) is None
        for name in ("small", "large"):
            await stage.request_bind(name)
            await stage.phase(name, "Succeeded")
    assert seen == {"small": 0, "large": len(LARGE)}


async def test_pods_that_fail_without_a_node_leave_the_cache(stage: Stage) -> None:
    plugin = Scripted()
    async with stage.working(plugin) as working:
        store = working.parts.informers.pods.store
        key = ObjectKey(stage.namespace, "pod")
        await stage.create_pod()
        await until(lambda: key in store)
        body = {"status": {"phase": "Failed", "reason": "Evicted"}}
        await stage.client.patch(PODS, stage.namespace, "pod", body, subresource="status")
        await until(lambda: key not in store)
        await stage.request_bind()
        assert (await stage.phase("pod", "Failed"))["reason"].startswith("PodGone")
    assert plugin.calls == []
