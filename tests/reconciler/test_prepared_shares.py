"""What a share relies on at its bind, and what hangs for others, with the plugin on a real API server.

The test acts as the agents of reservation pods.
"""

import asyncio

from bowline.api import names
from bowline.kube.client import ClientOptions
from bowline.kube.config import ClusterAccess
from bowline.plugins.gpu_sharing.reservation import reservation_name
from bowline.testing.fault_proxy.faults import FaultGate, Hold
from bowline.testing.fault_proxy.rules import CallMatch, FaultRule
from bowline.testing.fault_proxy.server import FaultProxy
from tests.reconciler.stage import Stage
from tests.reconciler.test_late_shares import Devices, devices
from tests.waiting import until_awaited

__all__ = ["devices"]

NODE = "gpu-node-0"


async def test_a_reservation_that_hangs_delays_no_share_of_another_group(
    stage: Stage, proxy_route: tuple[FaultProxy, ClusterAccess], devices: Devices
) -> None:
    """Joining it hangs, as with a slow webhook for one node or tenant; also if more groups hang than have workers."""
    proxy, access = proxy_route
    gate, slow, swift = FaultGate(), [f"slow{n}" for n in range(20)], [f"swift{n}" for n in range(4)]
    for group in slow:
        name = reservation_name(NODE, devices.group(group))
        proxy.add(FaultRule(Hold(gate), CallMatch(("patch",), "pods", "", devices.namespace, name)))
    options = ClientOptions(name=names.FIELD_MANAGER_RECONCILER, clock=stage.clock, timeout_s=3600)
    async with stage.working(devices.plugin(), access=access, options=options):
        for group in (*slow, *swift):
            await devices.make_pod(group)
        for group in slow:
            await devices.ask(group, group, group)
        await until_awaited(devices.reported, lambda present: len(present) == len(slow))
        assert await asyncio.to_thread(gate.wait_reached, 60)
        for group in swift:
            await devices.ask(group, group, group)

        async def phases() -> set[str]:
            await devices.report()
            return {(await stage.status(group)).get("phase", "") for group in swift}

        await until_awaited(phases, lambda present: present == {"Succeeded"})
        assert {(await stage.status(group)).get("phase", "") for group in slow} <= {"", "Pending"}
        gate.open()
