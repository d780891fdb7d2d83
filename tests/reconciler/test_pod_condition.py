"""The PodBound condition: best effort after the request's status, and never False for a bound pod."""

from datetime import UTC, datetime
from typing import Any

import pytest

from bowline.api import names
from bowline.framework.binding.context import BindContext
from bowline.framework.config import Binding
from bowline.framework.plugin_status import Status
from bowline.kube.config import ClusterAccess
from bowline.kube.messages import PatchType
from bowline.kube.resources import PODS
from bowline.testing.fault_proxy.faults import FaultGate, Hold
from bowline.testing.fault_proxy.rules import CallMatch, FaultRule
from bowline.testing.fault_proxy.server import FaultProxy
from bowline_reconciler.binding.pod_conditions import PodConditions
from bowline_reconciler.decide.actions import PodBound
from tests.reconciler.stage import NO_FLIGHT, Scripted, Stage

NOW = datetime(2026, 1, 1, tzinfo=UTC)
WHY = PodBound("False", "Rejected", "no luck")


async def seen(stage: Stage) -> dict[str, Any]:
    """Create the pod and return it as an attempt has read it."""
    await stage.create_pod()
    return await stage.pod()


async def pod_bound(stage: Stage) -> list[tuple[str, str]]:
    conditions = (await stage.pod())["status"].get("conditions") or ()
    return [
        (condition["status"], condition["reason"])
        for condition in conditions
        if condition["type"] == names.CONDITION_POD_BOUND
    ]


async def bind(stage: Stage) -> None:
    """Bind the pod as a new leader does, and set its condition."""
    target = {"metadata": {"name": "pod"}, "target": {"apiVersion": "v1", "kind": "Node", "name": "gpu-node-0"}}
    await stage.client.create(PODS, stage.namespace, target, name="pod", subresource="binding")
    condition = {"type": names.CONDITION_POD_BOUND, "status": "True", "reason": "Bound"}
    body = {"status": {"conditions": [condition]}}
    await stage.client.patch(
        PODS, stage.namespace, "pod", body, subresource="status", content_type=PatchType.STRATEGIC
    )


async def touch(stage: Stage) -> None:
    """Change the pod as a plugin does during an attempt."""
    await stage.client.patch(PODS, stage.namespace, "pod", {"metadata": {"labels": {"touched": "yes"}}})


async def nothing(stage: Stage) -> None:
    """Leave the pod unchanged."""


@pytest.mark.parametrize(
    ("meanwhile", "condition"),
    [
        pytest.param(nothing, [("False", "Rejected")], id="no change since"),
        pytest.param(touch, [("False", "Rejected")], id="the pod has changed and is unbound"),
        pytest.param(bind, [("True", "Bound")], id="the pod has been bound"),
    ],
)
async def test_the_condition_of_a_pod_that_was_not_bound(
    stage: Stage, meanwhile: Any, condition: list[tuple[str, str]]
) -> None:
    pod = await seen(stage)
    await meanwhile(stage)
    await PodConditions(stage.client).patch(pod, WHY, None, NOW)
    assert await pod_bound(stage) == condition


async def test_a_hanging_webhook_on_pods_status_occupies_no_worker(
    stage: Stage, proxy_route: tuple[FaultProxy, ClusterAccess]
) -> None:
    proxy, access = proxy_route
    gate = FaultGate()
    proxy.add(FaultRule(Hold(gate), CallMatch(("patch",), "pods", "status")))

    async def cannot(ctx: BindContext) -> Status:
        return Status.fatal("no luck") if ctx.request.key.name.startswith("bad") else Status.ok()

    limits = Binding(workers=1, in_flight_timeout=NO_FLIGHT)
    async with stage.working(Scripted(pre_bind=cannot), access=access, binding=limits):
        for name in ("bad-1", "bad-2", "good"):
            await stage.create_pod(name)
            await stage.request_bind(name)
        await stage.phase("good", "Succeeded")
        await stage.phase("bad-2", "Failed")
        gate.open()
