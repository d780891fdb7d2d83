"""Requests and pods that are deleted or recreated during an attempt."""

import asyncio
from datetime import timedelta

import pytest

from bowline.api import names
from bowline.api.bindrequest import BindRequest
from bowline.api.meta import Object, ObjectKey, uid_of
from bowline.framework.binding.context import BindContext
from bowline.framework.config import BackoffSettings, Binding
from bowline.framework.plugin_status import Status
from bowline.framework.reason import Reason
from bowline.kube.config import ClusterAccess
from bowline.kube.errors import NotFound
from bowline.kube.messages import PatchType
from bowline.kube.resources import BINDREQUESTS, CONFIGMAPS, NODES, PODS
from bowline.runtime.tasks import shield_write
from bowline.testing.fault_proxy.faults import FaultGate
from bowline.testing.fault_proxy.faults import Hold as OnTheWire
from bowline.testing.fault_proxy.rules import CallMatch, FaultRule
from bowline.testing.fault_proxy.server import FaultProxy
from tests.reconciler.stage import NO_FLIGHT, Hold, Scripted, Stage, Working
from tests.waiting import LIMIT_S, until, until_awaited


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


async def test_an_attempt_ends_when_another_process_reports_its_request_failed(stage: Stage) -> None:
    """As a stalled former leader may do."""
    hold = Hold()
    plugin = Scripted(effects=True, pre_bind=hold)
    async with stage.working(plugin):
        await stage.create_pod()
        await stage.request_bind()
        await hold.reached.wait()
        body = {"status": {"phase": "Failed", "reason": "Rejected: by another"}}
        await stage.client.patch(BINDREQUESTS, stage.namespace, "pod", body, subresource="status")
        await until(lambda: hold.cancelled)
        await until(lambda: "rollback" in plugin.points("pod"))

        async def is_released() -> bool:
            return not (await stage.request())["metadata"].get("finalizers")

        await until_awaited(is_released, bool)
    assert "nodeName" not in (await stage.pod())["spec"]
    assert (await stage.status())["reason"] == "Rejected: by another", "Failed is final"


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


async def test_a_node_replaced_during_an_attempt_gets_no_pod_of_that_attempt(stage: Stage) -> None:
    hold = Hold()
    plugin = Scripted(pre_bind=hold)
    node = f"node-{stage.namespace}"
    await stage.client.create(NODES, "", {"metadata": {"name": node}})
    async with stage.working(plugin) as working:
        await stage.create_pod()
        await stage.request_bind(node=node)
        await hold.reached.wait()
        await working.hang("bindrequests")
        # The cancelled attempt is followed by another one, which must not find the node missing.
        await working.hang("nodes")
        await stage.client.delete(NODES, "", node)
        made = await stage.client.create(NODES, "", {"metadata": {"name": node}})
        working.go_on("nodes")
        uid = made["metadata"]["uid"]
        await until(lambda: (cached := working.parts.informers.node(node)) is not None and uid_of(cached) == uid)
        hold.go.set()
        await stage.phase("pod", "Succeeded")
    assert len(plugin.uids("pre_bind")) == 2, "a separate attempt prepares for the new node"
    await stage.client.delete(NODES, "", node)


async def test_a_recreated_pod_is_never_bound_by_the_old_request(stage: Stage) -> None:
    hold = Hold()
    plugin = Scripted(effects=True, pre_bind=hold)
    async with stage.working(plugin):
        await stage.create_pod()
        await stage.request_bind()
        await hold.reached.wait()
        await stage.delete_pod()
        successor = await stage.create_pod()
        hold.go.set()
        status = await stage.phase("pod", "Failed")
    assert status["reason"].startswith("PodGone")
    assert successor not in status["reason"].partition("asked for")[2]
    assert "nodeName" not in (await stage.pod())["spec"]


async def test_a_withdrawn_decision_is_never_executed_though_the_watch_hangs(stage: Stage) -> None:
    """The request is deleted and recreated with another node while its retry is due and no watch reports it."""
    failure = asyncio.Event()

    async def fails_once(ctx: BindContext) -> Status:
        if not failure.is_set():
            failure.set()
            return Status.retry("not now")
        return Status.ok()

    plugin = Scripted(pre_bind=fails_once)
    # The retry is due when the clock is set forward.
    slow = Binding(
        backoff=BackoffSettings(base=timedelta(hours=1), max=timedelta(hours=1)), in_flight_timeout=NO_FLIGHT
    )
    async with stage.working(plugin, binding=slow) as working:
        await stage.create_pod()
        old = await stage.request_bind(node="gpu-node-0")
        await failure.wait()
        await until(lambda: (seen := working.seen(stage.namespace)) is not None and seen.failed_attempts == 1)
        await working.hang("bindrequests")
        await stage.withdraw()
        new = await stage.request_bind(node="gpu-node-1")
        stage.clock.passed += timedelta(hours=2)
        await stage.client.patch(PODS, stage.namespace, "pod", {"metadata": {"labels": {"touched": "yes"}}})
        # The retry finds the new request by a live read, and does not attempt it until the watch agrees.
        await until(lambda: working.sizes["failing"] == 1)
        assert new not in plugin.uids("pre_bind")
        assert "nodeName" not in (await stage.pod())["spec"]
        working.go_on("bindrequests")
        await stage.phase("pod", "Succeeded")
    assert (await stage.pod())["spec"]["nodeName"] == "gpu-node-1"
    assert plugin.uids("pre_bind").count(old) == 1


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


