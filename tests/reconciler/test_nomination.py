"""``status.nominatedNodeName`` of a pod whose attempt waits: set with the report, removed with the decision."""

from typing import Any

import pytest

from bowline.kube.resources import CONFIGMAPS, PODS
from bowline.testing.builders import configmap
from bowline_reconciler.binding.pod_conditions import PodConditions
from bowline_reconciler.decide.actions import Nomination, PodBound
from tests.reconciler.stage import Scripted, Stage
from tests.reconciler.test_waits import needs
from tests.waiting import until, until_awaited

NODE = "gpu-node-0"


async def nominated(stage: Stage) -> str:
    node: str = (await stage.pod())["status"].get("nominatedNodeName", "")
    return node


async def becomes(stage: Stage, node: str) -> None:
    await until_awaited(lambda: nominated(stage), lambda value: value == node)


async def waits(stage: Stage, plugin: Scripted, working: Any, annotations: dict[str, str] | None = None) -> None:
    """Create a pod and its request, and let its attempt wait until the wait is reported."""
    await stage.client.create(CONFIGMAPS, stage.namespace, configmap("data", ready="no"))
    await stage.create_pod(annotations=annotations)
    await stage.request_bind()
    await stage.past_the_silent_period(working, "pod")
    await becomes(stage, NODE)


async def test_a_pod_is_nominated_while_its_attempt_waits_and_then_bound(stage: Stage) -> None:
    plugin = needs("data")
    async with stage.working(plugin) as working:
        await waits(stage, plugin, working)
        assert not (await stage.pod())["status"].get("conditions"), "a wait is no failure"
        await stage.client.patch(CONFIGMAPS, stage.namespace, "data", {"data": {"ready": "yes"}})
        await stage.phase("pod", "Succeeded")
    assert (await stage.pod())["spec"]["nodeName"] == NODE


@pytest.mark.parametrize(
    ("stored_node", "nomination", "expectation"),
    [
        pytest.param("other", Nomination(NODE, is_withdrawn=True), "other", id="another component's is not removed"),
        pytest.param(NODE, Nomination(NODE, is_withdrawn=True), "", id="removed"),
    ],
)
async def test_the_nomination_of_a_pod_that_has_changed_since(
    stage: Stage, stored_node: str, nomination: Nomination, expectation: str
) -> None:
    await stage.create_pod()
    pod = await stage.pod()
    await stage.client.patch(
        PODS, stage.namespace, "pod", {"status": {"nominatedNodeName": stored_node}}, subresource="status"
    )
    await PodConditions(stage.client).patch(
        pod, PodBound("False", "Rejected", "no luck"), nomination, stage.clock.now()
    )
    assert await nominated(stage) == expectation


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
    conditions.start()
    conditions.schedule(unbound, retry)
    conditions.schedule(bound, None)  # another report of the pod, which replaces the queued one
    await until(lambda: not len(conditions))
    await conditions.stop()
    assert await stage.pod() == bound
