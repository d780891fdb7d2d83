"""``kubectl delete pod --cascade=orphan``: a request that has lost its owner still knows which pod it is for.

The API server's garbage collector removes the owner reference before the pod is gone; the tests remove it themselves.
"""

import pytest

from bowline.framework.interface.context import BindContext
from bowline.framework.interface.status import Status
from bowline.kube.resources import BINDREQUESTS
from bowline.testing.builders import bind_request
from tests.reconciler.stage import Scripted, Stage
from tests.waiting import until


async def wait(_: BindContext) -> Status:
    return Status.wait("not yet")


async def request_by_name(stage: Stage, owner: str = "") -> None:
    """Create a request that does not name the UID of its pod, as another project's scheduler does."""
    await stage.client.create(
        BINDREQUESTS, stage.namespace, bind_request("pod", "gpu-node-0", stage.namespace, uid=owner)
    )


async def remove_owner(stage: Stage) -> None:
    await stage.client.patch(BINDREQUESTS, stage.namespace, "pod", {"metadata": {"ownerReferences": None}})


@pytest.mark.parametrize("is_owned", [False, True], ids=["owner set by the reconciler", "owner set by the scheduler"])
async def test_an_unfinished_request_takes_no_later_pod_of_that_name(stage: Stage, is_owned: bool) -> None:
    plugin = Scripted(effects=is_owned, pre_bind=wait)
    async with stage.working(plugin) as working:
        uid = await stage.create_pod()
        await request_by_name(stage, uid if is_owned else "")
        await until(lambda: "pre_bind" in plugin.points("pod"))
        await working.crash()
    await remove_owner(stage)
    await stage.delete_pod()
    await stage.create_pod()
    async with stage.working(Scripted(effects=is_owned)):
        status = await stage.phase("pod", "Failed", "Succeeded")
    assert status["failure"]["reason"] == "PodGone"
    assert "nodeName" not in (await stage.pod())["spec"]
