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

Path = tuple[str | int, ...]


def changing(path: Path, value: Any) -> Rewrite:
    """The change of one field, if it is written; None removes it."""

    def change(body: dict[str, Any]) -> None:
        parent: Any = body
        for part in path[:-1]:
            parent = parent[part] if isinstance(part, int) else parent.get(part) or {}
        if not parent.get(path[-1]):
            return
        if value is None:
            del parent[path[-1]]
        else:
            parent[path[-1]] = value

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


def metadata(*path: str) -> Path:
    """A field of the metadata."""
    return ("metadata", *path)


GROUP = metadata("labels", names.LABEL_GPU_GROUP)
OTHER_CONSUMER = [{"resource": "pods", "name": "other", "uid": "other"}]
# A row for each kind of call, which the client compares: scenario, call, field, and the value that replaces it.
WRITES: Mapping[str, tuple[str, str, Path, Any]] = {
    "label of the group": ("share", "patch pods", GROUP, "other"),
    "devices": ("share", "create configmaps", ("data", names.VISIBLE_DEVICES), "all"),
    "finalizer": ("effects", "patch bindrequests", metadata("finalizers"), []),
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
    proxy.add(FaultRule(changing(path, value), CallMatch((verb,), resource, "status" if path[0] == "status" else "")))
    place = Place(stage, devices)
    plugin = await getattr(place, scenario)()
    async with stage.working(plugin, access=access) as working:
        status = await until_awaited(lambda: reported_status(devices, working), is_reported)
        assert all(str(part) in status["reason"] for part in path[:2])
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


async def stored_status(devices: Devices) -> dict[str, Any]:
    """Act as the agents; return the request's status."""
    await devices.report()
    return await devices.stage.status()


async def reported_status(devices: Devices, working: Working) -> dict[str, Any]:
    """The same; a wait has lasted so long that it is reported, without that time."""
    if working.is_delayed(devices.stage.namespace):
        devices.stage.clock.passed += timedelta(seconds=6)
        await touch(devices.stage, "pod")
    return await stored_status(devices)


async def test_the_request_goes_on_once_the_policy_is_gone(
    stage: Stage, proxy_route: tuple[FaultProxy, ClusterAccess], devices: Devices
) -> None:
    proxy, access = proxy_route
    proxy.add(FaultRule(changing(GROUP, None), CallMatch(("create",), "pods", "")))
    plugin = await Place(stage, devices).share()
    async with stage.working(plugin, access=access):
        await stage.reported("pod", "is stored instead")
        proxy.clear()
        await touch(stage, "pod")
        status = await until_awaited(lambda: stored_status(devices), lambda s: s.get("phase") == "Succeeded")
    assert {entry["type"]: entry["status"] for entry in status["conditions"]}["Prepared"] == "True"
    assert len(await devices.reservations()) == 1


async def test_a_finalizer_that_is_put_back_is_removed_once_the_policy_is_gone(
    stage: Stage, proxy_route: tuple[FaultProxy, ClusterAccess]
) -> None:
    """Until then the request is tried again as after any failed call, and says why."""
    proxy, access = proxy_route

    def put_back(body: dict[str, Any]) -> None:
        finalizers = body["metadata"].get("finalizers")
        if finalizers == []:
            finalizers.append(names.FINALIZER)

    proxy.add(FaultRule(Rewrite(put_back), CallMatch(("patch",), names.PLURAL, "")))
    async with stage.working(Scripted(effects=True), access=access):
        await stage.create_pod()
        await stage.request_bind()
        status = await until_awaited(stage.status, is_reported)
        assert "metadata.finalizers: " in status["reason"]
        proxy.clear()
        await touch(stage, "pod")
        await stage.phase("pod", "Succeeded")
    assert not (await stage.request())["metadata"].get("finalizers")


async def test_a_phase_that_is_not_stored_is_written_again_and_nothing_is_learnt_of_other_requests(
    stage: Stage, proxy_route: tuple[FaultProxy, ClusterAccess]
) -> None:
    proxy, access = proxy_route
    proxy.add(
        FaultRule(changing(("status", "phase"), None), CallMatch(("patch",), names.PLURAL, "status", name="pod"))
    )
    async with stage.working(access=access):
        for name in ("pod", "other"):
            await stage.create_pod(name)
            await stage.request_bind(name)
        await stage.phase("other", "Succeeded")
        await until_awaited(stage.status, lambda status: bool(status.get("reason") or status.get("conditions")))
        assert (await stage.status()).get("phase") in (None, "")
        proxy.clear()
        await touch(stage, "pod")
        await stage.phase("pod", "Succeeded")
