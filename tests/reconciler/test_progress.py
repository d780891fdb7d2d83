"""What is unfinished is reported by the clock, in status and event: which call hangs, while it hangs."""

from datetime import timedelta

from bowline.kube.config import ClusterAccess
from bowline.kube.resources import EVENTS
from bowline.testing.fault_proxy.faults import FaultGate, Hold
from bowline.testing.fault_proxy.rules import CallMatch, FaultRule
from bowline.testing.fault_proxy.server import FaultProxy
from tests.reconciler.stage import Scripted, Stage
from tests.waiting import until, until_awaited

BINDING = CallMatch(("create",), "pods", "binding")


async def reported(stage: Stage, *texts: str) -> None:
    """Wait until the status has these texts; the event has them too."""
    await until_awaited(stage.status, lambda status: all(text in status.get("reason", "") for text in texts))
    await until_awaited(lambda: notes(stage, "pod"), lambda written: texts[-1] in written)


async def notes(stage: Stage, name: str) -> str:
    """The notes of the events about a pod."""
    events = (await stage.client.list(EVENTS, stage.namespace))["items"]
    return " ".join(event["note"] for event in events if event["regarding"].get("name") == name)


async def test_a_call_that_hangs_is_reported_while_it_hangs(
    stage: Stage, proxy_route: tuple[FaultProxy, ClusterAccess]
) -> None:
    """Afterwards its writes meet the version of the report: another reconcile goes on, and no attempt has failed."""
    proxy, access = proxy_route
    gate = FaultGate()
    proxy.add(FaultRule(Hold(gate), BINDING, nth=1))
    async with stage.working(Scripted(effects=True), access=access):
        try:
            await stage.create_pod()
            await stage.request_bind()
            await until(lambda: gate.wait_reached(0))
            stage.clock.passed += timedelta(seconds=6)
            await reported(stage, "plugin default_binder, bind", "POST pods/binding ")
            assert not [e for e in proxy.exchanges() if e.fault == Hold.__name__], "it still hangs"
        finally:
            gate.open()
        assert "failedAttempts" not in await stage.phase("pod", "Succeeded")
    posts = [e for e in proxy.exchanges() if BINDING.covers(e.call)]
    assert len(posts) == 1
