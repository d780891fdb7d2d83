"""Start of a term: watches first."""

import asyncio
from collections.abc import Iterable

from bowline.framework.interface.handle import EventSource
from bowline.kube.config import ClusterAccess
from bowline.kube.resources import CONFIGMAPS, LEASES, Resource
from bowline.testing.builders import configmap
from bowline.testing.fault_proxy.faults import FaultGate
from bowline.testing.fault_proxy.faults import Hold as OnTheWire
from bowline.testing.fault_proxy.rules import CallMatch, FaultRule
from bowline.testing.fault_proxy.server import FaultProxy
from tests.reconciler.stage import Scripted, Stage
from tests.waiting import LIMIT_S, until


class Runs(Scripted):
    """Records its terms."""

    def __init__(self, sources: Iterable[EventSource] = ()) -> None:
        super().__init__(sources=sources)
        self.terms: list[str] = []

    async def run(self) -> None:
        self.terms.append("run")
        try:
            await asyncio.Event().wait()
        finally:
            self.terms.append("end")


async def test_a_plugins_watch_is_listed_before_its_run_and_named_until_then(
    stage: Stage, proxy_route: tuple[FaultProxy, ClusterAccess]
) -> None:
    await stage.client.create(CONFIGMAPS, stage.namespace, configmap("there"))
    selector = f"metadata.namespace={stage.namespace}"
    plugin = Runs([EventSource(CONFIGMAPS, field_selector=selector, transform=lambda raw: raw)])
    gate = FaultGate()
    proxy, access = proxy_route
    proxy.add(FaultRule(OnTheWire(gate), CallMatch(("list",), "configmaps")))
    async with stage.working(plugin, access=access) as working:
        assert await asyncio.to_thread(gate.wait_reached, LIMIT_S)
        await until(lambda: all(r.synced.is_set() for r in working.parts.informers.reflectors.values()))
        missing = working.parts.unsynced()
        assert missing is not None
        assert missing.startswith("plugin scripted, watch of configmaps")
        assert await stage.client.list_all(LEASES, stage.namespace) == [], (
            "a process that cannot work must not block others"
        )
        gate.open()
        await until(lambda: bool(plugin.terms))
        assert len(working.parts.reflectors["scripted/0"].store) >= 1
        assert working.parts.unsynced() is None


async def test_a_watched_resource_that_is_not_served_blocks_no_leader(stage: Stage) -> None:
    """A plugin may watch a resource that only newer API servers have."""
    later = Resource("later.bowline.dev", "v1", "laters", "Later")
    plugin = Runs([EventSource(later)])
    async with stage.working(plugin) as working:
        await stage.create_pod()
        await stage.request_bind()
        await stage.phase("pod", "Succeeded")
        assert "install its CustomResourceDefinition" in (working.parts.reflectors["scripted/0"].last_error or "")
        assert working.parts.unsynced() is None
    assert plugin.terms == ["run", "end"]
