"""etcd is restored from a backup while the reconciler runs: nothing that it has read before is valid."""

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from bowline.kube.lease import LeaseTimings, StorageRestoredError
from bowline.kube.reflector import Reflector
from bowline.kube.resources import CONFIGMAPS, Selection
from bowline.localcluster.cluster import Cluster
from tests.pairs import bare_control_plane
from tests.reconciler.conftest import stage_on
from tests.reconciler.stage import Scripted, Stage
from tests.waiting import LIMIT_S, until, wait_until

# Renewed often, and not lost while the API server is restarted.
LASTING = LeaseTimings(timedelta(seconds=300), timedelta(seconds=280), timedelta(seconds=0.5))
# A restore takes longer than the cut of a connection.
OUTAGE_S = 11.0
# Lost before the API server is there again: the next term is another one.
LOST = LeaseTimings(timedelta(seconds=4), timedelta(seconds=3), timedelta(seconds=0.5))


@pytest.fixture
def own_cluster() -> Iterator[Cluster]:
    """A control plane of the test's own."""
    with bare_control_plane() as cluster:
        yield cluster


@pytest.fixture
async def own_stage(own_cluster: Cluster) -> AsyncIterator[Stage]:
    async for made in stage_on(own_cluster):
        yield made


@pytest.mark.parametrize(
    ("timings", "is_led_again"),
    [
        pytest.param(LASTING, False, id="in the same term"),
        pytest.param(LOST, True, id="after the Lease was lost"),
    ],
)
async def test_a_reconciler_ends_when_the_storage_has_gone_back(
    own_cluster: Cluster, own_stage: Stage, tmp_path: Path, timings: LeaseTimings, is_led_again: bool
) -> None:
    """Its next process binds what is pending again: the state of this one says that it is finished."""
    backup, stage = tmp_path / "etcd", own_stage
    await stage.create_pod()
    await stage.request_bind()
    await asyncio.to_thread(own_cluster.while_stopped, lambda data: shutil.copytree(data, backup))

    async with stage.working(Scripted(), timings=timings) as working:
        await stage.phase("pod", "Succeeded")

        def restore(data: Path) -> None:
            shutil.rmtree(data)
            shutil.copytree(backup, data)
            if is_led_again:
                wait_until(lambda: working.client.read_only, "the Lease is lost")

        await asyncio.to_thread(own_cluster.while_stopped, restore)
        await asyncio.wait([working.running.leading], timeout=LIMIT_S)
        error = working.running.leading.exception()
    assert isinstance(error, ExceptionGroup)
    assert error.subgroup(StorageRestoredError) is not None
    assert (await stage.status()).get("phase", "") == "", "restored, and not processed by the process that has ended"
    async with stage.working(Scripted(), timings=LASTING, lease="next"):
        await stage.phase("pod", "Succeeded")


async def test_a_watch_misses_nothing_after_a_restore(own_cluster: Cluster, own_stage: Stage, tmp_path: Path) -> None:
    """Its resourceVersion has not been reached again: until then a watch from there would deliver nothing."""
    backup, path = tmp_path / "etcd", f"/api/v1/namespaces/{own_stage.namespace}/configmaps"
    await asyncio.to_thread(own_cluster.while_stopped, lambda data: shutil.copytree(data, backup))
    reflector = Reflector(own_stage.client, Selection(CONFIGMAPS, own_stage.namespace))
    names = [f"lost-{number}" for number in range(200)]

    def restore(data: Path) -> None:
        shutil.rmtree(data)
        shutil.copytree(backup, data)
        time.sleep(OUTAGE_S)

    async with asyncio.TaskGroup() as group:
        task = group.create_task(reflector.run())
        for name in names:
            await asyncio.to_thread(own_cluster.api.post, path, {"metadata": {"name": name}})
        await until(lambda: len(reflector.store) == len(names))
        await asyncio.to_thread(own_cluster.while_stopped, restore)
        await asyncio.to_thread(own_cluster.api.post, path, {"metadata": {"name": "after"}})
        await until(lambda: [key.name for key in reflector.store] == ["after"])
        task.cancel()
