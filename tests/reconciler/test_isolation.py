"""A call that hangs or fails for one object concerns only its request: reported, and no delay for others."""

import pytest

from bowline.api import names
from bowline.framework.config import Binding
from bowline.framework.interface.binding_plugin import Budgets
from bowline.kube.client import ClientOptions
from bowline.kube.config import ClusterAccess
from bowline.kube.resources import NAMESPACES
from bowline.plugins.default_binder import DefaultBinder
from bowline.runtime.workqueue import SLOW_S
from bowline.testing.fault_proxy.faults import FaultGate, Hold
from bowline.testing.fault_proxy.rules import CallMatch, FaultRule
from bowline.testing.fault_proxy.server import FaultProxy
from bowline_reconciler.app import connections
from bowline_reconciler.drive.state import Progress
from tests.reconciler.stage import NO_FLIGHT, Stage, Working
from tests.waiting import until

Proxied = tuple[FaultProxy, ClusterAccess]

# As many as there are workers.
BROKEN = 16
FEW = Binding(workers=BROKEN, in_flight_timeout=NO_FLIGHT)
HEALTHY, HUNG = 5, 3


async def test_requests_bind_while_every_call_of_other_namespaces_hangs(
    stage: Stage, proxy_route: Proxied, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The namespaces arrive one after another. No hanging call ends before the healthy requests are bound."""
    proxy, access = proxy_route
    gates = [FaultGate() for _ in range(HUNG)]
    for number in range(HEALTHY):
        await stage.create_pod(f"healthy-{number}")
    # No call ends by the client's own timeout, or by that of the plugin's calls.
    monkeypatch.setattr(DefaultBinder, "budgets", Budgets(call_s=600))
    options = ClientOptions(
        names.FIELD_MANAGER_RECONCILER, timeout_s=600, connections=connections(BROKEN), clock=stage.clock
    )
    async with stage.working(access=access, options=options, binding=FEW) as working:
        hung_stages = []
        try:
            for number, gate in enumerate(gates):
                hung_stage = Stage(stage.client, stage.access, f"{stage.namespace}-hung-{number}")
                hung_stages.append(hung_stage)
                await stage.client.create(NAMESPACES, "", {"metadata": {"name": hung_stage.namespace}})
                proxy.add(FaultRule(Hold(gate), CallMatch(("create",), "pods", "binding", hung_stage.namespace)))
                await _hang(hung_stage, working, gate)
            for number in range(HEALTHY):
                await stage.request_bind(f"healthy-{number}")
            for number in range(HEALTHY):
                assert (await stage.phase(f"healthy-{number}", "Succeeded")).get("failedAttempts", 0) == 0
            for number in range(HEALTHY):
                assert await stage.event(f"healthy-{number}", names.EVENT_BOUND)
            assert not [e for e in proxy.exchanges() if e.fault == Hold.__name__], "a hanging call has ended"
        finally:
            for gate in gates:
                gate.open()
            for hung_stage in hung_stages:
                await hung_stage.clear()


async def _hang(other: Stage, working: Working, gate: FaultGate) -> None:
    """Create more requests than there are workers, and wait until the calls of all that are started hang."""
    for number in range(BROKEN):
        await other.create_pod(f"hung-{number}")
    for number in range(BROKEN):
        await other.request_bind(f"hung-{number}", backoffLimit=100)
    await until(lambda: gate.wait_reached(0))
    states = working.parts.memory.states

    def lasts() -> bool:
        since = [state.stage.since for _, state in states.items() if isinstance(state.stage, Progress)]
        return bool(working.parts.controller.queue.depth) and all(
            other.clock.monotonic() - began > SLOW_S for began in since if began is not None
        )

    await until(lasts)
