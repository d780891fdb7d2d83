"""etcd is restored from a backup while the reconciler runs: nothing that it has read before is valid."""

import asyncio
import shutil
from datetime import timedelta
from pathlib import Path

from bowline.kube.lease import LeaseTimings, StorageRestoredError
from bowline.localcluster.cluster import Cluster
from tests.reconciler.stage import Scripted, Stage
from tests.waiting import LIMIT_S

# Renewed often, and not lost while the API server is restarted.
LASTING = LeaseTimings(timedelta(seconds=300), timedelta(seconds=280), timedelta(seconds=0.5))


async def test_a_reconciler_ends_when_the_storage_has_gone_back(
    bare_cluster: Cluster, stage: Stage, tmp_path: Path
) -> None:
    """Its next process binds what is pending again: the state of this one says that it is finished."""
    backup = tmp_path / "etcd"
    await stage.create_pod()
    await stage.request_bind()
    await asyncio.to_thread(bare_cluster.while_stopped, lambda data: shutil.copytree(data, backup))

    async with stage.working(Scripted(), timings=LASTING) as working:
        await stage.phase("pod", "Succeeded")

        def restore(data: Path) -> None:
            shutil.rmtree(data)
            shutil.copytree(backup, data)

        await asyncio.to_thread(bare_cluster.while_stopped, restore)
        await asyncio.wait([working.running.leading], timeout=LIMIT_S)
        error = working.running.leading.exception()
    assert isinstance(error, ExceptionGroup)
    assert error.subgroup(StorageRestoredError) is not None
    assert (await stage.status()).get("phase", "") == "", "restored, and not processed by the process that has ended"
    async with stage.working(Scripted(), timings=LASTING, lease="next"):
        await stage.phase("pod", "Succeeded")
