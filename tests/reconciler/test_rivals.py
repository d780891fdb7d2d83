"""Two requests for one pod: one holds it from its first attempt until it has ended, whatever the order of the two."""

from collections.abc import Mapping
from typing import Any

import pytest

from bowline.api import names
from bowline.api.meta import ObjectKey
from tests.reconciler.stage import Hold, Scripted, Stage, Working
from tests.waiting import until

OURS: Mapping[str, Any] = {"finalizers": [names.FINALIZER]}
# Both requests are of the same second or of neighbouring ones.
FIRST, SECOND = "b", "a"
NODES = ("gpu-node-0", "gpu-node-1")


async def begin(stage: Stage, hold: Hold) -> str:
    """Create the pod and the first request, and wait until its attempt has begun; returns the request's UID."""
    await stage.create_pod()
    uid = await stage.request_bind(FIRST, NODES[0], podName="pod", metadata=OURS)
    await hold.reached.wait()
    return uid


async def waits(stage: Stage, working: Working, name: str) -> None:
    await until(lambda: {"Wait", "RequeueAfter"} & set(working.decided(stage.namespace, name)))


async def test_no_request_begins_while_another_one_of_its_pod_has_begun(stage: Stage) -> None:
    hold = Hold()
    plugin = Scripted(effects=True, pre_bind=hold)
    async with stage.working(plugin) as working:
        uid = await begin(stage, hold)
        await stage.request_bind(SECOND, NODES[1], podName="pod", metadata=OURS)
        await waits(stage, working, SECOND)
        assert plugin.points(SECOND) == []
        hold.go.set()
        assert (await stage.phase(FIRST, "Succeeded"))["nodeName"] == NODES[0]
        status = await stage.phase(SECOND, "Failed")
    pod = await stage.pod()
    assert pod["spec"]["nodeName"] == NODES[0]
    assert pod["metadata"]["annotations"][names.PREPARED_FOR] == uid
    assert status["reason"].startswith("BoundElsewhere")
    assert "pre_bind" not in plugin.points(SECOND)


async def test_a_request_that_no_watch_shows_yet_waits_as_well(stage: Stage) -> None:
    hold = Hold()
    plugin = Scripted(effects=True, pre_bind=hold)
    async with stage.working(plugin) as working:
        await begin(stage, hold)
        await working.hang("bindrequests")
        await stage.request_bind(SECOND, NODES[1], podName="pod", metadata=OURS)
        key = ObjectKey(stage.namespace, SECOND)
        working.parts.controller.queue.add(key)
        await waits(stage, working, SECOND)
        assert working.seen(stage.namespace, SECOND) is None, "it was read live"
        assert plugin.points(SECOND) == []
        hold.go.set()
        await stage.phase(FIRST, "Succeeded")
        working.go_on("bindrequests")
        assert (await stage.phase(SECOND, "Failed"))["reason"].startswith("BoundElsewhere")
    assert (await stage.pod())["spec"]["nodeName"] == NODES[0]


@pytest.mark.parametrize("node", NODES)
async def test_a_bound_pod_is_never_attempted_while_its_watch_shows_it_as_unbound(stage: Stage, node: str) -> None:
    """The other request waits until the first has ended, or is created after that."""
    hold = Hold()
    plugin = Scripted(effects=True, pre_bind=hold)
    async with stage.working(plugin) as working:
        uid = await begin(stage, hold)
        await stage.request_bind(SECOND, node, podName="pod", metadata=OURS)
        await waits(stage, working, SECOND)
        await working.hang("pods")
        hold.go.set()
        await stage.phase(FIRST, "Succeeded")
        await stage.phase(SECOND, "Succeeded" if node == NODES[0] else "Failed")
        await stage.request_bind("later", node, podName="pod", metadata=OURS)
        await stage.phase("later", "Succeeded" if node == NODES[0] else "Failed")
        assert working.parts.informers.pods.store.uid(ObjectKey(stage.namespace, "pod")), "its watch hangs"
    assert "pre_bind" not in plugin.points(SECOND) + plugin.points("later")
    assert (await stage.pod())["metadata"]["annotations"][names.PREPARED_FOR] == uid
