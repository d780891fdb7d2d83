"""Pods that wait for their scheduler: trimmed in the cache, complete when a request names them."""

from bowline.api.meta import ObjectKey
from bowline.kube.resources import PODS
from tests.reconciler.stage import Scripted, Stage
from tests.waiting import until


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
