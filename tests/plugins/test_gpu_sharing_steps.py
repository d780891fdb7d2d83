"""The plugin's own steps against a real API server: an attempt withdrawn during a write, the results of a resync."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from bowline.api import names
from bowline.api.meta import ObjectKey
from bowline.framework.binding.handle import Reconcile
from bowline.framework.binding.metrics import PluginMetrics
from bowline.framework.config import GpuSharingSettings as Sharing
from bowline.framework.config import Settings
from bowline.framework.plugin_status import Code
from bowline.kube.client import KubeClient
from bowline.kube.config import load_access
from bowline.kube.resources import PODS, Resource
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.kubeconfig import api_server
from bowline.plugins.gpu_sharing.config import GpuSharingConfig
from bowline.plugins.gpu_sharing.group_controller import GroupController
from bowline.plugins.gpu_sharing.idle_groups import IdleGroups
from bowline.plugins.gpu_sharing.metrics import SharingMetrics
from bowline.plugins.gpu_sharing.orphan_scan import OrphanScan
from bowline.plugins.gpu_sharing.plugin import GpuSharing
from bowline.plugins.gpu_sharing.reservation import DeviceRequest
from bowline.plugins.gpu_sharing.reservation_client import ReservationClient
from bowline.plugins.gpu_sharing.reservation_pod import ReservationSpec, reservation_object
from bowline.testing.builders import pod
from bowline.testing.handles import handle_for
from tests.plugins.claim_case import Case
from tests.plugins.claims import NODE
from tests.waiting import until_awaited


class Passes:
    """Runs a pass for every key that is added, as the plugin's workers do."""

    def __init__(self) -> None:
        self.running: set[asyncio.Task[timedelta | None]] = set()

    def worker(self, _: str, reconcile: Reconcile) -> Callable[[ObjectKey], None]:
        return lambda key: self.running.add(asyncio.ensure_future(reconcile(key)))


class VanishingClient(KubeClient):
    """Deletes the conflicting pod before it is read."""

    async def get(self, resource: Resource, namespace: str, name: str, **kwargs: Any) -> dict[str, Any]:
        await self.delete(resource, namespace, name, grace_period_s=0)
        return await super().get(resource, namespace, name, **kwargs)


@pytest.fixture
async def case(cluster: Cluster) -> AsyncIterator[Case]:
    namespace = f"test-{uuid.uuid4().hex[:8]}"
    for name in (namespace, f"{namespace}-devices"):
        cluster.make_namespace(name)
    client = KubeClient(await load_access(api_server(cluster.kubeconfig)))
    async with client:
        yield Case(client, namespace)
    for name in (namespace, f"{namespace}-devices"):
        # A resync reads the pods of all namespaces.
        cluster.kubectl("delete", "pods", "--all", f"--namespace={name}", "--grace-period=0", "--force")
        cluster.kubectl("delete", "namespace", name, "--wait=false")


async def new_plugin(client: KubeClient, devices: str, passes: Passes) -> GpuSharing:
    plugin = GpuSharing(
        GpuSharingConfig(), Settings(gpu_sharing=Sharing(reservation_namespace=devices, runtime_class_name=""))
    )
    await plugin.setup(replace(handle_for(plugin.name, client), worker=passes.worker))
    return plugin


def share_of(case: Case) -> dict[str, Any]:
    """Return a request for half a device; the group is the test's own."""
    received_gpu = {"count": 1, "portion": "0.50"}
    return {
        "receivedResourceType": "Fraction",
        "receivedGPU": received_gpu,
        "selectedGPUGroups": [case.namespace],
    }


def of_half(case: Case) -> DeviceRequest:
    """Return the DeviceRequest of the pod's request."""
    key = ObjectKey(case.namespace, "half")
    return DeviceRequest(key, key, NODE, case.namespace)


async def reserve(case: Case, devices: str) -> dict[str, Any]:
    """Reserve the group's device and let its agent report."""
    body = reservation_object(of_half(case), ReservationSpec(devices, "image"))
    body["metadata"]["annotations"][names.RESERVED_DEVICE] = "GPU-1"
    return await case.client.create(PODS, devices, body)


def half(case: Case) -> dict[str, Any]:
    """Return a pod that is prepared for half a device."""
    body = pod("half", case.namespace)
    body["metadata"]["annotations"] = {names.GPU_FRACTION: "0.5", names.SHARED_GPU_CONFIGMAP: "half"}
    return body


async def test_a_reservation_deleted_during_its_creation_is_created_again(case: Case, cluster: Cluster) -> None:
    """1. The pod of that name exists. 2. It ends. 3. It is read. That fails no scheduler's decision."""
    devices = f"{case.namespace}-devices"
    foreign = reservation_object(of_half(case), ReservationSpec(devices, "image"))
    foreign["metadata"]["labels"] = {}
    await case.client.create(PODS, devices, foreign)
    created_pod = await case.client.create(PODS, case.namespace, half(case))
    passes = Passes()
    client = VanishingClient(await load_access(api_server(cluster.kubeconfig)))
    async with client:
        plugin = await new_plugin(client, devices, passes)
        assert (await plugin.pre_bind(await case.context(created_pod, **share_of(case)))).code is Code.TRANSIENT
        assert (await plugin.pre_bind(await case.context(created_pod, **share_of(case)))).code is Code.WAIT
        await asyncio.gather(*passes.running)


async def unreserved_groups(client: KubeClient, devices: str) -> float | None:
    """Return how many groups a resync reports as used and without a reservation."""
    registry = CollectorRegistry()
    metrics = SharingMetrics(PluginMetrics("gpu_sharing", registry))
    passes = Passes()
    handle = replace(handle_for("other", client, registry=registry), worker=passes.worker)
    site = ReservationClient(client, ReservationSpec(devices, "image"), "")
    owner = GroupController(handle, site, timedelta(seconds=40), metrics, IdleGroups())
    await OrphanScan(handle, site, owner, metrics).run(ObjectKey("", "sweep"))
    await asyncio.gather(*passes.running, return_exceptions=True)
    return registry.get_sample_value("bowline_gpu_sharing_groups_unreserved")


async def running_share(case: Case, **spec: Any) -> None:
    """Create a pod that is labelled as a user of the group's device; on the node, unless ``spec`` has another one."""
    body = pod("half", case.namespace, **{"nodeName": NODE, **spec})
    body["metadata"]["labels"] = {names.LABEL_GPU_GROUP: case.namespace, names.LABEL_GPU_SHARING: "true"}
    await case.client.create(PODS, case.namespace, body)


async def test_an_ended_reservation_holds_no_group(case: Case) -> None:
    devices = f"{case.namespace}-devices"
    await running_share(case)
    reservation = await reserve(case, devices)
    # kwok would overwrite the eviction later.
    await until_awaited(
        lambda: case.client.get(PODS, devices, reservation["metadata"]["name"]),
        lambda stored_pod: stored_pod["status"].get("phase") == "Running",
    )
    assert await unreserved_groups(case.client, devices) == 0
    eviction = {"status": {"phase": "Failed", "reason": "Evicted"}}
    await case.client.patch(PODS, devices, reservation["metadata"]["name"], eviction, subresource="status")
    assert await unreserved_groups(case.client, devices) == 1
