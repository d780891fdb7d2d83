"""The status of a pod that waits or fails: its PodBound condition and ``nominatedNodeName``.

Both are best effort after the request's status, and neither is written of a bound pod.
"""

import asyncio

import pytest

from bowline.api import names
from bowline.kube.resources import CONFIGMAPS, PODS
from bowline.runtime.tasks import cancel_and_wait
from bowline.testing.builders import configmap
from bowline_reconciler.decide.actions import Nomination, PodBound
from bowline_reconciler.drive.pod_conditions import PodConditions
from tests.reconciler.stage import Stage
from tests.reconciler.test_waits import needs
from tests.waiting import until, until_awaited

NODE = "gpu-node-0"


async def nominated(stage: Stage) -> str:
    node: str = (await stage.pod())["status"].get("nominatedNodeName", "")
    return node


async def test_a_pod_is_nominated_while_its_attempt_waits_and_then_bound(stage: Stage) -> None:
    async with stage.working(needs("data")) as working:
        await stage.client.create(CONFIGMAPS, stage.namespace, configmap("data", ready="no"))
        await stage.create_pod()
        await stage.request_bind()
        await stage.past_the_silent_period(working, "pod")
        await until_awaited(lambda: nominated(stage), lambda node: node == NODE)
        assert not (await stage.pod())["status"].get("conditions"), "a wait is no failure"
        await stage.client.patch(CONFIGMAPS, stage.namespace, "data", {"data": {"ready": "yes"}})
        await stage.phase("pod", "Succeeded")
    assert (await stage.pod())["spec"]["nodeName"] == NODE


@pytest.mark.parametrize(
    ("stored_node", "expectation"),
    [pytest.param("other", "other", id="another component's is not removed"), pytest.param(NODE, "", id="removed")],
)
async def test_the_status_of_a_pod_that_has_changed_since(stage: Stage, stored_node: str, expectation: str) -> None:
    await stage.create_pod()
    pod = await stage.pod()
    await stage.client.patch(
        PODS, stage.namespace, "pod", {"status": {"nominatedNodeName": stored_node}}, subresource="status"
    )
    rejected, withdrawn = PodBound("False", "Rejected", "no luck"), Nomination(NODE, is_withdrawn=True)
    await PodConditions(stage.client).patch(pod, rejected, withdrawn, stage.clock.now())
    assert await nominated(stage) == expectation
    (condition,) = (await stage.pod())["status"]["conditions"]
    assert condition["type"] == names.CONDITION_POD_BOUND
    assert (condition["status"], condition["reason"]) == ("False", "Rejected")


async def test_a_pod_that_is_bound_meanwhile_is_neither_nominated_nor_reported_as_unbound(stage: Stage) -> None:
    """The report was queued for an unbound pod; another component has bound it before the write."""
    await stage.create_pod()
    unbound = await stage.pod()
    target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
    body = {"metadata": {"name": "pod", "uid": unbound["metadata"]["uid"]}, "target": target}
    await stage.client.create(PODS, stage.namespace, body, name="pod", subresource="binding")
    bound = await stage.pod()
    conditions, retry = PodConditions(stage.client), PodBound("False", "BindingRetry", "not yet")
    await conditions.patch(unbound, retry, Nomination("gpu-node-1"), stage.clock.now())
    writing = asyncio.create_task(conditions.run())
    await asyncio.sleep(0)  # it takes reports from here on
    conditions.schedule(unbound, retry)
    conditions.schedule(bound, None)  # another report of the pod, which replaces the queued one
    await until(lambda: not len(conditions))
    await cancel_and_wait(writing)
    assert await stage.pod() == bound
