"""Two requests for one pod: one holds it from its first attempt until it has ended, whatever the order of the two."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from bowline.api import names
from bowline.api.meta import ObjectKey
from bowline.framework.config import Binding
from bowline.framework.plugin_status import Status
from bowline.kube.lease import spec_of_holder
from bowline.kube.resources import BINDREQUESTS, LEASES
from tests.reconciler.stage import Hold, Scripted, Stage, Working
from tests.waiting import until

OURS: Mapping[str, Any] = {"finalizers": [names.FINALIZER]}
# In both orders of names; both requests are of the same second or of neighbouring ones.
ORDERS = pytest.mark.parametrize(("first", "second"), [("a", "b"), ("b", "a")])
NODES = ("gpu-node-0", "gpu-node-1")


async def begin(stage: Stage, first: str, hold: Hold) -> str:
    """Create the pod and the first request, and wait until its attempt has begun; returns the request's UID."""
    await stage.create_pod()
    uid = await stage.request_bind(first, NODES[0], podName="pod", metadata=OURS)
    await hold.reached.wait()
    return uid


async def waits(stage: Stage, working: Working, name: str) -> None:
    await until(lambda: {"Wait", "RequeueAfter"} & set(working.decided(stage.namespace, name)))


@ORDERS
async def test_no_request_begins_while_another_one_of_its_pod_has_begun(
    stage: Stage, first: str, second: str
) -> None:
    hold = Hold()
    plugin = Scripted(effects=True, pre_bind=hold)
    async with stage.working(plugin) as working:
        uid = await begin(stage, first, hold)
        await stage.request_bind(second, NODES[1], podName="pod", metadata=OURS)
        await waits(stage, working, second)
        assert plugin.points(second) == []
        hold.go.set()
        assert (await stage.phase(first, "Succeeded"))["nodeName"] == NODES[0]
        status = await stage.phase(second, "Failed")
    pod = await stage.pod()
    assert pod["spec"]["nodeName"] == NODES[0]
    assert pod["metadata"]["annotations"][names.PREPARED_FOR] == uid
    assert status["reason"].startswith("BoundElsewhere")
    assert "pre_bind" not in plugin.points(second)


@ORDERS
async def test_a_duplicate_that_is_withdrawn_undoes_nothing_of_the_other(
    stage: Stage, first: str, second: str
) -> None:
    hold = Hold()
    plugin = Scripted(effects=True, pre_bind=hold)
    async with stage.working(plugin) as working:
        uid = await begin(stage, first, hold)
        await stage.request_bind(second, NODES[0], podName="pod", metadata=OURS)
        await stage.withdraw(second)
        await waits(stage, working, second)
        assert plugin.points(second) == []
        hold.go.set()
        await stage.phase(first, "Succeeded")
        await stage.request_deleted(second)
    assert plugin.points(second) == [], "its pod is bound: nothing is rolled back"
    assert (await stage.pod())["metadata"]["annotations"][names.PREPARED_FOR] == uid


@ORDERS
async def test_a_request_that_waits_or_pauses_keeps_its_pod(stage: Stage, first: str, second: str) -> None:
    plugin = Scripted(effects=True)
    answers = iter([Status.retry("busy"), Status.wait("a volume")])

    async def answer(_: object) -> Status:
        return next(answers)

    plugin.on_pre_bind = answer
    async with stage.working(plugin) as working:
        await stage.create_pod()
        await stage.request_bind(first, NODES[0], podName="pod")
        await until(lambda: plugin.points(first))
        await stage.request_bind(second, NODES[1], podName="pod")
        await until(lambda: len(plugin.points(first)) == 2)
        await waits(stage, working, second)
        assert plugin.points(second) == []
        plugin.on_pre_bind = None
        await stage.withdraw(first)
        assert (await stage.phase(second, "Succeeded"))["nodeName"] == NODES[1]
    calls = [(point, name) for point, name, _ in plugin.calls]
    assert calls.index(("pre_bind", second)) > calls.index(("rollback", first))


@ORDERS
async def test_a_request_that_no_watch_shows_yet_waits_as_well(stage: Stage, first: str, second: str) -> None:
    hold = Hold()
    plugin = Scripted(effects=True, pre_bind=hold)
    async with stage.working(plugin) as working:
        await begin(stage, first, hold)
        await working.hang("bindrequests")
        await stage.request_bind(second, NODES[1], podName="pod", metadata=OURS)
        key = ObjectKey(stage.namespace, second)
        working.parts.controller.queue.add(key)
        await waits(stage, working, second)
        assert working.seen(stage.namespace, second) is None, "it was read live"
        assert plugin.points(second) == []
        hold.go.set()
        await stage.phase(first, "Succeeded")
        working.go_on("bindrequests")
        assert (await stage.phase(second, "Failed"))["reason"].startswith("BoundElsewhere")
    assert (await stage.pod())["spec"]["nodeName"] == NODES[0]


async def test_a_leader_begins_none_of_two_requests_while_a_write_for_the_other_may_take_effect(stage: Stage) -> None:
    """The former leader may have sent a Binding for either of them."""
    held = spec_of_holder({}, "former", stage.clock.now(), timedelta(seconds=1))
    await stage.client.create(LEASES, stage.namespace, {"metadata": {"name": "reconciler"}, "spec": held})
    await stage.create_pod()
    for name, node in zip("ab", NODES, strict=True):
        await stage.request_bind(name, node, podName="pod")
    plugin = Scripted(effects=True)
    limits = Binding(in_flight_timeout=timedelta(seconds=60))
    async with stage.working(plugin, binding=limits) as working:
        await waits(stage, working, "a")
        await waits(stage, working, "b")
        assert plugin.calls == []
        stage.clock.passed += limits.in_flight_timeout
        await stage.client.patch(BINDREQUESTS, stage.namespace, "a", {"metadata": {"labels": {"again": "yes"}}})
        await stage.phase("a", "Succeeded")


@ORDERS
@pytest.mark.parametrize("node", NODES)
async def test_a_bound_pod_is_never_attempted_while_its_watch_shows_it_as_unbound(
    stage: Stage, first: str, second: str, node: str
) -> None:
    """The other request waits until the first has ended, or is created after that."""
    hold = Hold()
    plugin = Scripted(effects=True, pre_bind=hold)
    async with stage.working(plugin) as working:
        uid = await begin(stage, first, hold)
        await stage.request_bind(second, node, podName="pod", metadata=OURS)
        await waits(stage, working, second)
        await working.hang("pods")
        hold.go.set()
        await stage.phase(first, "Succeeded")
        await stage.phase(second, "Succeeded" if node == NODES[0] else "Failed")
        await stage.request_bind("later", node, podName="pod", metadata=OURS)
        await stage.phase("later", "Succeeded" if node == NODES[0] else "Failed")
        assert working.parts.informers.pods.store.uid(ObjectKey(stage.namespace, "pod")), "its watch hangs"
    assert "pre_bind" not in plugin.points(second) + plugin.points("later")
    assert (await stage.pod())["metadata"]["annotations"][names.PREPARED_FOR] == uid
