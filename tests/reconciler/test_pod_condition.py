"""PodBound=False is a claim about now: whoever is late with it must not say it of a pod that has been bound."""

from datetime import UTC, datetime
from typing import Any

import pytest

from reconciler.binding.writer import Writer
from reconciler.decide.outcome import PodBound
from shared.api import names
from shared.framework.binding.context import BindContext
from shared.framework.status import Status
from shared.kube.client import PatchType
from shared.kube.resources import PODS
from tests.reconciler.stage import Scripted, Stage

NOW = datetime(2026, 1, 1, tzinfo=UTC)
WHY = PodBound("False", "Rejected", "no luck")


async def seen(stage: Stage) -> dict[str, Any]:
    """Create the pod and return it as an attempt has seen it."""
    await stage.create_pod()
    return await stage.pod()


async def said(stage: Stage) -> list[tuple[str, str]]:
    conditions = (await stage.pod())["status"].get("conditions") or ()
    return [(one["status"], one["reason"]) for one in conditions if one["type"] == names.CONDITION_POD_BOUND]


async def bind(stage: Stage) -> None:
    """Bind the pod as a new leader does, and say so."""
    target = {"metadata": {"name": "pod"}, "target": {"apiVersion": "v1", "kind": "Node", "name": "gpu-node-0"}}
    await stage.client.create(PODS, stage.namespace, target, name="pod", subresource="binding")
    condition = {"type": names.CONDITION_POD_BOUND, "status": "True", "reason": "Bound"}
    body = {"status": {"conditions": [condition]}}
    await stage.client.patch(
        PODS, stage.namespace, "pod", body, subresource="status", content_type=PatchType.STRATEGIC
    )


async def touch(stage: Stage) -> None:
    """Change the pod as a plugin does under way."""
    await stage.client.patch(PODS, stage.namespace, "pod", {"metadata": {"labels": {"touched": "yes"}}})


async def nothing(stage: Stage) -> None:
    """Leave the pod as it was seen."""


@pytest.mark.parametrize(
    ("meanwhile", "condition"),
    [
        pytest.param(nothing, [("False", "Rejected")], id="nothing has happened since"),
        pytest.param(touch, [("False", "Rejected")], id="the pod has changed and is still unbound"),
        pytest.param(bind, [("True", "Bound")], id="the pod has been bound"),
    ],
)
async def test_what_is_said_of_a_pod_that_was_not_bound(
    stage: Stage, meanwhile: Any, condition: list[tuple[str, str]]
) -> None:
    pod = await seen(stage)
    await meanwhile(stage)
    await Writer(stage.client, lambda _: None).pod_unbound(pod, WHY, NOW)
    assert await said(stage) == condition


async def test_nothing_is_said_of_another_pod_of_the_name(stage: Stage) -> None:
    pod = await seen(stage)
    await stage.client.delete(PODS, stage.namespace, "pod", grace_period_s=0)
    await Writer(stage.client, lambda _: None).pod_unbound(pod, WHY, NOW)
    await stage.create_pod()
    await Writer(stage.client, lambda _: None).pod_unbound(pod, WHY, NOW)
    assert await said(stage) == []


async def test_a_pod_that_is_bound_at_last_says_so_also_if_no_watch_has_shown_that_it_was_not(stage: Stage) -> None:
    async def fails_while_the_watch_hangs(c: BindContext) -> Status:
        if c.attempt > 1:
            return Status.ok()
        await working.hang("pods")
        return Status.retry("no luck")

    async with stage.working(Scripted(pre_bind=fails_while_the_watch_hangs)) as working:
        await stage.create_pod()
        await stage.request_bind()
        await stage.phase("pod", "Succeeded")
    assert await said(stage) == [("True", "Bound")]


async def test_a_pod_that_takes_no_condition_keeps_no_request_from_its_end(stage: Stage) -> None:
    """Bound by somebody's own plugin with an annotation for which the API server refuses every later update."""

    async def spoils(c: BindContext) -> Status:
        if c.attempt == 1:
            return Status.retry("no luck")
        metadata = {"name": "pod", "annotations": {"not a name": "x"}}
        target = {"metadata": metadata, "target": {"apiVersion": "v1", "kind": "Node", "name": "gpu-node-0"}}
        await c.client.create(PODS, stage.namespace, target, name="pod", subresource="binding")
        return Status.ok()

    async with stage.working(Scripted(bind=spoils)):
        await stage.create_pod()
        await stage.request_bind()
        await stage.phase("pod", "Succeeded")
    assert await said(stage) == [("False", "BindingRetry")], "refused"
