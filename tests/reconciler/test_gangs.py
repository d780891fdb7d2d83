"""Pods of a PodGroup are bound when as many as it requires are prepared or bound, else none; then nothing is left."""

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from bowline.framework.binding.context import BindContext
from bowline.framework.config import Binding
from bowline.framework.gates import GANG_BINDING
from bowline.framework.plugin_status import Status
from bowline.framework.reason import Reason
from bowline.kube.config import ClusterAccess, load_access
from bowline.kube.resources import KAI_PODGROUPS, PODGROUPS, PODS
from bowline.localcluster.assets.versions import release_for
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.kubeconfig import api_server
from bowline.testing.fault_proxy.server import FaultProxy
from tests.pairs import BARE, bare_control_plane
from tests.pod_groups import (
    WITH_POD_GROUPS,
    in_group,
    install_pod_groups,
    kubernetes_pod_group,
    pod_group,
    serves_pod_groups,
)
from tests.reconciler.conftest import stage_on
from tests.reconciler.stage import NO_FLIGHT, Scripted, Stage, Working
from tests.waiting import until

ON = {GANG_BINDING: True}
# A wait may expire when the watches have been connected for a minute.
SHORT = Binding(in_flight_timeout=NO_FLIGHT, wait_timeout=timedelta(seconds=90))


class Devices(Scripted):
    """Prepares every pod, except those whose device is not ready; counts what is prepared and not rolled back."""

    def __init__(self, *unready: str) -> None:
        super().__init__(effects=True, pre_bind=self.prepare, rollback=self.release)
        self.unready = set(unready)
        self.prepared: set[str] = set()

    async def prepare(self, ctx: BindContext) -> Status:
        name = ctx.request.key.name
        self.prepared.add(name)
        if name in self.unready:
            return Status.wait("its device is not ready", retry_after=timedelta(seconds=1))
        return Status.ok()

    async def release(self, ctx: BindContext) -> Status:
        self.prepared.discard(ctx.request.key.name)
        return Status.ok()


@pytest.fixture
async def stage(bare_cluster: Cluster) -> AsyncIterator[Stage]:
    """The test's stage, with PodGroups."""
    install_pod_groups(bare_cluster)
    async for made in stage_on(bare_cluster):
        yield made


async def make_group(stage: Stage, min_member: int, name: str = "gang") -> None:
    await stage.client.create(KAI_PODGROUPS, stage.namespace, pod_group(name, min_member))


async def request_members(stage: Stage, *pods: str, group: str = "gang") -> None:
    for name in pods:
        await stage.create_pod(name, in_group(group))
        await stage.request_bind(name)


def members(count: int) -> list[str]:
    return [f"member-{number}" for number in range(count)]


async def bound(stage: Stage) -> set[str]:
    pods = await stage.client.list_all(PODS, stage.namespace)
    return {pod["metadata"]["name"] for pod in pods if pod["spec"].get("nodeName")}


async def all_wait(stage: Stage, working: Working, count: int) -> None:
    """Wait until so many requests wait, and no attempt runs."""
    states = working.parts.states

    def waiting() -> bool:
        return working.sizes["waitIndex"] == count and all(
            state.attempt.running is None for _, state in states.items()
        )

    await until(waiting)


async def touch(stage: Stage, name: str) -> None:
    """Let the reconciler process the request once more."""
    body = {"metadata": {"labels": {"touched": str(stage.clock.monotonic())}}}
    await stage.client.patch(PODS, stage.namespace, name, body)


async def test_no_pod_is_bound_before_the_gang_is_complete(stage: Stage) -> None:
    devices, gang = Devices("member-3"), members(4)
    await make_group(stage, 4)
    async with stage.working(devices, gates=ON) as working:
        await request_members(stage, *gang)
        await all_wait(stage, working, 4)
        assert devices.prepared == set(gang)
        assert await bound(stage) == set()
        devices.unready.clear()
        for name in gang:
            await stage.phase(name, "Succeeded")
        assert working.sizes["waitIndex"] == 0
    assert await bound(stage) == set(gang)


