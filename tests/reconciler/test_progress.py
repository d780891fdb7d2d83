"""What is unfinished is reported by the clock: which call hangs or how it was answered, while the fault lasts."""

from datetime import timedelta

import pytest

from bowline.framework.interface.context import BindContext
from bowline.framework.interface.status import Status
from bowline.kube.config import ClusterAccess
from bowline.kube.resources import EVENTS, PODS
from bowline.testing.fault_proxy.faults import FaultAnswer, FaultGate, Hold
from bowline.testing.fault_proxy.rules import CallMatch, FaultRule
from bowline.testing.fault_proxy.server import FaultProxy
from tests.reconciler.stage import Scripted, Stage
from tests.waiting import until, until_awaited

BINDING = CallMatch(("create",), "pods", "binding")
NO_RIGHT = 'pods is forbidden: User "r" cannot create resource "pods/binding" in API group "" in the namespace "x"'


async def prepares(ctx: BindContext) -> Status:
    """Label the pod, as a plugin for devices does."""
    namespace, name = ctx.request.pod_key.namespace, ctx.request.pod_key.name
    await ctx.client.patch(PODS, namespace, name, {"metadata": {"labels": {"device": "0"}}})
    return Status.ok()


async def reported(stage: Stage, *texts: str) -> None:
    """Wait until the status has these texts; the event has them too."""
    await until_awaited(stage.status, lambda status: all(text in status.get("reason", "") for text in texts))
    await until_awaited(lambda: notes(stage, "pod"), lambda written: texts[-1] in written)


async def notes(stage: Stage, name: str) -> str:
    """The notes of the events about a pod."""
    events = (await stage.client.list(EVENTS, stage.namespace))["items"]
    return " ".join(event["note"] for event in events if event["regarding"].get("name") == name)


@pytest.mark.parametrize(
    ("match", "texts"),
    [
        pytest.param(CallMatch(("patch",), "pods", ""), ("plugin scripted, pre_bind", "PATCH pods "), id="the label"),
        pytest.param(BINDING, ("plugin default_binder, bind", "POST pods/binding "), id="the Binding"),
    ],
)
async def test_a_call_that_hangs_is_reported_while_it_hangs(
    stage: Stage, proxy_route: tuple[FaultProxy, ClusterAccess], match: CallMatch, texts: tuple[str, ...]
) -> None:
    """Afterwards its writes meet the version of the report: another reconcile goes on, and no attempt has failed."""
    proxy, access = proxy_route
    gate = FaultGate()
    proxy.add(FaultRule(Hold(gate), match, nth=1))
    async with stage.working(Scripted(effects=True, pre_bind=prepares), access=access):
        try:
            await stage.create_pod()
            await stage.request_bind()
            await until(lambda: gate.wait_reached(0))
            stage.clock.passed += timedelta(seconds=6)
            await reported(stage, *texts)
            assert not [e for e in proxy.exchanges() if e.fault == Hold.__name__], "it still hangs"
        finally:
            gate.open()
        assert "failedAttempts" not in await stage.phase("pod", "Succeeded")
    posts = [e for e in proxy.exchanges() if BINDING.covers(e.call)]
    assert len(posts) == 1


@pytest.mark.parametrize(
    ("fault", "texts"),
    [
        pytest.param(FaultAnswer(429, retry_after_s=1, message="busy"), ("Retrying: ", "429", "busy"), id="429"),
        pytest.param(FaultAnswer(403, message=NO_RIGHT), ("Retrying: ",
            'the reconciler lacks a right (apiGroups: [""], resources: ["pods/binding"]'), id="a lost right"),
    ],
)  # fmt: skip
async def test_an_answer_is_reported_while_it_is_repeated(
    stage: Stage, proxy_route: tuple[FaultProxy, ClusterAccess], fault: FaultAnswer, texts: tuple[str, ...]
) -> None:
    proxy, access = proxy_route
    proxy.add(FaultRule(fault, BINDING))
    stage.clock.stop()  # the failures would count as the request's own after ten seconds
    async with stage.working(access=access) as working:
        await stage.create_pod()
        await stage.request_bind()
        await until(lambda: working.sizes["unfinished"] == 1)
        await until(lambda: working.sizes["failing"] == 1)
        stage.clock.passed += timedelta(seconds=6)
        await reported(stage, *texts)
        proxy.clear()
        assert "failedAttempts" not in await stage.phase("pod", "Succeeded")
        await until(lambda: working.sizes["unfinished"] == 0)
