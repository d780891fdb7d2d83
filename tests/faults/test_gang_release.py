"""A gang that does not become complete is released when its wait expires, also by a process that is cut off.

In the event loop and with a shifted clock, because a wait expires after a minute at the earliest: the process ends
with a write executed and its reply not received, as with kill -9, and another one starts from the stored objects.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from bowline.framework.plugin_status import Status
from bowline.framework.reason import Reason
from bowline.kube.config import ClusterAccess
from bowline.kube.resources import CONFIGMAPS
from bowline.localcluster.cluster import Cluster
from bowline.testing.fault_proxy.faults import LoseReply
from bowline.testing.fault_proxy.rules import FaultRule
from bowline.testing.fault_proxy.server import FaultProxy
from tests.faults.points import Mode, Point, points_of
from tests.pod_groups import install_pod_groups
from tests.reconciler.conftest import stage_on
from tests.reconciler.stage import Stage
from tests.reconciler.test_gangs import ON, SHORT, all_wait, bound, make_group, request_members, touch
from tests.reconciler.test_rollback import Leaving
from tests.waiting import until_awaited

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1800)]

# Far less than what the Lease lasts: time passes while the requests are processed.
STEP = timedelta(seconds=2)

# What a release writes. Events are best effort, and the Lease is not its own.
RELEASED = ("bindrequests", "configmaps", "pods")


@pytest.fixture
async def stage(bare_cluster: Cluster) -> AsyncIterator[Stage]:
    """The test's stage, with PodGroups."""
    install_pod_groups(bare_cluster)
    async for made in stage_on(bare_cluster):
        yield made


async def ends(stage: Stage, pods: Sequence[str]) -> None:
    """Let time pass until every request of the gang has failed."""

    async def unfinished() -> list[str]:
        names = [name for name in pods if (await stage.status(name)).get("phase") != "Failed"]
        if names:
            stage.clock.passed += STEP
        for name in names:
            await touch(stage, name)
        return names

    await until_awaited(unfinished, lambda names: not names)


async def release(
    stage: Stage, behind_proxy: tuple[FaultProxy, ClusterAccess], gang: str, point: Point | None
) -> list[Point]:
    """Prepare two of three pods and let their wait expire; the process ends at the point. Returns all points."""
    proxy, access = behind_proxy
    pods = [f"{gang}-a", f"{gang}-b"]
    loop, died = asyncio.get_running_loop(), asyncio.Event()

    def die() -> None:
        loop.call_soon_threadsafe(died.set)

    await make_group(stage, 3, gang)
    async with stage.working(Leaving(Status.ok()), access=access, gates=ON, binding=SHORT) as working:
        await request_members(stage, *pods, group=gang)
        await all_wait(stage, working, len(pods))
        before = proxy.latest()
        if point is not None:
            proxy.add(FaultRule(LoseReply(die), point.within(stage.namespace), nth=point.nth))
        ending = asyncio.create_task(ends(stage, pods))
        # How often a wait is reported depends on time: a write that this run does not send ends with the gang.
        death = asyncio.create_task(died.wait())
        await asyncio.wait((death, ending), return_when=asyncio.FIRST_COMPLETED)
        death.cancel()
        assert point is None or died.is_set() or point.match.verbs != ("delete",), f"never met: {point}"
        await working.crash()
        proxy.clear()
        calls = proxy.exchanges(before)
    async with stage.working(Leaving(Status.ok()), access=access, gates=ON, binding=SHORT):
        await ending
        for name in pods:
            status = await stage.status(name)
            assert status["reason"].startswith(Reason.WAIT_TIMEOUT.value), f"{point}: {status['reason']}"
            assert not (await stage.request(name))["metadata"].get("finalizers"), f"{point}: {name}"
    left = [effect["metadata"]["name"] for effect in await stage.client.list_all(CONFIGMAPS, stage.namespace)]
    assert not set(left) & set(pods), f"{point}: effects are left"
    assert await bound(stage) == set()
    points = points_of(calls, stage.namespace, [Mode.BEFORE_REPLY])
    return [met for met in points if met.match.resource in RELEASED]


async def test_a_release_that_is_cut_off_at_each_write_leaves_nothing(
    stage: Stage, bare_cluster: Cluster, tmp_path: Path
) -> None:
    async with stage.proxy_route(bare_cluster) as behind_proxy:
        points = await release(stage, behind_proxy, "whole", None)
        assert {point.match.resource for point in points} >= {"bindrequests", "configmaps"}
        for number, point in enumerate(points):
            await release(stage, behind_proxy, f"cut-{number}", point)