async def test_a_gang_that_does_not_become_complete_is_released_with_one_reason_each(stage: Stage) -> None:
    devices, gang = Devices("member-7"), members(8)
    await make_group(stage, 8)
    async with stage.working(devices, gates=ON, binding=SHORT) as working:
        await request_members(stage, *gang)
        await all_wait(stage, working, 8)
        stage.clock.passed += timedelta(seconds=100)
        for name in gang:
            await touch(stage, name)
        reasons = Counter([(await stage.phase(name, "Failed"))["reason"].partition(": ")[0] for name in gang])
        assert reasons == {Reason.WAIT_TIMEOUT.value: 8}
        assert [ref["kind"] for ref in (await stage.status("member-0"))["failure"]["objects"]] == ["PodGroup"]
        assert (await stage.status("member-7"))["failure"]["objects"] == [], "it waits for its device"
        assert devices.prepared == set()
        for name in gang:
            assert not (await stage.request(name))["metadata"].get("finalizers")
    assert await bound(stage) == set()


async def test_a_pod_of_another_or_no_group_does_not_wait(stage: Stage) -> None:
    await make_group(stage, 3)
    await make_group(stage, 1, "single")
    await make_group(stage, 0, "elastic")
    async with stage.working(Devices(), gates=ON) as working:
        await request_members(stage, "waits-0", "waits-1")
        await request_members(stage, "single", group="single")
        await request_members(stage, "elastic", group="elastic")
        await request_members(stage, "groupless", group="absent")
        await stage.create_pod("alone")
        await stage.request_bind("alone")
        free = {"single", "elastic", "groupless", "alone"}
        for name in free:
            await stage.phase(name, "Succeeded")
        await all_wait(stage, working, 2)
    assert await bound(stage) == free


async def test_a_group_that_is_scaled_down_binds_its_prepared_pods(stage: Stage) -> None:
    await make_group(stage, 3)
    async with stage.working(Devices(), gates=ON) as working:
        await request_members(stage, *members(2))
        await all_wait(stage, working, 2)
        await stage.client.patch(KAI_PODGROUPS, stage.namespace, "gang", {"spec": {"minMember": 2}})
        stage.clock.passed += timedelta(seconds=3)  # the PodGroup that was read is out of date
        await touch(stage, "member-0")
        for name in members(2):
            await stage.phase(name, "Succeeded")


async def test_a_group_that_is_scaled_up_counts_its_bound_pods(stage: Stage) -> None:
    await make_group(stage, 2)
    async with stage.working(Devices(), gates=ON) as working:
        await request_members(stage, *members(2))
        for name in members(2):
            await stage.phase(name, "Succeeded")
        await stage.client.patch(KAI_PODGROUPS, stage.namespace, "gang", {"spec": {"minMember": 4}})
        stage.clock.passed += timedelta(seconds=3)
        await request_members(stage, "member-2")
        await all_wait(stage, working, 1)
        assert len(await bound(stage)) == 2
        await request_members(stage, "member-3")
        for name in ("member-2", "member-3"):
            await stage.phase(name, "Succeeded")


async def test_a_deleted_member_is_replaced_and_does_not_count_before(stage: Stage) -> None:
    devices = Devices()
    await make_group(stage, 3)
    async with stage.working(devices, gates=ON) as working:
        await request_members(stage, *members(2))
        await all_wait(stage, working, 2)
        await stage.delete_pod("member-0")
        await stage.phase("member-0", "Failed")
        assert devices.prepared == {"member-1"}
        await request_members(stage, "member-2")
        await all_wait(stage, working, 2)
        assert await bound(stage) == set()
        await request_members(stage, "replacement")
        for name in ("member-1", "member-2", "replacement"):
            await stage.phase(name, "Succeeded")
    assert await bound(stage) == {"member-1", "member-2", "replacement"}


async def test_a_pod_that_is_being_rolled_back_does_not_count(stage: Stage) -> None:
    devices, began, go = Devices(), asyncio.Event(), asyncio.Event()

    async def release(ctx: BindContext) -> Status:
        began.set()
        await go.wait()
        return await devices.release(ctx)

    devices.on_rollback = release
    await make_group(stage, 3)
    async with stage.working(devices, gates=ON) as working:
        await request_members(stage, *members(2))
        await all_wait(stage, working, 2)
        await stage.withdraw("member-0")
        await began.wait()
        await request_members(stage, "member-2")
        await until(lambda: working.sizes["waitIndex"] == 2)
        assert await bound(stage) == set()
        go.set()
        await stage.request_deleted("member-0")


