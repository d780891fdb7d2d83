"""Pods of a PodGroup are bound when as many as it requires are prepared or bound, by what is stored now."""

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from bowline.kube.resources import KAI_PODGROUPS, PODS
from bowline.localcluster.cluster import Cluster
from tests.pod_groups import in_group, install_pod_groups, pod_group
from tests.reconciler.conftest import stage_on
from tests.reconciler.stage import Scripted, Stage, Working
from tests.waiting import until


@pytest.fixture
async def stage(bare_cluster: Cluster) -> AsyncIterator[Stage]:
    """The test's stage, with PodGroups."""
    install_pod_groups(bare_cluster)
    async for made in stage_on(bare_cluster):
        yield made


async def request_member(stage: Stage, name: str) -> None:
    await stage.create_pod(name, in_group("gang"))
    await stage.request_bind(name)


async def bound(stage: Stage) -> set[str]:
    pods = await stage.client.list_all(PODS, stage.namespace)
    return {pod["metadata"]["name"] for pod in pods if pod["spec"].get("nodeName")}


async def all_wait(working: Working, count: int) -> None:
    """Wait until so many requests wait, and no attempt runs."""
    states = working.parts.memory.states

    def waiting() -> bool:
        return working.sizes["waitIndex"] == count and all(
            state.attempt.running is None for _, state in states.items()
        )

    await until(waiting)


async def test_a_gang_is_bound_when_it_is_complete_without_a_bound_pod_that_has_gone(stage: Stage) -> None:
    """``member-0`` has gone since it was listed."""
    await stage.client.create(KAI_PODGROUPS, stage.namespace, pod_group("gang", 3))
    await stage.create_pod("member-0", in_group("gang"))
    body = {"metadata": {"name": "member-0"}, "target": {"apiVersion": "v1", "kind": "Node", "name": "gpu-node-0"}}
    await stage.client.create(PODS, stage.namespace, body, name="member-0", subresource="binding")
    async with stage.working(Scripted(effects=True), gates={"GangBinding": True}) as working:
        await request_member(stage, "member-1")
        await all_wait(working, 1)
        await stage.delete_pod("member-0")
        stage.clock.passed += timedelta(seconds=2)
        await request_member(stage, "member-2")
        await all_wait(working, 2)
        assert await bound(stage) == set()
        await request_member(stage, "member-3")
        for number in (1, 2, 3):
            await stage.phase(f"member-{number}", "Succeeded")
    assert await bound(stage) == {"member-1", "member-2", "member-3"}
