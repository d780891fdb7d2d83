"""Pods of a PodGroup are bound when as many as it requires are prepared or bound, else none; then nothing is left."""

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from bowline.framework.interface.context import BindContext
from bowline.framework.interface.status import Status
from bowline.kube.resources import KAI_PODGROUPS, PODS
from bowline.localcluster.cluster import Cluster
from tests.pod_groups import in_group, install_pod_groups, pod_group
from tests.reconciler.conftest import stage_on
from tests.reconciler.stage import Scripted, Stage, Working
from tests.waiting import until

ON = {"GangBinding": True}


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
    states = working.parts.memory.states

    def waiting() -> bool:
        return working.sizes["waitIndex"] == count and all(
            state.attempt.running is None for _, state in states.items()
        )

    await until(waiting)


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


async def test_a_bound_pod_that_has_gone_since_it_was_listed_completes_no_gang(stage: Stage) -> None:
    await make_group(stage, 3)
    await stage.create_pod("member-0", in_group("gang"))
    body = {"metadata": {"name": "member-0"}, "target": {"apiVersion": "v1", "kind": "Node", "name": "gpu-node-0"}}
    await stage.client.create(PODS, stage.namespace, body, name="member-0", subresource="binding")
    async with stage.working(Devices(), gates=ON) as working:
        await request_members(stage, "member-1")
        await all_wait(stage, working, 1)
        await stage.delete_pod("member-0")
        stage.clock.passed += timedelta(seconds=2)
        await request_members(stage, "member-2")
        await all_wait(stage, working, 2)
        assert await bound(stage) == set()