async def test_a_recreated_request_starts_when_the_old_one_is_rolled_back(stage: Stage) -> None:
    """The finalizer is removed by force, so that the successor is created before the old attempt is rolled back."""
    hold = Hold()
    undone: list[str] = []

    async def prepare(ctx: BindContext) -> Status:
        return await hold(ctx) if ctx.request.selected_node == "gpu-node-0" else Status.ok()

    async def undo(ctx: BindContext) -> Status:
        undone.append(ctx.request.selected_node)
        return Status.ok() if len(undone) > 1 else Status.retry("not yet")

    plugin = Scripted(effects=True, pre_bind=prepare, rollback=undo)
    async with stage.working(plugin):
        await stage.create_pod()
        old = await stage.request_bind(node="gpu-node-0")
        await hold.reached.wait()
        await stage.client.patch(BINDREQUESTS, stage.namespace, "pod", {"metadata": {"finalizers": []}})
        await stage.withdraw()
        new = await stage.request_bind(node="gpu-node-1")
        await stage.phase("pod", "Succeeded")
    assert [(point, uid) for point, _, uid in plugin.calls] == [
        ("pre_bind", old),
        ("rollback", old),
        ("rollback", old),
        ("pre_bind", new),
        ("post_bind", new),
    ]
    assert undone == ["gpu-node-0", "gpu-node-0"]


async def test_no_outcome_of_a_deleted_request_reaches_its_namesake(stage: Stage) -> None:
    """The attempt fails terminally after its request was deleted and recreated, and before any watch reported it."""
    hold = Hold(Status.fatal("never"))
    plugin = Scripted(pre_bind=hold)
    async with stage.working(plugin) as working:
        await stage.create_pod()
        await stage.request_bind()
        await hold.reached.wait()
        await working.hang("bindrequests")
        await stage.withdraw()
        new = await stage.request_bind(node="gpu-node-1")
        plugin.on_pre_bind = None
        hold.go.set()
        # The new request is found by a live read, and not attempted until the watch agrees.
        await until(lambda: working.sizes["failing"] == 1)
        assert new not in plugin.uids("pre_bind")
        assert "phase" not in await stage.status()
        working.go_on("bindrequests")
        status = await stage.phase("pod", "Succeeded", "Failed")
    assert status["phase"] == "Succeeded"
    assert status["nodeName"] == "gpu-node-1"
    assert await stage.events() in ([], ["Bound"])


async def test_a_rollback_without_its_finalizer_outlasts_the_request(stage: Stage) -> None:
    hold = Hold()
    tries: list[str] = []

    async def undo(ctx: BindContext) -> Status:
        tries.append(ctx.request.key.name)
        return Status.ok() if len(tries) == 3 else Status.retry("not yet")

    plugin = Scripted(effects=True, pre_bind=hold, rollback=undo)
    async with stage.working(plugin) as working:
        await stage.create_pod()
        await stage.request_bind()
        await hold.reached.wait()
        await stage.client.patch(BINDREQUESTS, stage.namespace, "pod", {"metadata": {"finalizers": []}})
        await stage.withdraw()
        await until(lambda: len(tries) == 3)
        await until(lambda: working.sizes["requests"] == 0)
    assert plugin.points("pod") == ["pre_bind", "rollback", "rollback", "rollback"]


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


class Writes(Scripted):
    """Creates a ConfigMap beside its siblings, and deletes it in rollback."""

    name = "writes"

    parallel = True

    def applies(self, pod: Object, request: BindRequest) -> bool:
        return request.key.name == "pod"

    async def pre_bind(self, ctx: BindContext) -> Status:
        self._called("pre_bind", ctx)
        body = {"metadata": {"name": "effect"}}
        await shield_write(ctx.client.create(CONFIGMAPS, ctx.request.key.namespace, body))
        return Status.ok()

    async def rollback(self, ctx: BindContext, why: Status) -> Status:
        try:
            await ctx.client.delete(CONFIGMAPS, ctx.request.key.namespace, "effect")
        except NotFound:
            self.calls.append(("nothing to undo", ctx.request.key.name, ctx.request.uid))
        else:
            self._called("rollback", ctx)
        return Status.ok()


class Sibling(Scripted):
    """Runs beside its siblings."""

    name = "sibling"

    parallel = True

    def applies(self, pod: Object, request: BindRequest) -> bool:
        return request.key.name == "pod"


async def test_a_write_in_flight_of_a_deleted_request_is_rolled_back(
    stage: Stage, proxy_route: tuple[FaultProxy, ClusterAccess]
) -> None:
    """Two cancellations meet one create in flight: that of the group, then that of the attempt."""
    gate, sibling = FaultGate(), Hold(Status.retry("no luck"))
    writes = Writes(effects=True)
    proxy, access = proxy_route
    slow = CallMatch(("create",), "configmaps", namespace=stage.namespace, name="effect")
    proxy.add(FaultRule(OnTheWire(gate, outlives=True), slow))
    async with stage.working(writes, Sibling(pre_bind=sibling), access=access) as working:
        await stage.create_pod()
        await stage.request_bind()
        await sibling.reached.wait()
        assert await asyncio.to_thread(gate.wait_reached, LIMIT_S)
        sibling.go.set()
        await until(lambda: calls_under_way(working) == ["writes"])
        await stage.withdraw()
        await until(lambda: deletion_is_seen(working, stage))
        # While another request is bound completely, the write stays in flight.
        await stage.create_pod("other")
        await stage.request_bind("other")
        await stage.phase("other", "Succeeded")
        assert writes.points("pod") == ["pre_bind"]
        gate.open()
        await stage.request_deleted()
    assert writes.points("pod") == ["pre_bind", "rollback"]
    with pytest.raises(NotFound):
        await stage.client.get(CONFIGMAPS, stage.namespace, "effect")


def calls_under_way(working: Working) -> list[str]:
    """Return the plugins of all reconciles whose calls are running."""
    return [call.plugin for call in working.parts.calls.in_progress]
