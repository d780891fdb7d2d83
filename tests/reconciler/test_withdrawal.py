"""Requests and pods that are deleted or recreated during an attempt."""

from datetime import timedelta

import pytest

from bowline.api import names
from bowline.api.meta import ObjectKey
from bowline.framework.plugin_status import Status
from bowline.framework.reason import Reason
from bowline.kube.messages import PatchType
from bowline.kube.resources import NODES, PODS
from tests.reconciler.stage import Hold, Scripted, Stage, Working
from tests.waiting import until, until_awaited


def deletion_is_seen(working: Working, stage: Stage) -> bool:
    seen = working.seen(stage.namespace)
    return seen is not None and seen.deleting


async def test_a_request_deleted_while_it_is_prepared_is_cancelled_and_undone(stage: Stage) -> None:
    hold = Hold()
    plugin = Scripted(effects=True, pre_bind=hold)
    async with stage.working(plugin):
        await stage.create_pod()
        await stage.request_bind()
        await hold.reached.wait()
        assert (await stage.request())["metadata"]["finalizers"] == [names.FINALIZER]
        await stage.withdraw()
        await stage.request_deleted()
    assert hold.cancelled
    assert plugin.points("pod") == ["pre_bind", "rollback"]
    assert plugin.reasons[0].reason is Reason.SUPERSEDED
    assert "nodeName" not in (await stage.pod())["spec"]
    assert await stage.events() == []


async def test_a_request_deleted_past_the_point_of_no_return_is_still_bound(stage: Stage) -> None:
    hold = Hold(Status.skip())
    plugin = Scripted(effects=True, bind=hold)
    async with stage.working(plugin) as working:
        await stage.create_pod()
        await stage.request_bind()
        await hold.reached.wait()
        await stage.withdraw()
        await until(lambda: deletion_is_seen(working, stage))
        hold.go.set()
        await stage.request_deleted()
    assert not hold.cancelled
    assert plugin.points("pod") == ["pre_bind", "post_bind"]
    assert (await stage.pod())["spec"]["nodeName"] == "gpu-node-0"


async def test_no_pod_is_bound_to_a_node_that_is_cordoned_during_its_attempt(stage: Stage) -> None:
    hold = Hold()
    plugin = Scripted(effects=True, pre_bind=hold)
    node = f"node-{stage.namespace}"
    await stage.client.create(NODES, "", {"metadata": {"name": node}})
    async with stage.working(plugin) as working:
        await stage.create_pod(tolerations=[])
        await stage.request_bind(node=node)
        await hold.reached.wait()
        await working.hang("bindrequests")
        await stage.client.patch(NODES, "", node, {"spec": {"unschedulable": True}})
        await until(lambda: "spec" in (working.parts.informers.node(node) or {}))
        hold.go.set()
        status = await stage.phase("pod", "Failed", "Succeeded")
    assert status["reason"].startswith("NodeUnschedulable: ")
    assert "nodeName" not in (await stage.pod())["spec"]
    assert plugin.points("pod")[-1] == "rollback"
    await stage.client.delete(NODES, "", node)


@pytest.mark.parametrize("successors", [0, 2])
async def test_a_request_that_waits_is_never_executed_after_its_deletion_though_the_watch_hangs(
    stage: Stage, successors: int
) -> None:
    """It is made again for another node; of two successors, the first has failed when the pod's gate opens."""
    key = ObjectKey(stage.namespace, "pod")

    def is_idle(working: Working, gates: int) -> bool:
        pod, queue = working.parts.informers.pod_view(key), working.parts.queue.snapshot(1000)
        return pod is not None and len(pod.gates) == gates and key not in {*dict(queue.ready), *queue.processing}

    async with stage.working() as working:
        await stage.create_pod(schedulingGates=[{"name": "example.com/hold"}])
        await stage.request_bind(node="gpu-node-0")
        await until(lambda: working.sizes["waitIndex"] == 1)
        await working.hang("bindrequests")
        await stage.withdraw()
        for number in range(successors):
            if number:
                await stage.withdraw()
            uid = await stage.request_bind(node="gpu-node-1")
            while successors > 1 and not number and "phase" not in await stage.status():
                stage.clock.passed += timedelta(minutes=10)
                body = {"metadata": {"labels": {"touched": str(stage.clock.passed.seconds)}}}
                await stage.client.patch(PODS, stage.namespace, "pod", body)
                await until(lambda: is_idle(working, 1))
        ungate = [{"op": "remove", "path": "/spec/schedulingGates"}]
        await stage.client.patch(PODS, stage.namespace, "pod", ungate, content_type=PatchType.JSON)
        await until(lambda: is_idle(working, 0))
        assert "nodeName" not in (await stage.pod())["spec"]
        working.go_on("bindrequests")
        if successors:
            await stage.phase("pod", "Succeeded")
            bound_pod = await stage.pod()
            assert bound_pod["spec"]["nodeName"] == "gpu-node-1"
            assert bound_pod["metadata"]["annotations"][names.PREPARED_FOR] == uid
        else:
            await until(lambda: not working.sizes["requests"])


async def test_a_request_without_a_uid_is_for_the_current_pod_though_the_watch_lags(
    stage: Stage,
) -> None:
    async with stage.working() as working:
        await stage.create_pod()
        await until(lambda: working.parts.informers.pod(ObjectKey(stage.namespace, "pod")) is not None)
        await working.hang("pods")
        await stage.delete_pod()
        await stage.create_pod()
        await stage.request_bind(podUID="")
        await until_awaited(stage.request, lambda seen: "ownerReferences" in seen["metadata"])
        working.go_on("pods")
        status = await stage.phase("pod", "Succeeded", "Failed")
    assert status["phase"] == "Succeeded", status.get("reason")