async def test_a_restart_between_the_bindings_binds_the_rest(stage: Stage) -> None:
    """The state after a crash: one pod is bound, the process has forgotten which others were prepared."""
    gang = members(3)
    await make_group(stage, 3)
    async with stage.working(Devices("member-2"), gates=ON) as working:
        await request_members(stage, *gang)
        await all_wait(stage, working, 3)
        await working.crash()
    pod = await stage.pod("member-0")
    target = {"apiVersion": "v1", "kind": "Node", "name": "gpu-node-0"}
    body = {"metadata": {"name": "member-0", "uid": pod["metadata"]["uid"]}, "target": target}
    await stage.client.create(PODS, stage.namespace, body, name="member-0", subresource="binding")
    async with stage.working(Devices("member-2"), gates=ON) as working:
        await stage.phase("member-0", "Succeeded")
        await all_wait(stage, working, 2)
        assert await bound(stage) == {"member-0"}
    async with stage.working(Devices(), gates=ON):
        for name in gang:
            await stage.phase(name, "Succeeded")


@pytest.mark.skipif(
    not serves_pod_groups(release_for(None, os.environ)),
    reason="PodGroups are v1beta1 from Kubernetes 1.37 on; set BOWLINE_KUBERNETES=1.37",
)
async def test_a_pod_group_of_kubernetes_is_a_gang() -> None:
    groups = replace(BARE, runtime_config=WITH_POD_GROUPS.runtime_config, feature_gates=WITH_POD_GROUPS.feature_gates)
    in_kubernetes_group = {"schedulingGroup": {"podGroupName": "gang"}}
    with bare_control_plane(groups) as cluster:
        async for stage in stage_on(cluster):
            await stage.client.create(PODGROUPS, stage.namespace, kubernetes_pod_group("gang", 2))
            async with stage.working(Devices(), gates=ON) as working:
                await stage.create_pod("first", **in_kubernetes_group)
                await stage.request_bind("first")
                await all_wait(stage, working, 1)
                assert await bound(stage) == set()
                await stage.create_pod("second", **in_kubernetes_group)
                await stage.request_bind("second")
                for name in ("first", "second"):
                    await stage.phase(name, "Succeeded")


async def test_without_the_gate_each_pod_is_bound_by_itself(stage: Stage) -> None:
    await make_group(stage, 2)
    async with stage.working(Devices()):
        await request_members(stage, "member-0")
        await stage.phase("member-0", "Succeeded")


@pytest.mark.usefixtures("no_late_bind")
async def test_a_pod_without_a_group_costs_the_same_calls_with_the_gate(
    stage: Stage, proxy_route: tuple[FaultProxy, ClusterAccess]
) -> None:
    proxy, access = proxy_route

    async def counts(name: str, gates: dict[str, bool]) -> Counter[str]:
        before = proxy.latest()
        async with stage.working(access=access, gates=gates) as working:
            await until(lambda: working.parts.controller.queue.is_open)
            await stage.create_pod(name)
            await working.pod_cached(stage.namespace, name)
            await stage.request_bind(name)
            await stage.phase(name, "Succeeded")
            await stage.event(name, "Bound")
            await until(lambda: working.sizes["podConditions"] == 0)
        # An exchange is recorded when its reply arrives, which may be after its effect.
        calls = [exchange.call for exchange in proxy.exchanges(before)]
        return Counter(call.kind for call in calls if call.namespace == stage.namespace and call.resource != "leases")

    without = await counts("without", {})
    assert await counts("with", ON) == without
    assert without["create pods/binding"] == 1


async def test_a_denied_read_of_the_pod_group_is_reported_when_it_lasts(stage: Stage, bare_cluster: Cluster) -> None:
    await make_group(stage, 2)
    account = f"no-groups-{stage.namespace}"
    rules: Any = [
        "--verb=*",
        "--resource=bindrequests.scheduling.run.ai,bindrequests.scheduling.run.ai/status,pods,pods/binding,pods/status,"
        "nodes,leases.coordination.k8s.io,events.events.k8s.io",
    ]
    bare_cluster.kubectl("create", "serviceaccount", account, "--namespace=default")
    bare_cluster.kubectl("create", "clusterrole", account, *rules)
    bare_cluster.kubectl(
        "create", "clusterrolebinding", account, f"--clusterrole={account}", f"--serviceaccount=default:{account}"
    )
    access = await load_access(api_server(bare_cluster.service_account_kubeconfig("default", account)))
    async with stage.working(access=access, gates=ON, binding=SHORT) as working:
        await request_members(stage, "member-0")
        await until(lambda: working.sizes["failing"] == 1)
        # A denial is reported when it has lasted for a minute: an authorizer may just have started.
        stage.clock.passed += timedelta(seconds=61)
        await touch(stage, "member-0")
        status = await stage.phase("member-0", "Failed")
    assert status["failure"]["reason"] == "RBACMissing"
    assert await bound(stage) == set()
