"""A write that a policy changes before it is stored: the request waits with that reason, and nothing of it is left.

On a real API server: the proxy changes one written field, as an admission policy does. Whatever the write is, its pod
is not bound, no attempt is counted, and nothing is left once the request is withdrawn.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from bowline.api import names
from bowline.framework.config import Settings
from bowline.framework.interface.plugin import Plugin
from bowline.framework.interface.waiting import BindTimeoutConfig
from bowline.kube.config import ClusterAccess
from bowline.kube.resources import RESOURCECLAIMS
from bowline.localcluster.cluster import Cluster
from bowline.plugins.dynamic_resources.plugin import DynamicResources
from bowline.testing.fault_proxy.faults import Rewrite
from bowline.testing.fault_proxy.rules import CallMatch, FaultRule
from bowline.testing.fault_proxy.server import FaultProxy
from tests.plugins.claims import claim, claim_decisions, publish
from tests.reconciler.devices import Devices, devices
from tests.reconciler.stage import Scripted, Stage, Working, touch
from tests.waiting import until_awaited

__all__ = ["devices"]  # a fixture


def changing(path: tuple[str, ...], value: Any) -> Rewrite:
    """The change of one field, if it is written."""

    def change(body: dict[str, Any]) -> None:
        *parts, field = path
        parent: Any = body
        for part in parts:
            parent = parent.get(part) or {}
        if parent.get(field):
            parent[field] = value

    return Rewrite(change)


@dataclass(frozen=True, slots=True)
class Place:
    """The objects of a test."""

    stage: Stage
    devices: Devices

    async def share(self) -> Plugin:
        """Request half a GPU."""
        await self.devices.make_pod()
        await self.devices.ask("a")
        return self.devices.plugin()

    async def effects(self) -> Plugin:
        """Request a plugin's side effects."""
        await self.stage.create_pod()
        await self.stage.request_bind()
        return Scripted(effects=True)

    async def claim(self) -> Plugin:
        """Request the devices of a ResourceClaim."""
        await self.stage.client.create(RESOURCECLAIMS, self.stage.namespace, claim("one"))
        await self.stage.create_pod(resourceClaims=[{"name": "dev", "resourceClaimName": "one"}])
        await self.stage.request_bind(**claim_decisions("dev"))
        return DynamicResources(BindTimeoutConfig(), Settings())

    async def left(self) -> list[str]:
        """Return what is left of a request that was withdrawn."""
        pod = await self.stage.pod()
        left = [key for key in pod["metadata"].get("labels") or {} if key.startswith("runai")]
        left += [each["metadata"]["name"] for each in await self.devices.maps()]
        left += [each["metadata"]["name"] for each in await self.devices.reservations()]
        claims = await self.stage.client.list_all(RESOURCECLAIMS, self.stage.namespace)
        return left + [str(each["status"]) for each in claims if each.get("status")]


OTHER_CONSUMER = [{"resource": "pods", "name": "other", "uid": "other"}]
# A row for each kind of call, which the client compares: scenario, call, field, and the value that replaces it.
WRITES: Mapping[str, tuple[str, str, tuple[str, ...], Any]] = {
    "label of the group": ("share", "patch pods", ("metadata", "labels", names.LABEL_GPU_GROUP), "other"),
    "devices": ("share", "create configmaps", ("data", names.VISIBLE_DEVICES), "all"),
    "finalizer": ("effects", "patch bindrequests", ("metadata", "finalizers"), []),
    "consumers": ("claim", "update resourceclaims", ("status", "reservedFor"), OTHER_CONSUMER),
}


@pytest.mark.parametrize("write", WRITES)
async def test_a_write_that_is_stored_otherwise_prepares_nothing(
    bare_cluster: Cluster, stage: Stage, proxy_route: tuple[FaultProxy, ClusterAccess], devices: Devices, write: str
) -> None:
    scenario, call, path, value = WRITES[write]
    if scenario == "claim":
        publish(bare_cluster)
    proxy, access = proxy_route
    verb, resource = call.split()
    subresource = "status" if path[0] == "status" else ""
    proxy.add(FaultRule(changing(path, value), CallMatch((verb,), resource, subresource)))
    place = Place(stage, devices)
    plugin = await getattr(place, scenario)()
    async with stage.working(plugin, access=access) as working:
        status = await until_awaited(lambda: reported_status(devices, working), is_reported)
        assert all(part in status["reason"] for part in path)
        assert status["phase"] == "Pending"
        assert not status.get("failedAttempts")
        assert "True" not in [entry["status"] for entry in status.get("conditions") or ()]
        assert "nodeName" not in (await stage.pod())["spec"]
        await stage.withdraw()
        await stage.request_deleted()
        await until_awaited(place.left, lambda left: not left)


def is_reported(status: Mapping[str, Any]) -> bool:
    """Whether the status says that a write was stored otherwise."""
    return "is stored instead" in status.get("reason", "")


async def reported_status(devices: Devices, working: Working) -> dict[str, Any]:
    """Act as the agents; return the request's status. A wait has lasted so long that it is reported."""
    if working.is_delayed(devices.stage.namespace):
        devices.stage.clock.passed += timedelta(seconds=6)
        await touch(devices.stage, "pod")
    await devices.report()
    return await devices.stage.status()
