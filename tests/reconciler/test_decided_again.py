"""A pod's request that is made again under its name, which is the pod's, after the former one has ended."""

import pytest

from bowline.api.meta import ObjectKey
from tests.reconciler.stage import Hold, Scripted, Stage

NODES = ("gpu-node-0", "gpu-node-1")


@pytest.mark.parametrize("node", NODES)
async def test_a_bound_pod_is_never_attempted_while_its_watch_shows_it_as_unbound(stage: Stage, node: str) -> None:
    hold = Hold()
    plugin = Scripted(effects=True, pre_bind=hold)
    async with stage.working(plugin) as working:
        await stage.create_pod()
        await stage.request_bind("pod", NODES[0])
        await hold.reached.wait()
        await working.hang("pods")
        hold.go.set()
        await stage.phase("pod", "Succeeded")
        attempts = plugin.points("pod").count("pre_bind")
        await stage.withdraw()
        await stage.request_deleted("pod")
        await stage.request_bind("pod", node)
        status = await stage.phase("pod", "Succeeded" if node == NODES[0] else "Failed")
        assert working.parts.informers.pods.store.uid(ObjectKey(stage.namespace, "pod")), "its watch hangs"
    assert plugin.points("pod").count("pre_bind") == attempts == 1
    assert node == NODES[0] or status["reason"].startswith("BoundElsewhere")
    assert (await stage.pod())["spec"]["nodeName"] == NODES[0]
